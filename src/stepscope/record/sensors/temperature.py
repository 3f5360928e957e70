"""Temperature of each thermal zone, degrees Celsius: /sys/class/thermal/thermal_zone*/temp."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from stepscope.record.formats.attribute import attribute
from stepscope.record.formats.sysfs import READ_BYTES, signed
from stepscope.record.sensors.contract import (
    NAN,
    Channel,
    Found,
    Missing,
    Target,
    close_files,
    missing_because,
    numbered,
    open_files,
)

NAME = "temperature"
EVERY_NS = 100_000_000
_PLAUSIBLE_MILLIDEGREES = (-60_000, 200_000)  # a Jetson zone that is off states -256000


def discover(root: Path, target: Target) -> Found | Missing:
    """One gauge a zone; a zone that does not answer now (EAGAIN, powered off) may answer later and is kept."""
    folder = root / "sys/class/thermal"
    zones = numbered(list(folder.glob("thermal_zone*")))
    if not zones:
        return Missing("absent", f"{folder}: no thermal zone (usual in virtual machines)")
    names = dict(zip(zones, _distinct([attribute(zone / "type") or zone.name for zone in zones]), strict=True))
    opened: list[tuple[Path, int]] = []
    refused: list[OSError] = []
    for zone in zones:
        try:
            opened.append((zone, open_files([zone / "temp"])[0]))
        except OSError as error:
            refused.append(error)
    if not opened:
        return missing_because(refused[0], refused[0].filename or folder)
    descriptors = [descriptor for _, descriptor in opened]
    return Found(
        tuple(_channel(names[zone], zone / "temp") for zone, _ in opened),
        lambda: [celsius(descriptor) for descriptor in descriptors],
        lambda: close_files(descriptors),
        every_ns=EVERY_NS,
    )


def celsius(descriptor: int) -> float:
    """The temperature that the file states in millidegrees; NaN where it fails, is garbage or cannot be true."""
    try:
        return signed(os.pread(descriptor, READ_BYTES, 0), *_PLAUSIBLE_MILLIDEGREES) / 1000
    except OSError:
        return NAN


def _channel(name: str, path: Path) -> Channel:
    return Channel(
        id=f"zone.{name}.temperature",
        sensor=NAME,
        quantity="temperature",
        unit="degC",
        kind="gauge",
        scope=f"zone:{name}",
        parent_scope="system",
        source=str(path),
    )


def _distinct(names: list[str]) -> list[str]:
    """Names as they are, numbered from the second of the same on: acpitz, acpitz#2."""
    seen: Counter[str] = Counter()
    distinct = []
    for name in names:
        seen[name] += 1
        distinct.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return distinct
