"""Power of the supply of a board, W: the TI INA238 (Jetson Thor's VIN) through hwmon, which states whole microwatts."""

from __future__ import annotations

import os
from pathlib import Path

from stepscope.record.access.files import READ_BYTES, is_jetson, natural, unless_all_failed
from stepscope.record.sensors.contract import (
    Channel,
    Found,
    Missing,
    Target,
    attribute,
    close_files,
    missing_because,
    numbered,
    open_files,
)

NAME = "ina238"
_MOST_MICROWATT = 1e10  # 85 V, the most of the chip, x 117 A
_MOST_MILLIVOLT, _MOST_MILLIAMPERE = 85_000.0, 1e6


def discover(root: Path, target: Target) -> Found | Missing:
    """One power gauge a chip, W; where the driver states no power it is voltage x current of the same moment."""
    folders = _folders(root)
    if not folders:
        return Missing("absent", f"{root / 'sys/class/hwmon'}: no INA238 (the board supply of a Jetson Thor)")
    files = [_files(folder) for folder in folders]
    try:
        descriptors = [open_files(paths) for paths in files]
    except OSError as error:
        remedy = f"sudo chmod a+r {' '.join(str(path) for paths in files for path in paths)}"
        return missing_because(error, error.filename or folders[0], remedy)

    def read() -> list[float]:
        return unless_all_failed([watts(chip) for chip in descriptors])

    def close() -> None:
        for chip in descriptors:
            close_files(chip)

    channels = tuple(
        _channel(_rail(root, folder, number), folder, paths)
        for number, (folder, paths) in enumerate(zip(folders, files, strict=True), start=1)
    )
    return Found(channels, read, close)


def watts(chip: list[int]) -> float | OSError:
    """Power by the one file that states it, or by voltage and current; the error where a file gives none."""
    try:
        texts = [os.pread(file, READ_BYTES, 0) for file in chip]
    except OSError as error:
        return error
    if len(texts) == 1:
        return natural(texts[0], _MOST_MICROWATT) / 1e6
    return natural(texts[0], _MOST_MILLIVOLT) / 1e3 * natural(texts[1], _MOST_MILLIAMPERE) / 1e3


def _folders(root: Path) -> list[Path]:
    """Its hwmon folders, by the name that the driver gives, since their numbers change from boot to boot."""
    folders = [*root.glob("sys/class/hwmon/hwmon*"), *root.glob("sys/bus/i2c/drivers/ina238/*-00*/hwmon/hwmon*")]
    places = {path.resolve(): path for path in reversed(folders) if attribute(path / "name") == "ina238"}
    return numbered(list(places.values()))


def _files(folder: Path) -> list[Path]:
    power = folder / "power1_input"
    return [power] if power.exists() else [folder / "in1_input", folder / "curr1_input"]  # in0 is the shunt's


def _rail(root: Path, folder: Path, number: int) -> str:
    """Return the driver's label of a rail; mainline Linux has none for it, and on a Jetson it is VIN."""
    named = attribute(folder / "power1_label") or attribute(folder / "in1_label")
    name = named or ("VIN" if is_jetson(root) else "ina238")
    return name if number == 1 else f"{name}#{number}"


def _channel(rail: str, folder: Path, paths: list[Path]) -> Channel:
    interval = attribute(folder / "update_interval")
    return Channel(
        id=f"rail.{rail}.power",
        sensor=NAME,
        quantity="power",
        unit="W",
        kind="gauge",
        scope=f"rail:{rail}",
        parent_scope="board",
        source=str(paths[0]),
        rail=rail.partition("#")[0],
        refresh_ns=int(interval) * 1_000_000 if interval.isdigit() and len(interval) < 10 else None,
    )
