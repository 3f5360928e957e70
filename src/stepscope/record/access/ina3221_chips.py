"""The INA3221 chips of a Jetson as its drivers lay them out in sysfs: `ina3221x` (iio) and `ina3221` (hwmon)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stepscope.record.formats import device_tree
from stepscope.record.formats.attribute import attribute, content
from stepscope.record.formats.ina3221 import Timing, configured_timing, stated_timing
from stepscope.record.formats.sysfs import natural
from stepscope.record.sensors.contract import numbered

_UNCONNECTED = ("NC", "(null)", "sum of shunt voltages")


@dataclass(frozen=True)
class Rail:
    """A supply line as the driver names it, and the files that state it, read in this order."""

    label: str
    place: str  # of the chip and its input: 1-0040.1
    files: tuple[Path, ...]
    shunt_ohm: float | None

    @property
    def quantities(self) -> tuple[str, ...]:
        """What one read of this rail gives."""
        if len(self.files) == 2:
            return ("power", "current")
        return ("power", "voltage", "current") if self.files[0].name.startswith("ui_") else ("power",)


@dataclass(frozen=True)
class Chip:
    """One INA3221 with what is connected to it."""

    device: str  # bus and address: 1-0041
    rails: tuple[Rail, ...]
    timing: Timing
    mode: Path | None = None  # JetPack 4: 0 says that it is asleep between reads, and then 0 mW means nothing


def find_chips(root: Path) -> Iterator[Chip]:
    """Every INA3221 below root, each once; raises OSError where a name cannot be read."""
    drivers = root / "sys/bus/i2c/drivers"
    for device in sorted(drivers.glob("ina3221x/*-00*")):
        folders = [path for path in sorted(device.glob("iio*device*")) if any(path.glob("rail_name_[0-2]"))]
        yield from (_iio_chip(device, folder) for folder in folders[:1])
    folders = [*drivers.glob("ina3221/*-00*/hwmon/hwmon*"), *_of_class(root)]
    places = {folder.resolve(): folder for folder in reversed(folders)}
    for real, folder in sorted(places.items()):
        yield _hwmon_chip(real.parent.parent.name if real.parent.name == "hwmon" else real.name, folder)


def _of_class(root: Path) -> list[Path]:
    """Where the links of the bus are not there (a saved tree), the class or the device itself may be."""
    folders = [*root.glob("sys/class/hwmon/hwmon*"), *root.glob("sys/devices/platform/*/i2c-*/*-00*/hwmon/hwmon*")]
    return [folder for folder in folders if attribute(folder / "name") == "ina3221"]


def _iio_chip(device: Path, folder: Path) -> Chip:
    nodes = list((device / "of_node").glob("channel@*"))
    shunts = {device_tree.cell(node / "reg"): device_tree.cell(node / "ti,shunt-resistor-mohm") for node in nodes}
    rails = []
    for path in numbered(list(folder.glob("rail_name_[0-2]"))):
        number = int(path.name[-1])
        label = _label(path)
        both, power = folder / f"ui_input_{number}", folder / f"in_power{number}_input"
        file = both if both.exists() else power
        if label not in _UNCONNECTED and file.exists():
            milliohm = shunts.get(number)
            place = f"{device.name}.{number}"
            rails.append(Rail(label or place, place, (file,), milliohm / 1000 if milliohm else None))
    mode = folder / "running_mode"
    configured = configured_timing(device_tree.cell(device / "of_node/ti,continuous-config"))
    return Chip(device.name, tuple(rails), configured, mode if mode.exists() else None)


def _hwmon_chip(device: str, folder: Path) -> Chip:
    rails = []
    for number in (1, 2, 3):  # 4 to 6 are the shunts of the same inputs, 7 their sum
        current, voltage = folder / f"curr{number}_input", folder / f"in{number}_input"
        path = folder / f"in{number}_label"
        label = _label(path) if path.exists() else ""
        enabled = _stated(folder / f"in{number}_enable") != 0
        if label not in _UNCONNECTED and enabled and current.exists() and voltage.exists():
            microohm = _stated(folder / f"shunt{number}_resistor")
            place = f"{device}.{number}"
            rails.append(Rail(label or place, place, (current, voltage), microohm / 1e6 if microohm else None))
    return Chip(device, tuple(rails), stated_timing(_stated(folder / "samples"), _stated(folder / "update_interval")))


def _label(path: Path) -> str:
    return content(path).decode(errors="replace").strip()


def _stated(path: Path) -> int | None:
    try:
        value = natural(content(path), 1e9)
    except OSError:
        return None
    return None if math.isnan(value) else int(value)
