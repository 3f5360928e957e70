"""Cost of sampling itself: CPU time of the sampling process, worst lateness of its ticks, ticks missed."""

from __future__ import annotations

import time
from pathlib import Path

from stepscope.record.sensors.contract import Channel, Found, Kind, Missing, Target

NAME = "sampler"
EVERY_NS = 100_000_000


def discover(root: Path, target: Target) -> Found | Missing:
    """Three channels of the process that samples; there is no machine without them."""
    pace = target.pace
    process_time_ns = time.process_time_ns

    def read() -> list[float]:
        return [process_time_ns(), pace.take_lateness(), pace.missed]

    def channel(name: str, unit: str, kind: Kind, source: str) -> Channel:
        return Channel(f"sampler.{name}", NAME, f"sampler_{name}", unit, kind, "sampler", source, step_size=1.0)

    channels = (
        channel("cpu_time", "ns", "counter", "CLOCK_PROCESS_CPUTIME_ID"),
        channel("lateness", "ns", "gauge", "sampling loop, worst tick since the sample before"),
        channel("missed", "1", "counter", "sampling loop"),
    )
    return Found(channels, read, lambda: None, every_ns=EVERY_NS)
