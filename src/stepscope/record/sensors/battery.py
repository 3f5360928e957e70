"""Batteries that feed the machine: power while discharging, W, and what is left, J or C.

One read of a battery's uevent is one snapshot of it. On mains a battery shows what charges it and not what the
machine takes: power is not read then. The embedded controller refreshes every 1 s to 60 s (found by watching).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stepscope.record.access import DeviceFile, close_device_files, open_device_files
from stepscope.record.sensors.contract import (
    NAN,
    Channel,
    NoSensor,
    OpenSensor,
    Target,
    no_sensor_from_error,
    numbered,
    read_line_or_empty,
)

# The kernel's ABI (sysfs-class-power) states uV, uA, uW, uAh and uWh and, since 2020, a negative current while
# discharging. Drivers differ: some print milliunits, some the amount without a sign, some wrap below zero. Milliunits
# are recognised by the design values, signs are dropped, and what is still implausible then is not read.

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


def raw_amount(supply: Supply, key: str) -> int | None:
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
    return _plausible_or_none(_PLAUSIBLE_V, raw_amount(supply, "VOLTAGE_NOW"), _voltage_unit(supply))


def discharge_w(supply: Supply) -> float | None:
    """Power that flows, W, without a sign: POWER_NOW, else CURRENT_NOW x VOLTAGE_NOW; 0 as stated; None: not known."""
    power = raw_amount(supply, "POWER_NOW")
    if power is not None:
        return 0.0 if power == 0 else _plausible_or_none(_PLAUSIBLE_W, abs(power), _energy_unit(supply))
    current, voltage_v = raw_amount(supply, "CURRENT_NOW"), volts(supply)
    if current is None or voltage_v is None:
        return None
    current_a = _plausible_or_none(_PLAUSIBLE_A, abs(current), _current_unit(supply, abs(current)))
    return current_a and _plausible_or_none(_PLAUSIBLE_W, current_a, voltage_v)


def _current_unit(supply: Supply, current: int) -> float:
    """Return the unit of the current: that of the charge, but uA where mA would empty the battery in minutes.

    Qualcomm's older drivers state 2350 mAh beside -395600 uA.
    """
    unit = _charge_unit(supply)
    capacity = _capacity(supply)
    return 1e-6 if unit == 1e-3 and capacity is not None and current > _MOST_PER_HOUR * capacity else unit


def stored_j(supply: Supply) -> float | None:
    """ENERGY_NOW, J."""
    return _plausible_or_none(_PLAUSIBLE_J, raw_amount(supply, "ENERGY_NOW"), _energy_unit(supply) * _HOUR_S)


def charge_c(supply: Supply) -> float | None:
    """CHARGE_NOW, C; CHARGE_COUNTER where only that is stated (phones), unless it counts from some other start."""
    unit = _charge_unit(supply) * _HOUR_S
    if "CHARGE_NOW" in supply.fields:
        return _plausible_or_none(_PLAUSIBLE_C, raw_amount(supply, "CHARGE_NOW"), unit)
    full_c = (_capacity(supply) or 0) * unit
    return _plausible_or_none(
        (max(_LEAST_C, _EMPTY * full_c), _PLAUSIBLE_C[1]), raw_amount(supply, "CHARGE_COUNTER"), unit
    )


def discharging(supply: Supply) -> bool | None:
    """Return whether the battery alone feeds the machine; None where the status is Unknown or missing."""
    status = supply.fields.get("STATUS", "").casefold()
    return None if status in ("", "unknown") else status == "discharging"


def is_battery(supply: Supply, type_file: str = "") -> bool:
    """Return whether it feeds the whole machine: no mouse, no charger.

    An older kernel tells the type in its own file.
    """
    if supply.fields.get("SCOPE", "").casefold() == "device":
        return False
    kind = supply.fields.get("TYPE", type_file.strip())
    return kind == "Battery" if kind else "STATUS" in supply.fields


def broken_units(supply: Supply) -> tuple[str, ...]:
    """Return the quantities that the driver states in milliunits, against the ABI."""
    units = {"V": _voltage_unit(supply), "Ah": _charge_unit(supply), "Wh": _energy_unit(supply)}
    return tuple(f"m{name} for u{name}" for name, unit in units.items() if unit == 1e-3)


def _voltage_unit(supply: Supply) -> float:
    return _si_unit_of(supply, ("VOLTAGE_NOW", "VOLTAGE_MIN_DESIGN", "VOLTAGE_MAX_DESIGN"), _LEAST_UV) or 1e-6


def _charge_unit(supply: Supply) -> float:
    return _si_unit_of(supply, ("CHARGE_FULL_DESIGN", "CHARGE_FULL"), _LEAST_UAH) or _voltage_unit(supply)


def _capacity(supply: Supply) -> int | None:
    return raw_amount(supply, "CHARGE_FULL_DESIGN") or raw_amount(supply, "CHARGE_FULL")


def _energy_unit(supply: Supply) -> float:
    return _si_unit_of(supply, ("ENERGY_FULL_DESIGN", "ENERGY_FULL"), _LEAST_UWH) or _voltage_unit(supply)


def _si_unit_of(supply: Supply, keys: tuple[str, ...], least: int) -> float | None:
    """The SI unit that a driver's number has, from the first of the keys that states one; None where none does."""
    for key in keys:
        number = raw_amount(supply, key)
        if number is not None and number > 0:
            return 1e-3 if number < least else 1e-6
    return None


def _plausible_or_none(plausible: tuple[float, float], number: float | None, unit: float) -> float | None:
    if number is None:
        return None
    value = number * unit
    return value if plausible[0] <= value <= plausible[1] else None


NAME = "battery"
EVERY_NS = 100_000_000
_PAGE = 4096  # the kernel's limit of a uevent


