"""Proportional and peak memory of the trainer: smaps_rollup (the kernel walks page tables: slowly) and status."""

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

NAME = "process_memory_map"
EVERY_NS = 500_000_000
_PSS = re.compile(rb"^Pss:\s+(\d{1,15}) kB", re.MULTILINE)
_PEAK = re.compile(rb"^VmHWM:\s+(\d{1,15}) kB", re.MULTILINE)
_SOURCES = (("pss", "smaps_rollup", _PSS), ("peak_rss", "status", _PEAK))


def discover(root: Path, target: Target) -> Found | Missing:
    """Up to two gauges, B: `pss` (shared pages divided by their users) and `peak_rss`."""
    opened: list[tuple[int, re.Pattern[bytes]]] = []
    channels: list[Channel] = []
    reason: Missing | None = None
    for quantity, name, pattern in _SOURCES:
        path = root / f"proc/{target.pid}/{name}"
        try:
            descriptor = open_files([path])[0]
            if kilobytes(descriptor, pattern) is NAN:
                close_files([descriptor])
                reason = Missing("unsupported", f"{path} states no {quantity}")
                continue
        except OSError as error:
            reason = missing_because(error, path)
            continue
        opened.append((descriptor, pattern))
        channels.append(_channel(quantity, path))
    if not opened:
        return reason or Missing("absent", f"{root}/proc/{target.pid}: nothing to read")
    return Found(
        tuple(channels),
        lambda: [kilobytes(descriptor, pattern) for descriptor, pattern in opened],
        lambda: close_files([descriptor for descriptor, _ in opened]),
        every_ns=EVERY_NS,
    )


def kilobytes(descriptor: int, pattern: re.Pattern[bytes]) -> float:
    """The first number that the pattern finds in the file, in B; NaN where it finds none."""
    match = pattern.search(os.pread(descriptor, 4096, 0))
    return int(match[1]) * 1024.0 if match else NAN


def _channel(quantity: str, path: Path) -> Channel:
    return Channel(
        id=f"process.{quantity}",
        sensor=NAME,
        quantity=quantity,
        unit="B",
        kind="gauge",
        scope="process",
        parent_scope="system",
        source=str(path),
        step_size=1024.0,
    )
