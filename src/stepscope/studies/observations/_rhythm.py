"""Whether what was sampled repeats with the step: the period from the samples alone, and the samples folded by step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.analysis.intervals import Floats, known
from stepscope.analysis.rails import Line
from stepscope.analysis.regularity import period_of
from stepscope.analysis.run import Run
from stepscope.analysis.steady import steady_steps
from stepscope.analysis.windows import Series, resolved_ns, series_of, windows
from stepscope.studies.observations._windows import Use, accelerator_gauge

_LEAST_READINGS = 6  # a step: fewer show no pattern
_LEAST_STEPS = 6
_MOST_PHASES = 20
Row = dict[str, float | str | None]


def rhythms(run: Run, use: Use | None) -> Iterator[Row]:
    """A row a channel: what, of (use or power), step_ms, readings_per_step, period_steps, correlation, explained, flat.

    period_steps: the period in steps, null where the samples show none; explained: the share of the variance of the
    even steps that the mean profile of the odd ones foretells, and the reverse; both null where a step is too short
    for the readings.
    """
    steps = steady_steps(run)
    if len(steps) < _LEAST_STEPS:
        return
    edges = steps.select("t0_ns", "t1_ns").to_numpy().astype(np.float64)
    for of, what, series, smears_ns in _channels(run, use, edges):
        yield {"of": of, "what": what, **rhythm(series, edges, smears_ns)}


def rhythm(series: Series, edges_ns: Floats, smears_ns: float = 0.0) -> Row:
    """One channel against the steps, edges (n, 2); `smears_ns` is what its readings are averages over."""
    step_ns = float(np.median(edges_ns[:, 1] - edges_ns[:, 0]))
    spacing = max(series.period_ns, 1.0)
    row: Row = {"step_ms": step_ns / 1e6, "readings_per_step": step_ns / max(spacing, smears_ns / 2)}
    row |= {"period_steps": None, "correlation": None, "explained": None}
    inside = (series.t_ns >= edges_ns[0, 0]) & (series.t_ns <= edges_ns[-1, 1])
    row["deviation"] = known(float(series.values[inside].std())) if inside.any() else None
    if step_ns < _LEAST_READINGS * spacing or step_ns < 1.5 * smears_ns or not inside.any():
        return row
    period, likeness = period_of(series, float(edges_ns[0, 0]), float(edges_ns[-1, 1]), step_ns)
    row["period_steps"] = None if period is None else period / step_ns
    row["correlation"] = likeness
    row["explained"] = explained(series, edges_ns)
    return row


def explained(series: Series, edges_ns: Floats) -> float | None:
    """Share of the variance within the steps that one half of them foretells of the other; 0 where nothing varies."""
    step, phase = folded(series, edges_ns)
    inside = step >= 0
    values, step, phase = series.values[inside], step[inside], phase[inside]
    apart = float(np.median(edges_ns[:, 1] - edges_ns[:, 0])) / max(series.period_ns, 1.0)
    bins = int(min(_MOST_PHASES, max(apart // 2, 3)))
    place = np.minimum((phase * bins).astype(np.int64), bins - 1)
    left = total = 0.0
    for odd in (0, 1):
        here, there = step % 2 == odd, step % 2 != odd
        counts = np.bincount(place[there], minlength=bins)
        if not here.any() or (counts == 0).any():
            return None
        profile = np.bincount(place[there], values[there], minlength=bins) / counts
        left += float(((values[here] - profile[place[here]]) ** 2).sum())
        total += float(((values[here] - values[there].mean()) ** 2).sum())
    return 0.0 if total <= 1e-12 else 1 - left / total


def folded(series: Series, edges_ns: Floats) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Floats]:
    """The step that each reading falls into, -1 between steps, and how far into it, 0 to 1."""
    place = np.searchsorted(edges_ns[:, 0], series.t_ns, side="right") - 1
    held = np.clip(place, 0, len(edges_ns) - 1)
    length = edges_ns[held, 1] - edges_ns[held, 0]
    phase = (series.t_ns - edges_ns[held, 0]) / length
    inside = (place >= 0) & (phase >= 0) & (phase <= 1)
    return np.where(inside, held, -1).astype(np.int64), phase


def _channels(run: Run, use: Use | None, edges: Floats) -> Iterator[tuple[str, str, Series, float]]:
    span = float(edges[0, 0]), float(edges[-1, 1])
    if use is not None:
        middle = (use.edges_ns[1:] + use.edges_ns[:-1]) / 2
        yield "use", "CPU", _series("cpu", middle, use.cores.mean(axis=0)), 0.0
        if use.source and accelerator_gauge(run) is None:
            yield "use", "accelerator", _series("gpu", middle, use.accelerator), 0.0
    gauge = accelerator_gauge(run)
    if gauge is not None:
        yield "use", "accelerator", gauge, 0.0
    for own in series_of(run, "process_cpu_time"):
        if own.scope == "process":
            seen = windows(own, *span, resolved_ns(own))
            yield "use", "trainer", _series("process", (seen.edges_ns[1:] + seen.edges_ns[:-1]) / 2, seen.rates), 0.0
    for name, lines in run.rails.components():
        if len(lines) == 1 and not lines[0].estimated:
            yield "power", name, *_power(lines[0])


def _power(line: Line) -> tuple[Series, float]:
    """Mean power between two readings, W, and what the sensor averages over, ns."""
    growth = line.best.growth
    apart = np.diff(growth.t_ns)
    watts = np.where(growth.gap, np.nan, growth.steps / np.maximum(apart, 1.0) * 1e9)
    return _series(line.name, growth.t_ns[:-1] + apart / 2, watts), max(line.best.window_ns, line.best.refresh_ns)


def _series(scope: str, t_ns: Floats, values: Floats) -> Series:
    read = np.isfinite(values)
    return Series(scope, "", 0, t_ns[read], values[read], np.empty((0, 2)))
