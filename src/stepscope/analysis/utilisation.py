"""Busy time of cores from the counters that a machine has: busy or idle time, in ticks or in microseconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import polars as pl

from stepscope.analysis.windows import Series, resolved_ns, series_of, windows
from stepscope.runfolder import RunReader

_TIMELINE = {"scope": pl.String, "t0_ns": pl.Int64, "t1_ns": pl.Int64, "utilisation": pl.Float64}


def core_busy_time(run: RunReader) -> list[Series]:
    """Busy time of every core, ns, as a growing counter; in the order of the cores."""
    cores = [*series_of(run, "core_busy_time"), *(_busy(idle) for idle in series_of(run, "core_idle_time"))]
    first = {series.scope: series for series in reversed(cores)}
    return sorted(first.values(), key=lambda series: (len(series.scope), series.scope))


def _busy(idle: Series) -> Series:
    """Elapsed less idle time, within 0 and the elapsed time.

    The kernel books idle time when a core wakes, so one reading can book more than has elapsed since the last. What
    is too much belongs before it: busy time up to t is the least of elapsed - idle over all later readings.
    """
    apparent = np.split(idle.t_ns - idle.values, np.searchsorted(idle.t_ns, idle.gaps_ns[:, 1]))
    parts = [np.minimum.accumulate(part[::-1])[::-1] for part in apparent]
    return replace(idle, values=np.concatenate(parts))


def core_timeline(run: RunReader, t0_ns: int, t1_ns: int) -> pl.DataFrame:
    """Utilisation of each core in windows as short as its counter allows: scope, t0_ns, t1_ns, utilisation."""
    frames = list(_timelines(run, t0_ns, t1_ns))
    return pl.concat(frames) if frames else pl.DataFrame(schema=_TIMELINE)


def _timelines(run: RunReader, t0_ns: int, t1_ns: int) -> Iterator[pl.DataFrame]:
    for series in core_busy_time(run):
        busy = windows(series, t0_ns, t1_ns, resolved_ns(series))
        columns = {
            "scope": [series.scope] * len(busy.rates),
            "t0_ns": busy.edges_ns[:-1].astype(np.int64),
            "t1_ns": busy.edges_ns[1:].astype(np.int64),
            "utilisation": np.clip(busy.rates, 0, 1),
        }
        yield pl.DataFrame(columns, schema=_TIMELINE, nan_to_null=True)
