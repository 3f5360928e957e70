"""A phone's battery, through Termux on the phone itself or through adb from beside it.

A phone that was named is read twice a second; the phone that this runs on, unnamed, every 10 s: each read is a process.

The gauge refreshes 0.7 to 5 times a second and is not highly accurate: compare over minutes.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.record.sensors import battery
from stepscope.record.sensors.contract import NAN, Channel, Meter, NoSensor, OpenSensor, Target, make_channel

NAME = "android"
EVERY_NS, UNNAMED_EVERY_NS = 500_000_000, 10_000_000_000
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
_COMPLAINTS: tuple[tuple[str, NoSensor], ...] = (
    ("unauthorized", NoSensor("denied", "", "unlock the phone and allow this computer (USB debugging)")),
    (
        "no permissions",
        NoSensor("denied", "", "sudo apt install android-sdk-platform-tools-common, then plug in again"),
    ),
    ("not found", NoSensor("absent", "", "adb devices   (lists the serials that adb sees)")),
    ("no devices", NoSensor("absent", "", "turn on USB debugging, plug the phone in, then: adb devices")),
    ("offline", NoSensor("failed", "", "adb reconnect")),
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


def discover(root: Path, target: Target) -> OpenSensor | NoSensor:
    """Power while nothing charges the phone, voltage, charge and temperature, of each phone that was named."""
    if root != Path("/"):
        return NoSensor("absent", f"{root}: a saved tree has no phone beside it")
    batteries = _batteries(target.meters)
    if not batteries:
        return NoSensor(
            "absent", f"{root}: no phone was named", "--plug adb=SERIAL, or --plug termux on the phone itself"
        )
    answers = [_read_phone(battery) for battery in batteries]
    missing = [answer for answer in answers if isinstance(answer, NoSensor)]
    if missing:
        return missing[0]
    phones = [answer for answer in answers if isinstance(answer, Phone)]
    if all(phone.discharging is False for phone in phones) or not any(map(_stated_quantities, phones)):
        return NoSensor("unsupported", "the phone is being charged: its battery does not show what it takes", _UNPLUG)
    quantities = [
        (battery, place)
        for battery, phone in zip(batteries, phones, strict=True)
        for place in _stated_quantities(phone)
    ]
    every_ns = EVERY_NS if batteries[0].meter in target.meters else UNNAMED_EVERY_NS
    return OpenSensor(
        tuple(_channel(*quantity) for quantity in quantities),
        _reader(quantities),
        lambda: None,
        every_ns=every_ns,
        blocking=True,
    )


def _reader(quantities: Sequence[tuple[_Battery, int]]) -> Callable[[], list[float]]:
    def read() -> list[float]:
        answers = {battery: _read_phone(battery) for battery in dict.fromkeys(battery for battery, _ in quantities)}
        lost = [answer.detail for answer in answers.values() if isinstance(answer, NoSensor)]
        if len(lost) == len(answers):
            raise OSError("; ".join(lost))
        return [_value(answers[battery], place) for battery, place in quantities]

    return read


def _batteries(meters: Sequence[Meter]) -> list[_Battery]:
    """The phones that were named, or the one that this runs on."""
    named = [_Battery(meter, ("adb", "-s", meter.address, "shell", _SHELL)) for meter in meters if meter.kind == "adb"]
    named += [_Battery(meter, (TERMUX,)) for meter in meters if meter.kind == "termux"]
    if not named and shutil.which(TERMUX) is not None:
        named = [_Battery(Meter("termux", "", "phone"), (TERMUX,))]
    return named


def _read_phone(battery: _Battery) -> Phone | NoSensor:
    """One reading of a phone, or why there is none."""
    try:
        completed = subprocess.run(
            battery.argv, capture_output=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        remedy = "pkg install termux-api, and the Termux:API app" if battery.tool == TERMUX else "sudo apt install adb"
        return NoSensor("absent", f"{battery.tool} is not installed", remedy)
    except subprocess.TimeoutExpired:
        remedy = "install and open the Termux:API app" if battery.tool == TERMUX else "adb reconnect"
        return NoSensor("failed", f"{battery.tool} did not answer within {TIMEOUT_S:g} s", remedy)
    except OSError as error:
        return NoSensor("failed", f"{battery.tool}: {error.strerror or error}")
    if completed.returncode != 0:
        return _reason_from_stderr(battery, completed.stderr.decode(errors="replace"), completed.returncode)
    try:
        return parse_battery(completed.stdout.decode(errors="replace"))
    except ValueError as error:
        return NoSensor("failed", f"{battery.tool}: {error}")


def _reason_from_stderr(battery: _Battery, stderr: str, code: int) -> NoSensor:
    complaint = " ".join(stderr.split())[:300] or f"exit code {code}"
    for word, missing in _COMPLAINTS:
        if word in complaint:
            return NoSensor(missing.reason, f"{battery.tool}: {complaint}", missing.remedy)
    return NoSensor("failed", f"{battery.tool}: {complaint}")


def _stated_quantities(phone: Phone) -> list[int]:
    return [index for index, (_, _, value) in enumerate(_QUANTITIES) if value(phone) is not None]


def _value(answer: Phone | NoSensor, place: int) -> float:
    if isinstance(answer, NoSensor):
        return NAN
    value = _QUANTITIES[place][2](answer)
    return NAN if value is None else float(value)


def _channel(battery: _Battery, place: int) -> Channel:
    quantity, unit, _ = _QUANTITIES[place]
    source = battery.tool if battery.tool == TERMUX else f"adb -s {battery.meter.address} shell dumpsys battery"
    return make_channel(NAME, f"battery:{battery.meter.name}", quantity, unit, source)


# Units: Termux mV, uA, uAh, nWh, degC; dumpsys mV, uAh, 0.1 degC. Some phones state mA and mAh instead, or Integer.MIN
# for "no such property". A phone on a charger shows what charges it and not what it takes: no power is read then.

_HOUR_S = 3600.0
_PHONE_V = (2.0, 20.0)  # one cell to four
_MOST_A, _MOST_C, _MOST_J = 20.0, 50 * _HOUR_S, 500 * _HOUR_S
_LEAST_UA = 10_000  # no phone that trains lives on less than 10 mA: the number is in mA
_LEAST_UAH = 20_000  # no phone that is on has less than 0.02 Ah: the number is in mAh
_CELSIUS = (-40.0, 120.0)
_DECIMAL = re.compile(r"\s*[+-]?[0-9]{1,20}(?:\.[0-9]{0,20})?\s*")
_POWERED = ("AC powered", "USB powered", "Wireless powered", "Dock powered")
_STATUS = {"2": False, "3": True}  # BatteryManager: charging, discharging; 4 and 5 say nothing of the cable


@dataclass(frozen=True)
class Phone:
    """One reading, None where it is not stated or cannot be true; `current_a` and `power_w` without a sign."""

    discharging: bool | None = None
    voltage_v: float | None = None
    current_a: float | None = None
    charge_c: float | None = None
    stored_j: float | None = None
    temperature_c: float | None = None
    stated_w: float | None = None

    @property
    def power_w(self) -> float | None:
        """Return the power of the phone, W: only while nothing charges it."""
        if self.discharging is not True:
            return None
        if self.stated_w is not None:
            return self.stated_w
        return None if self.current_a is None or self.voltage_v is None else self.current_a * self.voltage_v


def parse_battery(text: str) -> Phone:
    """Termux' JSON, or the lines of dumpsys and of a uevent in any order; raises ValueError where it is neither."""
    if text.lstrip().startswith("{"):
        return _termux(text)
    lines = [line.partition(":") for line in text.splitlines() if not line.startswith(battery.PREFIX)]
    stated = {name.strip(): value.strip() for name, colon, value in lines if colon}
    uevent = "\n".join(line for line in text.splitlines() if line.startswith(battery.PREFIX))
    if "voltage" not in stated and not uevent:
        raise ValueError(f"no battery in this answer: '{' '.join(text[:60].split())}'")
    return _lines(stated, battery.parse(uevent))


