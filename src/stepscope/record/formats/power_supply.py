"""The uevent text of a battery in /sys/class/power_supply, and what can be believed of it.

The kernel's ABI (sysfs-class-power) states uV, uA, uW, uAh and uWh and, since 2020, a negative current while
discharging. Drivers differ: some print milliunits, some the amount without a sign, some wrap below zero. Milliunits
are recognised by the design values, signs are dropped, and what is still implausible then is not read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PREFIX = "POWER_SUPPLY_"
_HOUR_S = 3600.0
# A battery that runs a computer holds more than 0.1 Ah and 0.5 Wh and has 1 V to 100 V. What would be less in the
# units of the ABI is meant in milliunits.
_LEAST_UAH, _LEAST_UWH, _LEAST_UV = 100_000, 500_000, 100_000
_MOST_PER_HOUR = 5  # of its capacity a battery of a device gives in an hour
_EMPTY, _LEAST_C = 0.005, 0.02 * _HOUR_S  # a counter below either is in mAh beside uAh, or counts from switching on
_PLAUSIBLE_V = (1.0, 100.0)
_PLAUSIBLE_W = (0.01, 500.0)
_PLAUSIBLE_A = (0.0, 32.767)  # 64 A is -1.5 A in 16 bits of milliamperes
_PLAUSIBLE_C = (0.0, 1000 * _HOUR_S)
_PLAUSIBLE_J = (0.0, 100_000 * _HOUR_S)


@dataclass(frozen=True)
class Supply:
    """Everything that one uevent says: its values by key, without POWER_SUPPLY_, and the lines that are no pair."""

    fields: dict[str, str]
    others: tuple[str, ...] = ()


def parse(text: str) -> Supply:
    """Read a uevent; of a key that comes twice the last counts, as in the kernel."""
    fields: dict[str, str] = {}
    others: list[str] = []
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and key.strip():
            fields[key.strip().removeprefix(PREFIX)] = value.strip()
        elif line.strip():
            others.append(line.strip())
    return Supply(fields, tuple(others))


def amount(supply: Supply, key: str) -> int | None:
    """A whole number in the driver's unit, its wrap below zero of 32 or 64 bits undone; None where it is not stated."""
    text = supply.fields.get(key, "")
    if not re.fullmatch(r"[+-]?\d{1,20}", text, re.ASCII):
        return None
    number = int(text)
    for modulus in (1 << 32, 1 << 64):
        if modulus - modulus // 4 <= number < modulus:
            return number - modulus
    return number


def volts(supply: Supply) -> float | None:
    """VOLTAGE_NOW, V; None where it is not stated or no battery has it."""
    return _within(_PLAUSIBLE_V, amount(supply, "VOLTAGE_NOW"), _voltage_unit(supply))


def discharge_w(supply: Supply) -> float | None:
    """Power that flows, W, without a sign: POWER_NOW, else CURRENT_NOW x VOLTAGE_NOW; 0 as stated; None: not known."""
    power = amount(supply, "POWER_NOW")
    if power is not None:
        return 0.0 if power == 0 else _within(_PLAUSIBLE_W, abs(power), _energy_unit(supply))
    current, voltage_v = amount(supply, "CURRENT_NOW"), volts(supply)
    if current is None or voltage_v is None:
        return None
    current_a = _within(_PLAUSIBLE_A, abs(current), _current_unit(supply, abs(current)))
    return current_a and _within(_PLAUSIBLE_W, current_a, voltage_v)


def _current_unit(supply: Supply, current: int) -> float:
    """That of the charge; but where milliamperes would empty the battery in minutes, microamperes are meant.

    Qualcomm's older drivers state 2350 mAh beside -395600 uA.
    """
    unit = _charge_unit(supply)
    capacity = _capacity(supply)
    return 1e-6 if unit == 1e-3 and capacity is not None and current > _MOST_PER_HOUR * capacity else unit


def stored_j(supply: Supply) -> float | None:
    """ENERGY_NOW, J."""
    return _within(_PLAUSIBLE_J, amount(supply, "ENERGY_NOW"), _energy_unit(supply) * _HOUR_S)


def charge_c(supply: Supply) -> float | None:
    """CHARGE_NOW, C; CHARGE_COUNTER where only that is stated (phones), unless it counts from some other start."""
    unit = _charge_unit(supply) * _HOUR_S
    if "CHARGE_NOW" in supply.fields:
        return _within(_PLAUSIBLE_C, amount(supply, "CHARGE_NOW"), unit)
    full_c = (_capacity(supply) or 0) * unit
    return _within((max(_LEAST_C, _EMPTY * full_c), _PLAUSIBLE_C[1]), amount(supply, "CHARGE_COUNTER"), unit)


def discharging(supply: Supply) -> bool | None:
    """Whether the battery alone feeds the machine; None where the status is Unknown or missing."""
    status = supply.fields.get("STATUS", "").casefold()
    return None if status in ("", "unknown") else status == "discharging"


def is_battery(supply: Supply, type_file: str = "") -> bool:
    """Whether it feeds the whole machine: no mouse, no charger; an older kernel tells the type in its own file."""
    if supply.fields.get("SCOPE", "").casefold() == "device":
        return False
    kind = supply.fields.get("TYPE", type_file.strip())
    return kind == "Battery" if kind else "STATUS" in supply.fields


def broken_units(supply: Supply) -> tuple[str, ...]:
    """Which quantities the driver states in milliunits, against the ABI."""
    units = {"V": _voltage_unit(supply), "Ah": _charge_unit(supply), "Wh": _energy_unit(supply)}
    return tuple(f"m{name} for u{name}" for name, unit in units.items() if unit == 1e-3)


def _voltage_unit(supply: Supply) -> float:
    return _unit(supply, ("VOLTAGE_NOW", "VOLTAGE_MIN_DESIGN", "VOLTAGE_MAX_DESIGN"), _LEAST_UV) or 1e-6


def _charge_unit(supply: Supply) -> float:
    return _unit(supply, ("CHARGE_FULL_DESIGN", "CHARGE_FULL"), _LEAST_UAH) or _voltage_unit(supply)


def _capacity(supply: Supply) -> int | None:
    return amount(supply, "CHARGE_FULL_DESIGN") or amount(supply, "CHARGE_FULL")


def _energy_unit(supply: Supply) -> float:
    return _unit(supply, ("ENERGY_FULL_DESIGN", "ENERGY_FULL"), _LEAST_UWH) or _voltage_unit(supply)


def _unit(supply: Supply, keys: tuple[str, ...], least: int) -> float | None:
    """The SI unit that a driver's number has, from the first of the keys that states one; None where none does."""
    for key in keys:
        number = amount(supply, key)
        if number is not None and number > 0:
            return 1e-3 if number < least else 1e-6
    return None


def _within(plausible: tuple[float, float], number: float | None, unit: float) -> float | None:
    if number is None:
        return None
    value = number * unit
    return value if plausible[0] <= value <= plausible[1] else None
