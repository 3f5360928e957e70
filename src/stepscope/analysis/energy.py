"""Energy of a source over stretches of time, with what is not known about it: edges, steps, filter, sampling, gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.growth import Bools, Growth
from stepscope.analysis.intervals import Floats, mean_interval
from stepscope.analysis.power_sources import PowerSource
from stepscope.analysis.steady import steady_steps
from stepscope.analysis.windows import series_of
from stepscope.runfolder import RunReader

_MOST_WINDOWS = 200  # longer windows are less alike than neighbours of a few ms: their spread says more
_TOUCHING = 0.05  # of a step: what a loop does between two steps belongs to them
_LEAST_IDLE_NS, _IDLE_CORES = 500_000_000, 0.05
_WHOLE = 0.99  # a window with more of it in gaps is not used for the spread


@dataclass(frozen=True)
class Energy:
    """Energy of some stretches, J and W, bounds of 95 %; None where nothing was read.

    `joules` is what was measured, in `covered_s`; nothing is added for the `gap_s` that were not, but `high_j` allows
    for it. Watts are over the covered time.
    """

    joules: float | None
    low_j: float | None
    high_j: float | None
    watts: float | None
    low_w: float | None
    high_w: float | None
    covered_s: float
    gap_s: float
    windows: int = 0


def steady_stretches(run: RunReader) -> Floats:
    """Begin and end of each unbroken stretch of steady steps, ns (m, 2); an evaluation between steps is in none."""
    steps = steady_steps(run).select("t0_ns", "t1_ns", "length_ns").cast(pl.Float64).to_numpy()
    if not len(steps):
        return np.empty((0, 2))
    t0, t1 = steps[:, 0], steps[:, 1]
    broken = np.flatnonzero(t0[1:] - t1[:-1] > _TOUCHING * float(np.median(steps[:, 2])))
    return np.column_stack([t0[np.concatenate([[0], broken + 1])], t1[np.concatenate([broken, [len(t1) - 1]])]])


def energy_over(source: PowerSource, spans_ns: Floats) -> Energy:
    """Energy of a source over stretches of time, (m, 2) ns."""
    lasted_s = float(np.diff(spans_ns).sum()) / 1e9
    covered_s = _between(source.growth, source.growth.covered_ns, spans_ns) / 1e9
    if covered_s <= 0:
        return Energy(None, None, None, None, None, None, 0.0, lasted_s)
    joules = _between(source.growth, source.growth.grown, spans_ns)
    rates_w = window_rates(source, spans_ns)
    watts = joules / covered_s
    peak_w = max(float(np.nanmax(rates_w)), watts) if np.isfinite(rates_w).any() else watts
    _, low_w, high_w = mean_interval(rates_w)
    spread_w = (high_w - low_w) / 2  # NaN below two windows
    systematic_j = _edges_j(source, spans_ns, peak_w) + _steps_j(source, covered_s)
    sampling_j = 0.0 if source.kind == "counter" or np.isnan(spread_w) else spread_w * covered_s
    half_w = systematic_j / covered_s + (0.0 if np.isnan(spread_w) else spread_w)
    gap_s = max(lasted_s - covered_s, 0.0)
    return Energy(
        joules=joules,
        low_j=max(joules - systematic_j - sampling_j, 0.0),
        high_j=joules + systematic_j + sampling_j + _dark_j(source, spans_ns, gap_s, peak_w),
        watts=watts,
        low_w=max(watts - half_w, 0.0),
        high_w=watts + half_w,
        covered_s=covered_s,
        gap_s=gap_s if gap_s > 1e-6 * lasted_s else 0.0,
        windows=int(np.isfinite(rates_w).sum()),
    )


def added(parts: Sequence[Energy]) -> Energy:
    """The sum of parallel rails; bounds add up as if all erred the same way."""
    if any(part.joules is None for part in parts) or not parts:
        dark_s = max((part.gap_s for part in parts), default=0.0)
        return Energy(None, None, None, None, None, None, 0.0, dark_s)
    names = ("joules", "low_j", "high_j", "watts", "low_w", "high_w")
    sums = {name: sum(getattr(part, name) for part in parts) for name in names}
    covered_s, gap_s = min(part.covered_s for part in parts), max(part.gap_s for part in parts)
    return Energy(**sums, covered_s=covered_s, gap_s=gap_s, windows=min(part.windows for part in parts))


def remaining(whole: Energy, parts: Sequence[Energy]) -> Energy:
    """What a rail gave beside the parts that were measured of it; below 0 where they claim more than it."""
    inner = added(parts)
    if whole.joules is None or inner.joules is None:
        return Energy(None, None, None, None, None, None, 0.0, max(whole.gap_s, inner.gap_s))
    pairs = {"joules": "joules", "low_j": "high_j", "high_j": "low_j", "watts": "watts", "low_w": "high_w"}
    less = {name: getattr(whole, name) - getattr(inner, other) for name, other in (*pairs.items(), ("high_w", "low_w"))}
    covered_s, gap_s = min(whole.covered_s, inner.covered_s), max(whole.gap_s, inner.gap_s)
    return Energy(**less, covered_s=covered_s, gap_s=gap_s, windows=min(whole.windows, inner.windows))


def window_rates(source: PowerSource, spans_ns: Floats) -> Floats:
    """Mean power of windows as short as the source resolves, W, NaN where a gap lies in one; at most a few hundred."""
    longest = max(source.resolved_ns, float(np.diff(spans_ns).sum()) / _MOST_WINDOWS)
    rates = [power_windows(source, float(begin), float(end), longest)[1] for begin, end in spans_ns]
    return np.concatenate(rates) if rates else np.empty(0)


def power_windows(source: PowerSource, t0_ns: float, t1_ns: float, length_ns: float) -> tuple[Floats, Floats]:
    """Edges, ns (n + 1,), and mean power, W (n,), of windows of at least this length; NaN where a gap lies in one."""
    edges = np.linspace(t0_ns, t1_ns, int((t1_ns - t0_ns) // length_ns) + 1)
    if len(edges) < 2:
        return edges, np.empty(0)
    growth = source.growth
    joules, covered = (np.diff(growth.at(running, edges)) for running in (growth.grown, growth.covered_ns))
    whole = covered > _WHOLE * np.diff(edges)
    return edges, np.where(whole, joules / np.where(whole, covered, 1.0) * 1e9, np.nan)


def idle_stretch(run: RunReader, sources: Sequence[PowerSource]) -> Floats:
    """The time before the first step in which the power was read and the trainer did nothing, (m, 2) ns, m 0 or 1."""
    steps = run.steps
    first = [float(source.growth.t_ns[0]) for source in sources]
    own = next((series for series in series_of(run, "process_cpu_time") if series.scope == "process"), None)
    if steps.is_empty() or not first or own is None:
        return np.empty((0, 2))
    begin, end = max(*first, float(own.t_ns[0])), float(steps["t0_ns"][0])
    if end - begin < _LEAST_IDLE_NS:
        return np.empty((0, 2))
    edges = np.linspace(begin, end, int((end - begin) // _LEAST_IDLE_NS) * 2 + 1)
    busy = np.diff(np.interp(edges, own.t_ns, own.values)) / np.diff(edges)
    return _longest(edges, busy < _IDLE_CORES)


def _longest(edges: Floats, idle: Bools) -> Floats:
    """The longest run of idle windows, where it is long enough."""
    marks = np.flatnonzero(np.diff(np.concatenate([[0], idle.astype(np.int8), [0]])))
    spans = np.column_stack([edges[marks[::2]], edges[marks[1::2]]])
    spans = spans[np.diff(spans)[:, 0] >= _LEAST_IDLE_NS] if len(spans) else spans
    return spans[np.argsort(np.diff(spans)[:, 0])[-1:]] if len(spans) else np.empty((0, 2))


def _between(growth: Growth, running: Floats, spans_ns: Floats) -> float:
    begins, ends = (growth.at(running, spans_ns[:, side]) for side in (0, 1))
    return float((ends - begins).sum())


def _edges_j(source: PowerSource, spans_ns: Floats, peak_w: float) -> float:
    """What the ends of the stretches can be wrong by, J: many ends err both ways, so they add up like a random walk.

    Between two readings a counter is interpolated: the truth lies anywhere between them, and the value may be one
    refresh old. A gauge tells the power of a moment ago: wrong by what the power can have changed since.
    """
    edges = spans_ns.ravel()
    if source.kind == "counter":
        each = _bracket_j(source.growth, edges) + source.lag_ns / 1e9 * peak_w + source.step_size
    else:
        each = np.full(len(edges), source.lag_ns / 1e9 * source.spread_w)
    return float(
        min(each.sum(), 2 * np.sqrt((each**2).sum() / 3))
    )  # each anywhere within its bound: sd = bound / sqrt 3


def _bracket_j(growth: Growth, edges: Floats) -> Floats:
    """The larger part of the growth between the two readings around each edge, J; 0 outside of all readings."""
    after = np.clip(np.searchsorted(growth.t_ns, edges), 1, len(growth.t_ns) - 1)
    inside = (edges > growth.t_ns[0]) & (edges < growth.t_ns[-1])
    low, high, here = growth.grown[after - 1], growth.grown[after], growth.at(growth.grown, edges)
    on_a_reading = (edges == growth.t_ns[after]) | (edges == growth.t_ns[after - 1])
    return np.where(inside & ~on_a_reading, np.maximum(here - low, high - here), 0.0)


def _steps_j(source: PowerSource, covered_s: float) -> float:
    """What rounding to the sensor's steps can add up to, J; a counter's is at its edges alone."""
    return 0.0 if source.kind == "counter" else source.step_size / 2 * covered_s


def _dark_j(source: PowerSource, spans_ns: Floats, gap_s: float, peak_w: float) -> float:
    """The most that the gaps can have taken, J: what readings around them tell, else the highest power seen."""
    growth = source.growth
    skipped_j = _between(growth, growth.skipped, spans_ns)
    told_s = _between(growth, _running_told(growth), spans_ns) / 1e9
    return skipped_j + max(gap_s - told_s, 0.0) * peak_w


def _running_told(growth: Growth) -> Floats:
    """Time in gaps whose two ends tell what it grew by, ns, since the first reading."""
    total = growth.t_ns - growth.t_ns[0]
    return np.asarray(total - growth.covered_ns - growth.dark_ns)
