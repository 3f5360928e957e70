"""Energy of Apple silicon, J: IOReport's "Energy Model" through zeus-apple-silicon; cumulative, whole mJ, no sudo.

It is the chip's own model and no meter. Cluster totals were seen to exceed the sum of their cores: take cpu_total
for the CPU, and never add the levels.
"""

from __future__ import annotations

import importlib
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepscope.record.access.probes import channel_id
from stepscope.record.sensors.contract import NAN, Channel, Found, Missing, Target

NAME = "apple"
EVERY_NS = 50_000_000
_MILLIJOULES = 0.001
# Field of the library's metrics -> scope and what contains it; a list holds one value a cluster.
_FIELDS = (
    ("cpu_total_mj", "apple:cpu", "board"),
    ("efficiency_cluster_mj", "apple:cpu/efficiency-cluster", "apple:cpu"),
    ("performance_cluster_mj", "apple:cpu/performance-cluster", "apple:cpu"),
    ("gpu_mj", "apple:gpu", "board"),
    ("gpu_sram_mj", "apple:gpu-sram", "board"),
    ("ane_mj", "apple:ane", "board"),
    ("dram_mj", "apple:dram", "board"),
)


def discover(root: Path, target: Target) -> Found | Missing:
    """One counter for each part that this chip reports."""
    if root != Path("/") or platform.system() != "Darwin":
        return Missing("absent", f"{root}: not a running Mac")
    try:
        zeus = importlib.import_module("zeus_apple_silicon")
    except ImportError:
        return Missing("absent", "a Mac without zeus-apple-silicon", "pip install zeus-apple-silicon")
    try:
        monitor = zeus.AppleEnergyMonitor()
        first = dict(_millijoules(monitor.get_cumulative_energy()))
    except (AttributeError, RuntimeError, OSError, ValueError) as error:
        return Missing("failed", f"IOReport's energy model: {error or type(error).__name__} (a virtual machine?)")
    if not first:
        return Missing("unsupported", "this chip reports no energy through IOReport")
    places = list(first)

    def read() -> list[float]:
        now = dict(_millijoules(_cumulative(monitor)))
        return [now.get(place, NAN) * _MILLIJOULES for place in places]

    channels = tuple(_channel(*place) for place in places)
    return Found(channels, read, lambda: None, every_ns=EVERY_NS, blocking=True)


def _cumulative(monitor: Any) -> Any:
    """The library's metrics; its RuntimeError is an OSError to the sampler."""
    try:
        return monitor.get_cumulative_energy()
    except RuntimeError as error:
        raise OSError(f"IOReport: {error}") from error


def _millijoules(metrics: Any) -> Iterator[tuple[tuple[str, str, str], float]]:
    """Scope, parent and field with its cumulative energy, mJ; a part that the chip does not report is excluded."""
    for field, scope, parent in _FIELDS:
        value = getattr(metrics, field, None)
        if isinstance(value, (list, tuple)):
            for number, part in enumerate(value):
                yield (f"{scope}:{number}", parent, f"{field}[{number}]"), float(part)
        elif value is not None:
            yield (scope, parent, field), float(value)


def _channel(scope: str, parent: str, field: str) -> Channel:
    return Channel(
        id=channel_id(scope, "energy"),
        sensor=NAME,
        quantity="energy",
        unit="J",
        kind="counter",
        scope=scope,
        parent_scope=parent,
        rail=field,
        source="IOReport Energy Model (the chip's own model, no meter), zeus-apple-silicon",
        step_size=_MILLIJOULES,
    )
