"""What the Raspberry Pi firmware prints: `vcgencmd pmic_read_adc` (Pi 5) and `vcgencmd get_throttled`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_LINE = re.compile(r"\s*(\S+)_([AV])\s+(?:current|volt)\(\d+\)=(\d{1,9}(?:\.\d{1,12})?)([AV])\s*", re.ASCII)
_MOST = 100.0  # A or V; the PMIC of a board that is fed 5 V measures far less
THROTTLE_BITS = {  # raspberrypi.com documentation of get_throttled
    "undervoltage": 0,
    "frequency-capped": 1,
    "throttled": 2,
    "soft-temperature-limit": 3,
    "undervoltage-since-boot": 16,
    "frequency-capped-since-boot": 17,
    "throttled-since-boot": 18,
    "soft-temperature-limit-since-boot": 19,
}


@dataclass(frozen=True)
class Adc:
    """One reading of the PMIC's converters: currents and voltages by rail, and the lines that are neither."""

    currents_a: dict[str, float] = field(default_factory=dict)
    voltages_v: dict[str, float] = field(default_factory=dict)
    others: tuple[str, ...] = ()


def parse_adc(text: str) -> Adc:
    """Read every line; a line that is cut off, or whose letters contradict each other, goes to the others."""
    currents: dict[str, float] = {}
    voltages: dict[str, float] = {}
    others: list[str] = []
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match and match[2] == match[4] and float(match[3]) <= _MOST:
            (currents if match[2] == "A" else voltages)[match[1]] = float(match[3])
        elif line.strip():
            others.append(line.strip())
    return Adc(currents, voltages, tuple(others))


def rail_powers_w(adc: Adc) -> dict[str, float]:
    """W of the rails that have a current and a voltage, paired by name: their numbers in brackets differ."""
    return {rail: amps * adc.voltages_v[rail] for rail, amps in adc.currents_a.items() if rail in adc.voltages_v}


def parse_throttled(text: str) -> int | None:
    """The bits of "throttled=0x50005", or of the sysfs file, which prints bare hexadecimal; None for other text."""
    match = re.fullmatch(r"\s*(?:throttled=)?(?:0x)?([0-9a-fA-F]{1,8})\s*", text, re.ASCII)
    return int(match[1], 16) if match else None
