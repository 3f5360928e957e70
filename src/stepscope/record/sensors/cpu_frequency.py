"""Clock of each core, Hz: scaling_cur_freq of its cpufreq policy."""

from __future__ import annotations

import os
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

NAME = "cpu_frequency"
EVERY_NS = 100_000_000


def discover(root: Path, target: Target) -> Found | Missing:
    """One gauge a core; the cores of a cluster share a policy, which is read once."""
    folder = root / "sys/devices/system/cpu/cpufreq"
    policies = numbered(list(folder.glob("policy*")))
    if not policies:
        return Missing("absent", f"{folder}: no cpufreq policy (usual in virtual machines)")
    paths = [policy / "scaling_cur_freq" for policy in policies]
    try:
        cores = [[int(core) for core in (policy / "related_cpus").read_bytes().split()] for policy in policies]
        descriptors = open_files(paths)
    except OSError as error:
        return missing_because(error, error.filename or folder)

    def read() -> list[float]:
        clocks = [hertz(descriptor) for descriptor in descriptors]
        return [clock for clock, members in zip(clocks, cores, strict=True) for _ in members]

    channels = tuple(
        Channel(
            id=f"core{core}.frequency",
            sensor=NAME,
            quantity="core_frequency",
            unit="Hz",
            kind="gauge",
            scope=f"core:{core}",
            parent_scope="system",
            source=str(path),
            step_size=1000.0,
        )
        for path, members in zip(paths, cores, strict=True)
        for core in members
    )
    return Found(channels, read, lambda: close_files(descriptors), every_ns=EVERY_NS)


def hertz(descriptor: int) -> float:
    """The clock that the file states in kHz; NaN where it does not (b"<unknown>", offline, 0)."""
    try:
        return int(os.pread(descriptor, 32, 0)) * 1000.0 or NAN
    except (OSError, ValueError):
        return NAN
