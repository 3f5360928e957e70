"""Rails of a Raspberry Pi 5, W, and throttling of any Raspberry Pi, as its firmware states them.

The property mailbox of /dev/vcio is tried before the vcgencmd program. Power is current times voltage of the power
management chip (`pmic_read_adc`); a read takes 22.6 ms. USB, HATs and NVMe are fed from the 5 V input, whose current
nothing measures. Throttling is the bits of `get_throttled`, now and since start, 0 or 1.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import signal
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from stepscope.record.access import open_device_files
from stepscope.record.sensors.contract import (
    NAN,
    Channel,
    NamedSensor,
    NoSensor,
    OpenSensor,
    Target,
    make_channel,
    no_sensor_from_error,
    rail_channel,
    read_small_file,
)

TIMEOUT_S = 1.0  # of the program; it answers in 24 ms
_GENCMD = 0x00030080  # tag of the property interface: run a command line, answer with text
_DONE = 0x80000000
_TEXT_BYTES = 4096
_PROPERTY = 0xC0086400 if struct.calcsize("P") == 8 else 0xC0046400  # _IOWR(100, 0, char *)
_PROGRAMS = ("usr/bin/vcgencmd", "usr/local/bin/vcgencmd", "opt/vc/bin/vcgencmd")
_REMEDY = "sudo usermod -aG video $USER   (then log in again)"


@dataclass(frozen=True)
class Firmware:
    """A way to ask that has answered: `ask` takes a command line, and raises OSError where there is no answer."""

    source: str
    ask: Callable[[str], str]
    close: Callable[[], None]


def connect(root: Path, command: str) -> Firmware | NoSensor:
    """The mailbox where it answers this command, else the program; else the reason of the first that is there."""
    device = root / "dev/vcio"
    reasons: list[NoSensor] = []
    for way in (_mailbox, _vcgencmd):
        try:
            firmware = way(root)
        except OSError as error:
            reasons.append(
                no_sensor_from_error(error, error.filename or device, _REMEDY if _is_denied(error) else None)
            )
            continue
        try:
            firmware.ask(command)
        except OSError as error:
            firmware.close()
            reasons.append(no_sensor_from_error(error, firmware.source, _REMEDY if _is_denied(error) else None))
            continue
        return firmware
    there = [reason for reason in reasons if reason.reason != "absent"]
    return (
        there[0] if there else NoSensor("absent", f"{device}: not there, and no vcgencmd (Raspberry Pi boards alone)")
    )


def _is_denied(error: OSError) -> bool:
    return error.errno in (errno.EACCES, errno.EPERM)


def _mailbox(root: Path) -> Firmware:
    path = root / "dev/vcio"
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    return Firmware(str(path), partial(_ask_mailbox, file), partial(os.close, file))


def _ask_mailbox(file: int, command: str) -> str:
    """One property message: size, request, tag, size of its value, length, error, value, end tag."""
    message = bytearray(6 * 4 + _TEXT_BYTES + 4)
    struct.pack_into("=6I", message, 0, len(message), 0, _GENCMD, _TEXT_BYTES, 0, 0)
    message[24 : 24 + len(command)] = command.encode()
    fcntl.ioctl(file, _PROPERTY, message)
    if struct.unpack_from("=I", message, 4)[0] != _DONE:
        raise OSError(errno.EIO, "the firmware did not take the message")
    return bytes(message[24 : 24 + _TEXT_BYTES]).split(b"\0", 1)[0].decode(errors="replace")


def _vcgencmd(root: Path) -> Firmware:
    for name in _PROGRAMS:
        path = root / name
        if path.is_file():
            return Firmware(str(path), partial(_run_vcgencmd, path), lambda: None)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(root / _PROGRAMS[0]))


def _run_vcgencmd(program: Path, command: str) -> str:
    """Return the output of a command.

    One that hangs is ended with all that it started. Raises OSError on any failure.
    """
    with subprocess.Popen(
        [str(program), *command.split()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise TimeoutError(errno.ETIMEDOUT, f"no answer to {command} within {TIMEOUT_S} s") from error
    text = output.decode(errors="replace")
    if process.returncode:
        raise OSError(errno.EACCES if "ermission" in text else errno.EIO, text.strip()[:200] or "it failed in silence")
    return text


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


PMIC = "rpi5_pmic"
PMIC_EVERY_NS = 100_000_000
_READ_ADC = "pmic_read_adc"
_PI_5_ALONE = "a Raspberry Pi 5 alone measures its rails"
_METER = "put a meter beside the board: a smart plug or an INA219"


def discover_pmic(root: Path, target: Target) -> OpenSensor | NoSensor:
    """Power of every rail that has a current and a voltage, the voltage of one that has no current (EXT5V, BATT)."""
    firmware = connect(root, _READ_ADC)
    if isinstance(firmware, NoSensor):
        closed = firmware.reason != "absent" and _is_older_pi(root)  # then no right to it would help
        return NoSensor("unsupported", f"{firmware.detail}; {_PI_5_ALONE}", _METER) if closed else firmware
    try:
        adc = parse_adc(firmware.ask(_READ_ADC))
    except OSError as error:
        firmware.close()
        return NoSensor("failed", f"{firmware.source}: {error}")
    powered, bare = list(rail_powers_w(adc)), sorted(adc.voltages_v.keys() - adc.currents_a.keys())
    if not powered:
        firmware.close()
        answer = adc.others[0][:120] if adc.others else "nothing"
        detail = f"{firmware.source} {_READ_ADC}: {_PI_5_ALONE}; the answer was: {answer}"
        return NoSensor("unsupported", detail, _METER)
    channels = (
        *(rail_channel(PMIC, rail, "power", f"{firmware.source} {_READ_ADC}") for rail in powered),
        *(rail_channel(PMIC, rail, "voltage", f"{firmware.source} {_READ_ADC}") for rail in bare),
    )
    return OpenSensor(
        channels, partial(_read, firmware, powered, bare), firmware.close, every_ns=PMIC_EVERY_NS, blocking=True
    )


def _is_older_pi(root: Path) -> bool:
    """Return whether the device tree says that this is a Raspberry Pi before the fifth."""
    with contextlib.suppress(OSError):
        compatible = read_small_file(root / "proc/device-tree/compatible")
        return b"brcm,bcm2" in compatible and b"bcm2712" not in compatible
    return False


def rail_values(adc: Adc, powered: list[str], bare: list[str]) -> list[float]:
    """W of the powered rails and V of the bare ones; NaN for one that this reading lacks."""
    powers = rail_powers_w(adc)
    return [*(powers.get(rail, NAN) for rail in powered), *(adc.voltages_v.get(rail, NAN) for rail in bare)]


def _read(firmware: Firmware, powered: list[str], bare: list[str]) -> list[float]:
    adc = parse_adc(firmware.ask(_READ_ADC))
    if not adc.voltages_v:
        raise ValueError(f"{firmware.source} {_READ_ADC}: no rail in the answer")
    return rail_values(adc, powered, bare)


THROTTLED = "rpi_throttled"
THROTTLED_EVERY_NS = 1_000_000_000
_GET_THROTTLED = "get_throttled"
_FILES = ("sys/devices/platform/soc*/*firmware/get_throttled", "sys/devices/platform/*firmware/get_throttled")


def discover_throttled(root: Path, target: Target) -> OpenSensor | NoSensor:
    """Eight gauges, from the firmware itself, else from the kernel's file.

    Reading the file clears the firmware's history on older kernels, and puts a warning into the log of newer ones.
    """
    firmware = connect(root, _GET_THROTTLED)
    if not isinstance(firmware, NoSensor):
        return _sensor(f"{firmware.source} {_GET_THROTTLED}", partial(firmware.ask, _GET_THROTTLED), firmware.close)
    paths = [path for pattern in _FILES for path in sorted(root.glob(pattern))]
    files, refused = open_device_files(paths[:1], target.clock)
    if not files:
        return no_sensor_from_error(refused[0], paths[0]) if refused and firmware.reason == "absent" else firmware
    path, file = files[0]
    return _sensor(str(path), lambda: file.read(64).decode(errors="replace"), file.close)


def _sensor(source: str, ask: Callable[[], str], close: Callable[[], None]) -> OpenSensor | NoSensor:
    def read() -> list[float]:
        text = ask()
        bits = parse_throttled(text)
        if bits is None:
            raise ValueError(f"{source}: {text.strip()[:80]!r} is not a set of bits")
        return [float(bits >> bit & 1) for bit in THROTTLE_BITS.values()]

    try:
        read()
    except (OSError, ValueError) as error:
        close()
        return (
            no_sensor_from_error(error, source) if isinstance(error, OSError) else NoSensor("unsupported", str(error))
        )
    return OpenSensor(
        tuple(_bit_channel(name, source) for name in THROTTLE_BITS),
        read,
        close,
        every_ns=THROTTLED_EVERY_NS,
        blocking=True,
    )


def _bit_channel(name: str, source: str) -> Channel:
    return make_channel(THROTTLED, f"throttle:{name}", "throttled", "1", source, step_size=1.0)


SENSORS = (NamedSensor(PMIC, discover_pmic), NamedSensor(THROTTLED, discover_throttled))
