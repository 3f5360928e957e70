"""Rails of a Raspberry Pi 5, W: current times voltage of its power management chip (`vcgencmd pmic_read_adc`).

USB, HATs and NVMe hang on the 5 V input, whose current nothing measures. A read takes 22.6 ms.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from stepscope.record.access import videocore
from stepscope.record.access.videocore import Adc, Firmware, parse_adc, rail_powers_w
from stepscope.record.sensors.contract import NAN, Channel, Found, Missing, Target

NAME = "rpi5_pmic"
EVERY_NS = 100_000_000
_COMMAND = "pmic_read_adc"


def discover(root: Path, target: Target) -> Found | Missing:
    """Power of every rail that has a current and a voltage, the voltage of one that has no current (EXT5V, BATT)."""
    firmware = videocore.connect(root, _COMMAND)
    if isinstance(firmware, Missing):
        return firmware
    try:
        adc = parse_adc(firmware.ask(_COMMAND))
    except OSError as error:
        firmware.close()
        return Missing("failed", f"{firmware.source}: {error}")
    powered, bare = list(rail_powers_w(adc)), sorted(adc.voltages_v.keys() - adc.currents_a.keys())
    if not powered:
        firmware.close()
        said = adc.others[0][:120] if adc.others else "nothing"
        detail = f"{firmware.source} {_COMMAND}: a Raspberry Pi 5 alone measures its rails; the answer was: {said}"
        return Missing("unsupported", detail, "put a meter beside the board: a smart plug or an INA219")
    channels = (
        *(_channel(rail, "power", "W", firmware.source) for rail in powered),
        *(_channel(rail, "voltage", "V", firmware.source) for rail in bare),
    )
    return Found(channels, partial(_read, firmware, powered, bare), firmware.close, every_ns=EVERY_NS, blocking=True)


def values(adc: Adc, powered: list[str], bare: list[str]) -> list[float]:
    """W of the powered rails and V of the bare ones; NaN for one that this reading lacks."""
    powers = rail_powers_w(adc)
    return [*(powers.get(rail, NAN) for rail in powered), *(adc.voltages_v.get(rail, NAN) for rail in bare)]


def _read(firmware: Firmware, powered: list[str], bare: list[str]) -> list[float]:
    adc = parse_adc(firmware.ask(_COMMAND))
    if not adc.voltages_v:
        raise ValueError(f"{firmware.source} {_COMMAND}: no rail in the answer")
    return values(adc, powered, bare)


def _channel(rail: str, quantity: str, unit: str, source: str) -> Channel:
    return Channel(
        id=f"rail.{rail}.{quantity}",
        sensor=NAME,
        quantity=quantity,
        unit=unit,
        kind="gauge",
        scope=f"rail:{rail}",
        parent_scope="board",
        source=f"{source} {_COMMAND}",
        rail=rail,
    )
