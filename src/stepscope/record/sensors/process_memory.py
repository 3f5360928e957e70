"""Resident memory of the trainer at every tick: /proc/PID/statm."""

from __future__ import annotations

import os
from pathlib import Path

from stepscope.record.formats.sysfs import count
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

NAME = "process_memory"


def discover(root: Path, target: Target) -> Found | Missing:
    """One gauge, B; the kernel counts whole pages."""
    path = root / f"proc/{target.pid}/statm"
    try:
        descriptors = open_files([path])
    except OSError as error:
        return missing_because(error, path)
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    file = descriptors[0]
    pread = os.pread

    def read() -> list[float]:
        return [count(pread(file, 64, 0).split(b" ", 2)[1]) * page_bytes or NAN]  # 0 pages: it has ended

    try:
        read()
    except (OSError, ValueError, IndexError) as error:
        close_files(descriptors)
        return Missing("failed", f"{path}: {error}")
    channel = Channel(
        id="process.rss",
        sensor=NAME,
        quantity="rss",
        unit="B",
        kind="gauge",
        scope="process",
        parent_scope="system",
        source=str(path),
        step_size=float(page_bytes),
    )
    return Found((channel,), read, lambda: close_files(descriptors))
