"""A phone's battery, through Termux on the phone itself or through adb from beside it; read twice a second.

The gauge refreshes 0.7 to 5 times a second and is not highly accurate: compare over minutes.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.record.access.probing import channel_id
from stepscope.record.formats.android import Phone, parse
from stepscope.record.sensors.contract import NAN, Channel, Found, Meter, Missing, Target

NAME = "android"
EVERY_NS = 500_000_000
TIMEOUT_S = 1.5
TERMUX = "termux-battery-status"
_SHELL = (
    "dumpsys battery; cat /sys/class/power_supply/battery/uevent /sys/class/power_supply/bms/uevent 2>/dev/null; true"
)
_UNPLUG = "unplug the phone; adb goes on over Wi-Fi: adb tcpip 5555, unplug, adb connect PHONE-ADDRESS:5555"
_QUANTITIES: tuple[tuple[str, str, Callable[[Phone], float | None]], ...] = (
    ("power", "W", lambda phone: phone.power_w),
    ("discharging", "1", lambda phone: phone.discharging),
    ("voltage", "V", lambda phone: phone.voltage_v),
    ("charge", "C", lambda phone: phone.charge_c),
    ("stored_energy", "J", lambda phone: phone.stored_j),
    ("temperature", "degC", lambda phone: phone.temperature_c),
)
# What adb and Termux say on stderr -> what it means and what to do.
_COMPLAINTS: tuple[tuple[str, Missing], ...] = (
    ("unauthorized", Missing("denied", "", "unlock the phone and allow this computer (USB debugging)")),
    ("no permissions", Missing("denied", "", "sudo apt install android-sdk-platform-tools-common, then plug in again")),
    ("not found", Missing("absent", "", "adb devices   (lists the serials that adb sees)")),
    ("no devices", Missing("absent", "", "turn on USB debugging, plug the phone in, then: adb devices")),
    ("offline", Missing("failed", "", "adb reconnect")),
)


@dataclass(frozen=True)
class _Battery:
    """A phone's battery and the command that shows it."""

    meter: Meter
    argv: tuple[str, ...]

    @property
    def tool(self) -> str:
        """The program that is run."""
        return self.argv[0]


def discover(root: Path, target: Target) -> Found | Missing:
    """Power while nothing charges the phone, voltage, charge and temperature, of each phone that was named."""
    if root != Path("/"):
        return Missing("absent", f"{root}: a saved tree has no phone beside it")
    batteries = _batteries(target.meters)
    if not batteries:
        return Missing(
            "absent", f"{root}: no phone was named", "--plug adb=SERIAL, or --plug termux on the phone itself"
        )
    answers = [_ask(battery) for battery in batteries]
    missing = [answer for answer in answers if isinstance(answer, Missing)]
    if missing:
        return missing[0]
    phones = [answer for answer in answers if isinstance(answer, Phone)]
    if all(phone.discharging is False for phone in phones) or not any(map(_stated, phones)):
        return Missing("unsupported", "the phone is being charged: its battery does not show what it takes", _UNPLUG)
    kept = [(battery, place) for battery, phone in zip(batteries, phones, strict=True) for place in _stated(phone)]
    return Found(tuple(_channel(*each) for each in kept), _reader(kept), lambda: None, every_ns=EVERY_NS, blocking=True)


def _reader(kept: Sequence[tuple[_Battery, int]]) -> Callable[[], list[float]]:
    def read() -> list[float]:
        answers = {battery: _ask(battery) for battery in dict.fromkeys(battery for battery, _ in kept)}
        lost = [answer.detail for answer in answers.values() if isinstance(answer, Missing)]
        if len(lost) == len(answers):
            raise OSError("; ".join(lost))
        return [_value(answers[battery], place) for battery, place in kept]

    return read


def _batteries(meters: Sequence[Meter]) -> list[_Battery]:
    """The phones that were named, or the one that this runs on."""
    named = [_Battery(meter, ("adb", "-s", meter.address, "shell", _SHELL)) for meter in meters if meter.kind == "adb"]
    named += [_Battery(meter, (TERMUX,)) for meter in meters if meter.kind == "termux"]
    if not named and shutil.which(TERMUX) is not None:
        named = [_Battery(Meter("termux", "", "phone"), (TERMUX,))]
    return named


def _ask(battery: _Battery) -> Phone | Missing:
    """One reading of a phone, or why there is none."""
    try:
        done = subprocess.run(
            battery.argv, capture_output=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        remedy = "pkg install termux-api, and the Termux:API app" if battery.tool == TERMUX else "sudo apt install adb"
        return Missing("absent", f"{battery.tool} is not installed", remedy)
    except subprocess.TimeoutExpired:
        remedy = "install and open the Termux:API app" if battery.tool == TERMUX else "adb reconnect"
        return Missing("failed", f"{battery.tool} did not answer within {TIMEOUT_S:g} s", remedy)
    except OSError as error:
        return Missing("failed", f"{battery.tool}: {error.strerror or error}")
    if done.returncode != 0:
        return _complaint(battery, done.stderr.decode(errors="replace"), done.returncode)
    try:
        return parse(done.stdout.decode(errors="replace"))
    except ValueError as error:
        return Missing("failed", f"{battery.tool}: {error}")


def _complaint(battery: _Battery, stderr: str, code: int) -> Missing:
    said = " ".join(stderr.split())[:300] or f"exit code {code}"
    for word, missing in _COMPLAINTS:
        if word in said:
            return Missing(missing.reason, f"{battery.tool}: {said}", missing.remedy)
    return Missing("failed", f"{battery.tool}: {said}")


def _stated(phone: Phone) -> list[int]:
    return [place for place, (_, _, value) in enumerate(_QUANTITIES) if value(phone) is not None]


def _value(answer: Phone | Missing, place: int) -> float:
    if isinstance(answer, Missing):
        return NAN
    value = _QUANTITIES[place][2](answer)
    return NAN if value is None else float(value)


def _channel(battery: _Battery, place: int) -> Channel:
    quantity, unit, _ = _QUANTITIES[place]
    scope = f"battery:{battery.meter.name}"
    return Channel(
        id=channel_id(scope, quantity),
        sensor=NAME,
        quantity=quantity,
        unit=unit,
        kind="gauge",
        scope=scope,
        parent_scope="system",
        source=battery.tool if battery.tool == TERMUX else f"adb -s {battery.meter.address} shell dumpsys battery",
    )
