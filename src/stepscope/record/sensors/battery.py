"""Batteries that feed the machine: power while discharging, W, and what is left, J or C.

One read of a battery's uevent is one snapshot of it. On mains a battery shows what charges it and not what the
machine takes: power is not read then. The embedded controller refreshes every 1 s to 60 s (found by watching).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from stepscope.record.access.kept_file import KeptFile, close_all, keep_open
from stepscope.record.formats import power_supply
from stepscope.record.formats.attribute import attribute
from stepscope.record.formats.power_supply import Supply
from stepscope.record.sensors.contract import NAN, Channel, Found, Missing, Target, missing_because, numbered

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
_STATES = _Quantity("discharging", "1", power_supply.discharging)
_STORES = (
    _Quantity("stored_energy", "J", power_supply.stored_j),
    _Quantity("charge", "C", power_supply.charge_c),
    _Quantity("voltage", "V", power_supply.volts),
)


def discover(root: Path, target: Target) -> Found | Missing:
    """Power, whether it discharges, and energy, charge and voltage where the driver states them, of each battery."""
    folder = root / "sys/class/power_supply"
    supplies = numbered([path for path in folder.glob("*") if path.is_dir()])
    kept, refused = keep_open([path / "uevent" for path in supplies], target.clock)
    first = {path: _snapshot(file) for path, file in kept}
    batteries = [(path.parent, file) for path, file in kept if _is_battery(path.parent, first[path])]
    close_all([file for path, file in kept if path.parent not in {battery for battery, _ in batteries}])
    if not batteries:
        if refused and not kept:
            return missing_because(refused[0], refused[0].filename or folder)
        return Missing("absent", f"{folder}: no battery of the machine (desktop, board on a mains adapter)")
    files = [file for _, file in batteries]
    stated = [_quantities(first[battery / "uevent"]) for battery, _ in batteries]
    if not any(stated):
        close_all(files)
        return Missing("unsupported", f"{batteries[0][0]}: states neither power, current, energy nor charge")
    mains = [file for _, file in keep_open([path / "online" for path in supplies if _is_mains(path)], target.clock)[0]]
    channels = [
        channel
        for (battery, _), quantities in zip(batteries, stated, strict=True)
        for channel in _channels(battery, quantities, first[battery / "uevent"])
    ]
    return Found(
        tuple(channels),
        partial(_read, files, stated, mains),
        lambda: close_all([*files, *mains]),
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
    power_w = power_supply.discharge_w(supply)
    if power_w is None or (power_w and not power_supply.discharging(supply)):
        return NAN
    return power_w


def _read(files: Sequence[KeptFile], stated: Sequence[Sequence[_Quantity]], mains: Sequence[KeptFile]) -> list[float]:
    supplies = [_snapshot(file) for file in files]
    if all(supply is None for supply in supplies):
        raise OSError("no battery answers")
    plugged = any(_online(file) for file in mains)
    powers = [NAN] * len(supplies) if plugged else powers_w(supplies)
    values: list[float] = []
    for supply, power_w, quantities in zip(supplies, powers, stated, strict=True):
        for quantity in quantities:
            value = None if supply is None else quantity.value(supply)
            values.append(power_w if quantity.quantity == _POWER else NAN if value is None else float(value))
    return values


def _snapshot(file: KeptFile) -> Supply | None:
    try:
        return power_supply.parse(file.read(_PAGE).decode(errors="replace"))
    except OSError:
        return None


def _online(file: KeptFile) -> bool:
    try:
        return file.read(_PAGE).strip() == b"1"
    except OSError:
        return False


def _quantities(supply: Supply | None) -> list[_Quantity]:
    """What a battery can give; nothing where it states a percentage alone."""
    if supply is None:
        return []
    keys = supply.fields.keys()
    flows = bool(keys & {"POWER_NOW", "CURRENT_NOW"})
    known = {"stored_energy": "ENERGY_NOW" in keys, "charge": bool(keys & {"CHARGE_NOW", "CHARGE_COUNTER"})}
    if not flows and not any(known.values()):
        return []
    # A driver may leave out POWER_NOW while the battery is full, so power is a channel all the same.
    power = _Quantity(_POWER, "W", power_supply.discharge_w)
    known["voltage"] = "VOLTAGE_NOW" in keys
    return [power, _STATES, *(store for store in _STORES if known[store.quantity])]


def _channels(battery: Path, quantities: Sequence[_Quantity], supply: Supply | None) -> list[Channel]:
    source = str(battery / "uevent")
    broken = power_supply.broken_units(supply) if supply else ()
    if broken:
        source += f" (its driver states {', '.join(broken)}: converted)"
    channel = Channel(
        id="",
        sensor=NAME,
        quantity="",
        unit="",
        kind="gauge",
        scope=f"battery:{battery.name}",
        parent_scope="system",
        source=source,
        rail=battery.name,
    )
    return [
        replace(channel, id=f"battery.{battery.name}.{one.quantity}", quantity=one.quantity, unit=one.unit)
        for one in quantities
    ]


def _is_battery(folder: Path, supply: Supply | None) -> bool:
    return supply is not None and power_supply.is_battery(supply, attribute(folder / "type"))


def _is_mains(folder: Path) -> bool:
    return attribute(folder / "type") == "Mains"