@dataclass(frozen=True)
class _Quantity:
    """A channel of each battery: how it is called, and how it is read from a snapshot."""

    quantity: str
    unit: str
    value: Callable[[Supply], float | None]


_POWER = "power"
_STATES = _Quantity("discharging", "1", discharging)
_STORES = (
    _Quantity("stored_energy", "J", stored_j),
    _Quantity("charge", "C", charge_c),
    _Quantity("voltage", "V", volts),
)


def discover(root: Path, target: Target) -> OpenSensor | NoSensor:
    """Power, whether it discharges, and energy, charge and voltage where the driver states them, of each battery."""
    folder = root / "sys/class/power_supply"
    supplies = numbered([path for path in folder.glob("*") if path.is_dir()])
    opened_files, refused = open_device_files([path / "uevent" for path in supplies], target.clock)
    first = {path: _read_supply(file) for path, file in opened_files}
    batteries = [(path.parent, file) for path, file in opened_files if _is_battery(path.parent, first[path])]
    close_device_files(
        [file for path, file in opened_files if path.parent not in {battery for battery, _ in batteries}]
    )
    if not batteries:
        if refused and not opened_files:
            return no_sensor_from_error(refused[0], refused[0].filename or folder)
        return NoSensor("absent", f"{folder}: no battery of the machine (desktop, board on a mains adapter)")
    files = [file for _, file in batteries]
    stated = [_quantities(first[battery / "uevent"]) for battery, _ in batteries]
    if not any(stated):
        close_device_files(files)
        return NoSensor("unsupported", f"{batteries[0][0]}: states neither power, current, energy nor charge")
    chargers = [
        file for _, file in open_device_files([path / "online" for path in _chargers(supplies)], target.clock)[0]
    ]
    channels = [
        channel
        for (battery, _), quantities in zip(batteries, stated, strict=True)
        for channel in _channels(battery, quantities, first[battery / "uevent"])
    ]
    return OpenSensor(
        tuple(channels),
        partial(_read, files, stated, chargers),
        lambda: close_device_files([*files, *chargers]),
        every_ns=EVERY_NS,
        blocking=True,  # the kernel asks the embedded controller, which takes milliseconds
    )


def powers_w(supplies: Sequence[Supply | None]) -> list[float]:
    """Power out of each battery, W; NaN unless it discharges.

    0 W is believed of a battery only beside another one that feeds the machine: a machine that runs takes more.
    """
    powers = [_power_w(supply) for supply in supplies]
    return [NAN if power == 0 and not any(other > 0 for other in powers) else power for power in powers]


def _power_w(supply: Supply | None) -> float:
    if supply is None:
        return NAN
    power_w = discharge_w(supply)
    if power_w is None or (power_w and not discharging(supply)):
        return NAN
    return power_w


def _read(
    files: Sequence[DeviceFile], stated: Sequence[Sequence[_Quantity]], chargers: Sequence[DeviceFile]
) -> list[float]:
    supplies = [_read_supply(file) for file in files]
    if all(supply is None for supply in supplies):
        raise OSError("no battery answers")
    plugged = any(_online(file) for file in chargers)
    powers = [NAN] * len(supplies) if plugged else powers_w(supplies)
    values: list[float] = []
    for supply, power_w, quantities in zip(supplies, powers, stated, strict=True):
        for quantity in quantities:
            value = None if supply is None else quantity.value(supply)
            values.append(power_w if quantity.quantity == _POWER else NAN if value is None else float(value))
    return values


def _read_supply(file: DeviceFile) -> Supply | None:
    try:
        return parse(file.read(_PAGE).decode(errors="replace"))
    except OSError:
        return None


def _online(file: DeviceFile) -> bool:
    try:
        return file.read(_PAGE).strip() in (b"1", b"2")  # 2: at a voltage that the machine has chosen
    except OSError:
        return False


def _quantities(supply: Supply | None) -> list[_Quantity]:
    """Return the channels of a battery; nothing where it states a percentage alone."""
    if supply is None:
        return []
    keys = supply.fields.keys()
    flows = bool(keys & {"POWER_NOW", "CURRENT_NOW"})
    available = {"stored_energy": "ENERGY_NOW" in keys, "charge": bool(keys & {"CHARGE_NOW", "CHARGE_COUNTER"})}
    if not flows and not any(available.values()):
        return []
    # A driver may leave out POWER_NOW while the battery is full, so power is a channel all the same.
    power = _Quantity(_POWER, "W", discharge_w)
    available["voltage"] = "VOLTAGE_NOW" in keys
    return [power, _STATES, *(store for store in _STORES if available[store.quantity])]


def _channels(battery: Path, quantities: Sequence[_Quantity], supply: Supply | None) -> list[Channel]:
    source = str(battery / "uevent")
    broken = broken_units(supply) if supply else ()
    if broken:
        source += f" (its driver states {', '.join(broken)}: converted)"
    scope = f"battery:{battery.name}"
    return [
        Channel(f"battery.{battery.name}.{name}", NAME, name, unit, "gauge", scope, source, battery.name, "system")
        for name, unit in ((quantity.quantity, quantity.unit) for quantity in quantities)
    ]


def _is_battery(folder: Path, supply: Supply | None) -> bool:
    return supply is not None and is_battery(supply, read_line_or_empty(folder / "type"))


def _chargers(supplies: Sequence[Path]) -> list[Path]:
    """Return the supplies that tell whether something beside the battery feeds the machine.

    Those by USB and radio count where there is no adapter: beside one, a port may call itself on that feeds others.
    """
    types = {path: read_line_or_empty(path / "type") for path in supplies}
    adapters = [path for path, kind in types.items() if kind == "Mains"]
    return adapters or [path for path, kind in types.items() if kind.startswith("USB") or kind == "Wireless"]
