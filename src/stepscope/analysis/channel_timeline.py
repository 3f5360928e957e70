"""What one sampled channel says over time: its readings, or of a counter how fast it grew; and its gaps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.counters import CounterLimits, counted
from stepscope.analysis.intervals import Floats

_RATE_UNITS = {"J": ("W", 1e9), "ns": ("cores", 1.0), "us": ("cores", 1e3), "s": ("cores", 1e9), "C": ("A", 1e9)}
_ANY = 1e30  # growth a second: only of energy is it known what is too much
_NOTHING_NEWER = 2.2  # refreshes: a sensor without anything newer says so by the same null as one that failed
_LONG_PERIODS, _LONG_NS = 20, 500_000_000  # a longer silence than both is a gap even where no row says so


@dataclass(frozen=True)
class ChannelTimeline:
    """Values (n,) that hold from t_ns (n,) on, in `unit`; within `gaps_ns` (m, 2) nothing is known."""

    unit: str
    rate: bool
    t_ns: Floats
    values: Floats
    gaps_ns: Floats


def channel_timeline(channel: dict[str, Any], samples: pl.DataFrame) -> ChannelTimeline:
    """Timeline of a channel of channels.json from its samples (t0_ns, t1_ns, value), or some of them."""
    t_ns = ((samples["t0_ns"] + samples["t1_ns"]) / 2).to_numpy()
    values = samples["value"].to_numpy().astype(np.float64)
    if channel.get("kind") == "counter":
        return _grown(channel, t_ns, values)
    read = np.flatnonzero(np.isfinite(values))
    gaps = _gaps(t_ns, read, float(channel.get("refresh_ns") or 0.0))
    return ChannelTimeline(str(channel.get("unit") or ""), False, t_ns[read], values[read], gaps)


def _gaps(t_ns: Floats, read: np.ndarray[Any, np.dtype[np.int64]], refresh_ns: float) -> Floats:
    """Stretches between good readings in which readings failed or none was taken; failed ones at the ends too."""
    if not len(read):
        return t_ns[[0, -1]].reshape(1, 2) if len(t_ns) else np.empty((0, 2))
    apart = np.diff(t_ns[read])
    silent = apart > max(_LONG_PERIODS * float(np.median(apart)), _LONG_NS) if len(apart) else apart > 0
    broken = ((np.diff(read) > 1) & (apart > _NOTHING_NEWER * refresh_ns)) | silent
    gaps = np.column_stack([t_ns[read[:-1]], t_ns[read[1:]]])[broken]
    ends = [(t_ns[0], t_ns[read[0]]), (t_ns[read[-1]], t_ns[-1])]
    failed = [(begin, end) for begin, end in ends if end - begin > _NOTHING_NEWER * refresh_ns]
    return np.concatenate([gaps, np.array(failed).reshape(-1, 2)])


def _grown(channel: dict[str, Any], t_ns: Floats, values: Floats) -> ChannelTimeline:
    """Growth a second over windows of two readings and two refreshes at least: shorter ones show ticks."""
    unit, scale = _RATE_UNITS.get(str(channel.get("unit")), (f"{channel.get('unit') or ''}/s", 1e9))
    growth = counted(t_ns, values, _limits(channel))
    length_ns = max(2 * growth.period_ns, 2 * float(channel.get("refresh_ns") or 0), 1.0)
    count = int((growth.t_ns[-1] - growth.t_ns[0]) // length_ns) if len(growth.t_ns) > 1 else 0
    if count == 0:
        return ChannelTimeline(unit, True, np.empty(0), np.empty(0), np.empty((0, 2)))
    edges = np.linspace(growth.t_ns[0], growth.t_ns[-1], count + 1)
    rates = growth.between(edges[:-1], edges[1:]) / np.diff(edges) * scale
    known = np.isfinite(rates)
    return ChannelTimeline(unit, True, edges[:-1][known], rates[known], _dark(edges, known))


def _limits(channel: dict[str, Any]) -> CounterLimits:
    most = channel.get("most_per_s")
    return CounterLimits(
        full_range=channel.get("counter_range"),
        most_per_s=_ANY if most is None and channel.get("unit") != "J" else most,
        refresh_ns=float(channel.get("refresh_ns") or 0),
        step_size=float(channel.get("step_size") or 0),
    )


def _dark(edges: Floats, known: np.ndarray[Any, np.dtype[np.bool_]]) -> Floats:
    """Begin and end of each run of windows that are not known, (m, 2)."""
    turns = np.flatnonzero(np.diff(np.concatenate([[0], (~known).astype(np.int8), [0]])))
    return np.column_stack([edges[turns[::2]], edges[turns[1::2]]])
