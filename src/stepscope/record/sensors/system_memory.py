"""Memory that is left on the machine, and swap in use: /proc/meminfo."""

from __future__ import annotations

import os
import re
from pathlib import Path

from stepscope.record.sensors.contract import (
    NAN,
    Channel,
    Found,
    Missing,
    Target,
    close_files,
    missing_because,
    open_files,
)

NAME = "system_memory"
EVERY_NS = 100_000_000
_LINES = re.compile(
    rb"MemAvailable:\s+(\d{1,15}) kB.*?SwapTotal:\s+(\d{1,15}) kB.*?SwapFree:\s+(\d{1,15}) kB", re.DOTALL
)


def discover(root: Path, target: Target) -> Found | Missing:
    """Two gauges, B; MemAvailable is the limit that ends a training run on a board with shared memory."""
    path = root / "proc/meminfo"
    try:
        descriptors = open_files([path])
    except OSError as error:
        return missing_because(error, path)
    file = descriptors[0]

    def read() -> list[float]:
        return available_and_swap(os.pread(file, 2048, 0))

    try:
        read()
    except (OSError, ValueError) as error:
        close_files(descriptors)
        return Missing("unsupported", f"{path}: {error}")
    channels = tuple(
        Channel(
            id=f"system.{quantity}",
            sensor=NAME,
            quantity=quantity,
            unit="B",
            kind="gauge",
            scope="system",
            source=str(path),
            step_size=1024.0,
        )
        for quantity in ("memory_available", "swap_used")
    )
    return Found(channels, read, lambda: close_files(descriptors), every_ns=EVERY_NS)


def available_and_swap(meminfo: bytes) -> list[float]:
    """MemAvailable and SwapTotal - SwapFree, B; NaN where more is free than there is. Raises ValueError."""
    match = _LINES.search(meminfo)
    if match is None:
        raise ValueError("no MemAvailable, SwapTotal and SwapFree")
    available, total, free = (int(number) * 1024.0 for number in match.groups())
    return [available, total - free if free <= total else NAN]
