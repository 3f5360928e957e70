"""Temperatures of chips under /sys/class/hwmon, degrees Celsius: an LM75 on the board, coretemp and k10temp of a PC.

Files and units as in the kernel's hwmon/sysfs-interface. Chips that are no more than copies of a thermal zone are left
to the zones; not read are power meters (their die is not what trains), batteries, drives, network cards, and Super-I/O
chips, which state a number for an input with nothing connected.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stepscope.record.access.files import READ_BYTES, DeviceFile, close_device_files, unless_all_failed
from stepscope.record.sensors.contract import (
    Channel,
    Found,
    Missing,
    Target,
    attribute,
    missing_because,
)
from stepscope.record.sensors.hwmon import POWER_CHIPS, Chip, chips, device_file_finder
from stepscope.record.sensors.number_files import celsius

NAME = "hwmon_temperature"
_EVERY_NS = 1_000_000_000  # a transfer on I2C is dear, and a chip of this kind converts a few times a second
_NO_DEVICE_OF_A_TRAINING = re.compile(
    r"nvme|drivetemp|iwlwifi.*|ath\d+.*|mt79.*|r8169.*|enp.*|mlx.*|power_meter|.*psu.*"
    r"|nct\d.*|it8\d.*|w836.*|f71.*|sch5.*|asus.*|dell.*|thinkpad|applesmc"
)


@dataclass(frozen=True)
class Input:
    """One temperature of a chip: the file of its number, and what the chip calls it."""

    chip: Chip
    stem: str  # temp1
    label: str


def discover(root: Path, target: Target) -> Found | Missing:
    """A gauge of degrees Celsius each input; a chip that comes back is found again within a second."""
    folder = root / "sys/class/hwmon"
    inputs = temperatures(folder)
    if not inputs:
        return Missing("absent", f"{folder}: no chip measures a temperature of board or processor (an LM75 would)")
    opened: list[tuple[Input, DeviceFile]] = []
    refused: list[Missing] = []
    for chip_input in inputs:
        file = f"{chip_input.stem}_input"
        try:
            opened.append((chip_input, DeviceFile(device_file_finder(folder, chip_input.chip, file), target.clock)))
        except OSError as error:
            refused.append(missing_because(error, chip_input.chip.folder / file))
    if not opened:
        return refused[0]
    files = [file for _, file in opened]
    channels = tuple(_channel(chip_input) for chip_input, _ in opened)
    return Found(channels, partial(_read, files), lambda: close_device_files(files), _EVERY_NS)


def temperatures(folder: Path) -> list[Input]:
    """The inputs of every chip in order of number; one whose sensor the driver states to be faulty is excluded."""
    found = []
    for chip in chips(folder):
        if POWER_CHIPS.fullmatch(chip.name) or _NO_DEVICE_OF_A_TRAINING.fullmatch(chip.name):
            continue
        if chip.bus.startswith("thermal_zone"):
            continue
        matches = [re.fullmatch(r"temp(\d+)_input", path.name) for path in chip.folder.glob("temp*_input")]
        for index in sorted(int(match[1]) for match in matches if match):
            stem = f"temp{index}"
            if attribute(chip.folder / f"{stem}_fault") != "1":
                found.append(Input(chip, stem, attribute(chip.folder / f"{stem}_label") or stem))
    return found


def _channel(chip_input: Input) -> Channel:
    scope = f"zone:{chip_input.chip.identity}/{chip_input.label}"
    source = str(chip_input.chip.folder / f"{chip_input.stem}_input")
    return Channel(
        f"{scope.replace(':', '.')}.temperature", NAME, "temperature", "degC", "gauge", scope, source,
        parent_scope="system",
    )  # fmt: skip


def _read(files: Sequence[DeviceFile]) -> list[float]:
    values: list[float | OSError] = []
    for file in files:
        try:
            values.append(celsius(file.read(READ_BYTES)))
        except OSError as error:
            values.append(error)
    return unless_all_failed(values)
