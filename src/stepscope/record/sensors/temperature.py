"""Temperature of each thermal zone, degrees Celsius: /sys/class/thermal/thermal_zone*/temp."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

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
_PLAUSIBLE_MILLIDEGREES = range(-60_000, 200_001)  # a Jetson zone that is off states -256000


def discover(root: Path, target: Target) -> Found | Missing:
    """One gauge a zone; a zone that does not answer now (EAGAIN, powered off) may answer later and is kept."""
    folder = root / "sys/class/thermal"
    zones = numbered(list(folder.glob("thermal_zone*")))
    if not zones:
        return Missing("absent", f"{folder}: no thermal zone (usual in virtual machines)")
    paths = [zone / "temp" for zone in zones]
    try:
        names = _distinct([(zone / "type").read_text(errors="replace").strip() for zone in zones])
        descriptors = open_files(paths)
    except OSError as error:
        return missing_because(error, error.filename or folder)
    channels = tuple(
        Channel(
            id=f"zone.{name}.temperature",
            sensor=NAME,
            quantity="temperature",
            unit="degC",
            kind="gauge",
            scope=f"zone:{name}",
            parent_scope="system",
            source=str(path),
        )
        for name, path in zip(names, paths, strict=True)
    )
    return Found(
        channels,
        lambda: [celsius(descriptor) for descriptor in descriptors],
        lambda: close_files(descriptors),
        every_ns=EVERY_NS,
    )


def celsius(descriptor: int) -> float:
    """The temperature that the file states in millidegrees; NaN where it fails, is garbage or cannot be true."""
    try:
        millidegrees = int(os.pread(descriptor, 32, 0))
    except (OSError, ValueError):
        return NAN
    return millidegrees / 1000 if millidegrees in _PLAUSIBLE_MILLIDEGREES else NAN


def _distinct(names: list[str]) -> list[str]:
    """Names as they are, numbered from the second of the same on: acpitz, acpitz#2."""
    seen: Counter[str] = Counter()
    distinct = []
    for name in names:
        seen[name] += 1
        distinct.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return distinct
