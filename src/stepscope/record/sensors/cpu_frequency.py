"""Clock of each core, Hz: scaling_cur_freq of its cpufreq policy."""

from __future__ import annotations

import os
from pathlib import Path

from stepscope.record.formats.attribute import content
from stepscope.record.formats.sysfs import READ_BYTES, count, natural
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
_MOST_KHZ = 1e8  # 100 GHz


def discover(root: Path, target: Target) -> Found | Missing:
    """One gauge a core; the cores of a cluster share a policy, which is read once."""
    folder = root / "sys/devices/system/cpu/cpufreq"
    policies = numbered(list(folder.glob("policy*")))
    if not policies:
        return Missing("absent", f"{folder}: no cpufreq policy (usual in virtual machines)")
    opened: list[tuple[Path, int, list[int]]] = []
    refused: list[OSError | ValueError] = []
    for policy in policies:
        path = policy / "scaling_cur_freq"
        try:
            cores = [count(core) for core in content(policy / "related_cpus").split()]
            opened.append((path, open_files([path])[0], cores))
        except (OSError, ValueError) as error:
            refused.append(error)
    if not opened:
        why = refused[0]
        return missing_because(why, why.filename) if isinstance(why, OSError) else Missing("failed", f"{folder}: {why}")
    channels = tuple(_channel(core, path) for path, _, cores in opened for core in cores)
    descriptors = [descriptor for _, descriptor, _ in opened]

    def read() -> list[float]:
        clocks = [hertz(descriptor) for descriptor in descriptors]
        return [clock for clock, (_, _, cores) in zip(clocks, opened, strict=True) for _ in cores]

    return Found(channels, read, lambda: close_files(descriptors), every_ns=EVERY_NS)


def hertz(descriptor: int) -> float:
    """The clock that the file states in kHz; NaN where it does not (b"<unknown>", offline, 0)."""
    try:
        return natural(os.pread(descriptor, READ_BYTES, 0), _MOST_KHZ) * 1000.0 or NAN
    except OSError:
        return NAN


def _channel(core: int, path: Path) -> Channel:
    return Channel(
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