def _termux(text: str) -> Phone:
    try:
        stated = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError("half an answer of termux-battery-status") from error
    if not isinstance(stated, dict) or not {"percentage", "voltage", "current", "status"} & set(stated):
        raise ValueError("this JSON is not from termux-battery-status")
    plugged, status = str(stated.get("plugged", "")).upper(), str(stated.get("status", "")).upper()
    unplugged = plugged == "UNPLUGGED" if plugged else None
    return Phone(
        discharging=(status == "DISCHARGING" if status else None) if unplugged is None else unplugged,
        voltage_v=_volts(_number(stated.get("voltage"))),
        current_a=_amperes(_number(stated.get("current"))),
        charge_c=_coulombs(_number(stated.get("charge_counter"))),
        stored_j=_scaled_if_plausible(_number(stated.get("energy")), _HOUR_S * 1e-9, 1e-9, _MOST_J),
        temperature_c=_celsius(_number(stated.get("temperature")), 1.0),
    )


def _lines(stated: Mapping[str, str], supply: battery.Supply) -> Phone:
    """Read what dumpsys says; the rest from the uevent, whose current dumpsys does not have."""
    charge = _coulombs(_number(stated.get("Charge counter")))
    voltage = _volts(_number(stated.get("voltage")))
    return Phone(
        discharging=_discharging(stated, supply),
        voltage_v=battery.volts(supply) if voltage is None else voltage,
        charge_c=battery.charge_c(supply) if charge is None else charge,
        stored_j=battery.stored_j(supply),
        temperature_c=_celsius(_number(stated.get("temperature")), 0.1),
        stated_w=battery.discharge_w(supply) or None,  # a phone that is on takes more than 0
    )


