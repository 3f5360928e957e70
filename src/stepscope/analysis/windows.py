"""Sampled channels over windows of time: what a counter grew by, with gaps left out instead of bridged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.intervals import Floats
from stepscope.runfolder import RunReader

_TO_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_LONG_PERIODS, _LONG_NS = 20, 500_000_000  # a longer silence than both is a gap even where no row says so


@dataclass(frozen=True)
class Series:
    """What was read of one channel: times (middle of the read) and values (n,), and the gaps between, ns (m, 2)."""

    scope: str
    source: str
    refresh_ns: int
    t_ns: Floats
    values: Floats
    gaps_ns: Floats

    @property
    def period_ns(self) -> float:
        """Typical distance of two readings."""
        return float(np.median(np.diff(self.t_ns))) if len(self.t_ns) > 1 else 0.0


@dataclass(frozen=True)
class Windows:
    """Growth of a counter per ns of each window, NaN where a gap touches it; `edges_ns` has one entry more."""

    edges_ns: Floats
    rates: Floats

    @property
    def uncovered_ns(self) -> float:
        """Time of the windows that could not be measured."""
        return float(np.diff(self.edges_ns)[np.isnan(self.rates)].sum())


def series_of(run: RunReader, quantity: str) -> Iterator[Series]:
    """Every channel of a quantity that was read at least twice; times in ns whatever unit the channel has."""
    channels = {channel["id"]: channel for channel in run.channels if channel.get("quantity") == quantity}
    for (name,), frame in run.samples(quantity).group_by(["channel"], maintain_order=True):
        if frame["value"].drop_nulls().len() > 1:
            yield _series(channels[str(name)], frame.sort("t0_ns"))


def _series(channel: dict[str, Any], frame: pl.DataFrame) -> Series:
    t_ns = ((frame["t0_ns"] + frame["t1_ns"]) / 2).to_numpy()
    values = frame["value"].to_numpy() * _TO_NS.get(channel.get("unit", ""), 1.0)
    read = np.flatnonzero(~np.isnan(values))
    step = np.diff(t_ns[read])
    silent = step > max(_LONG_PERIODS * float(np.median(step)), _LONG_NS)
    broken = (np.diff(read) > 1) | silent
    if channel.get("kind") == "counter":
        broken |= np.diff(values[read]) < 0  # it was set back: what it counted in between is unknown
    gaps = np.column_stack([t_ns[read[:-1]], t_ns[read[1:]]])[broken]
    refresh = int(channel.get("refresh_ns") or channel.get("step_size") or 0)
    source = str(channel.get("source") or channel.get("sensor"))
    return Series(str(channel.get("scope")), source, refresh, t_ns[read], values[read], gaps)


def windows(series: Series, t0_ns: float, t1_ns: float, length_ns: float) -> Windows:
    """Divide a span into windows of at least this length; growth is interpolated between readings."""
    count = max(int((t1_ns - t0_ns) // max(length_ns, 1)), 0)
    edges = np.linspace(t0_ns, t1_ns, count + 1)
    if count == 0:
        return Windows(np.array([t0_ns, t1_ns], dtype=np.float64), np.array([np.nan]))
    rates = np.diff(np.interp(edges, series.t_ns, series.values)) / np.diff(edges)
    slack = 2 * series.period_ns  # the first and the last reading need not fall on the span's ends
    dark = (edges[:-1] < series.t_ns[0] - slack) | (edges[1:] > series.t_ns[-1] + slack)
    for begin, end in series.gaps_ns:
        dark |= (edges[:-1] < end) & (edges[1:] > begin)
    return Windows(edges, np.where(dark, np.nan, rates))


def resolved_ns(series: Series) -> float:
    """The shortest honest window: two ticks of the counter and two readings, ns."""
    return max(2.0 * series.refresh_ns, 2 * series.period_ns, 1.0)
