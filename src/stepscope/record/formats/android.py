"""A phone's battery as Android tells it: Termux' JSON, `dumpsys battery`, and a uevent where the shell may read it.

Units: Termux mV, uA, uAh, nWh, degC; dumpsys mV, uAh, 0.1 degC. Some phones state mA and mAh instead, or Integer.MIN
for "no such property". A phone on a charger shows what charges it and not what it takes: no power is read then.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.record.formats import power_supply

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
        """What the phone takes, W: only while nothing charges it."""
        if self.discharging is not True:
            return None
        if self.stated_w is not None:
            return self.stated_w
        return None if self.current_a is None or self.voltage_v is None else self.current_a * self.voltage_v


def parse(text: str) -> Phone:
    """Termux' JSON, or the lines of dumpsys and of a uevent in any order; raises ValueError where it is neither."""
    if text.lstrip().startswith("{"):
        return _termux(text)
    lines = [line.partition(":") for line in text.splitlines() if not line.startswith(power_supply.PREFIX)]
    stated = {name.strip(): value.strip() for name, colon, value in lines if colon}
    uevent = "\n".join(line for line in text.splitlines() if line.startswith(power_supply.PREFIX))
    if "voltage" not in stated and not uevent:
        raise ValueError(f"no battery in this answer: '{' '.join(text[:60].split())}'")
    return _lines(stated, power_supply.parse(uevent))


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
        stored_j=_within(_number(stated.get("energy")), _HOUR_S * 1e-9, 1e-9, _MOST_J),
        temperature_c=_celsius(_number(stated.get("temperature")), 1.0),
    )


def _lines(stated: Mapping[str, str], supply: power_supply.Supply) -> Phone:
    """What dumpsys says; the rest from the uevent, whose current dumpsys does not have."""
    charge = _coulombs(_number(stated.get("Charge counter")))
    voltage = _volts(_number(stated.get("voltage")))
    return Phone(
        discharging=_discharging(stated, supply),
        voltage_v=power_supply.volts(supply) if voltage is None else voltage,
        charge_c=power_supply.charge_c(supply) if charge is None else charge,
        stored_j=power_supply.stored_j(supply),
        temperature_c=_celsius(_number(stated.get("temperature")), 0.1),
        stated_w=power_supply.discharge_w(supply) or None,  # a phone that is on takes more than 0
    )


def _discharging(stated: Mapping[str, str], supply: power_supply.Supply) -> bool | None:
    """Whether nothing charges the phone: the cables where they are listed, else the status."""
    cables = [stated[name] for name in _POWERED if name in stated]
    if cables:
        return not any(value == "true" for value in cables)
    told = _STATUS.get(stated.get("status", ""))
    return power_supply.discharging(supply) if told is None else told


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
    return _within(abs(value), 1e-6 if abs(value) >= _LEAST_UA else 1e-3, 0.0, _MOST_A)


def _coulombs(value: float | None) -> float | None:
    """uAh, or mAh where it would be too little."""
    if value is None:
        return None
    return _within(value, (1e-6 if value >= _LEAST_UAH else 1e-3) * _HOUR_S, 1e-9, _MOST_C)


def _celsius(value: float | None, scale: float) -> float | None:
    return None if value is None else _within(value, scale, *_CELSIUS)


def _within(value: float | None, scale: float, low: float, high: float) -> float | None:
    return None if value is None or not low <= value * scale <= high else value * scale