def _discharging(stated: Mapping[str, str], supply: battery.Supply) -> bool | None:
    """Return whether nothing charges the phone: the cables where they are listed, else the status."""
    cables = [stated[name] for name in _POWERED if name in stated]
    if cables:
        return not any(value == "true" for value in cables)
    unplugged_now = _STATUS.get(stated.get("status", ""))
    return battery.discharging(supply) if unplugged_now is None else unplugged_now


def _number(value: object) -> float | None:
    """A number, or the text of one (Termux quotes some); None for everything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, str) and _DECIMAL.fullmatch(value) is None:
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _volts(value: float | None) -> float | None:
    """V, mV or uV by its size: the ranges of a phone's battery do not meet."""
    for scale in (1.0, 1e-3, 1e-6):
        if value is not None and _PHONE_V[0] <= value * scale <= _PHONE_V[1]:
            return value * scale
    return None


def _amperes(value: float | None) -> float | None:
    """uA, or mA where it would be too little; drivers do not agree on the sign, and 0 is a gauge that does not tell."""
    if value is None or value == 0:
        return None
    return _scaled_if_plausible(abs(value), 1e-6 if abs(value) >= _LEAST_UA else 1e-3, 0.0, _MOST_A)


def _coulombs(value: float | None) -> float | None:
    """uAh, or mAh where it would be too little."""
    if value is None:
        return None
    return _scaled_if_plausible(value, (1e-6 if value >= _LEAST_UAH else 1e-3) * _HOUR_S, 1e-9, _MOST_C)


def _celsius(value: float | None, scale: float) -> float | None:
    return None if value is None else _scaled_if_plausible(value, scale, *_CELSIUS)


def _scaled_if_plausible(value: float | None, scale: float, low: float, high: float) -> float | None:
    return None if value is None or not low <= value * scale <= high else value * scale
