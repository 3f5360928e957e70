"""Power of each rail over time, for a picture: what a sensor's own averaging smooths stays smooth in it."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analysis.energy import power_windows
from stepscope.analysis.rails import RailTree

SCHEMA = {
    "rail": pl.String,
    "component": pl.String,
    "t0_ns": pl.Int64,
    "t1_ns": pl.Int64,
    "watts": pl.Float64,
    "estimated": pl.Boolean,
}


def power_timeline(tree: RailTree, t0_ns: int, t1_ns: int, most_windows: int = 300) -> pl.DataFrame:
    """Mean power of consecutive windows, W: rail, component, t0_ns, t1_ns, watts (null in gaps), estimated."""
    frames = []
    for line in tree.lines:
        shortest_ns = 2 * max(line.best.refresh_ns, line.best.growth.period_ns, 0.5)
        length_ns = max(shortest_ns, (t1_ns - t0_ns) / most_windows)
        edges, watts = power_windows(line.best, t0_ns, t1_ns, length_ns)
        columns = {
            "rail": [line.name] * len(watts),
            "component": [line.component] * len(watts),
            "t0_ns": edges[: len(watts)].astype(np.int64),
            "t1_ns": edges[1 : len(watts) + 1].astype(np.int64),
            "watts": watts,
            "estimated": [line.estimated] * len(watts),
        }
        frames.append(pl.DataFrame(columns, schema=SCHEMA, nan_to_null=True))
    return pl.concat(frames) if frames else pl.DataFrame(schema=SCHEMA)
