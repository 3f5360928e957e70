"""Regularity of quantities from step to step (observations 2 and 7 of the 2019 paper), and their period."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stepscope.analysis.channels import MOST_WINDOWS, Series, series_of
from stepscope.analysis.estimate import change_points, null_if_nan
from stepscope.analysis.time.steps import steps_after_warmup
from stepscope.arrays import Floats
from stepscope.runfolder import RunReader

REGULARITY_SCHEMA = {
    "quantity": pl.String,
    "scope": pl.String,
    "mean": pl.Float64,  # of the steps: ns for "step_time", W for "energy", cores for CPU time, else in its own unit
    "spread": pl.Float64,  # coefficient of variation from step to step
    "period_ns": pl.Float64,  # found from the samples alone; null where they show none
    "periods_per_step": pl.Float64,
    "correlation": pl.Float64,  # of the samples with themselves one period later
    "changes": pl.Int64,  # of level
}
_GAUGES = ("power", "utilisation", "rss", "memory_available", "temperature")
_COUNTERS = ("energy", "core_busy_time", "process_cpu_time")


def regularity(run: RunReader) -> pl.DataFrame:
    """A row a quantity: spread from step to step, period by autocorrelation beside the step, changes of level."""
    steps = steps_after_warmup(run)
    if len(steps) < 3:
        return pl.DataFrame(schema=REGULARITY_SCHEMA)
    lengths = steps["length_ns"].to_numpy().astype(np.float64)
    edges = np.stack([steps["t0_ns"].to_numpy(), steps["t1_ns"].to_numpy()]).astype(np.float64)
    rows = [_regularity_row("step_time", "run", lengths, None, None, float(np.median(lengths)))]
    for quantity, series, values in _sampled_series(run, edges):
        period, correlation = period_of(series, float(edges[0, 0]), float(edges[1, -1]), float(np.median(lengths)))
        rows.append(_regularity_row(quantity, series.scope, values, period, correlation, float(np.median(lengths))))
    return pl.DataFrame(rows, schema=REGULARITY_SCHEMA)


def _sampled_series(run: RunReader, edges: Floats) -> Iterator[tuple[str, Series, Floats]]:
    for quantity in (*_GAUGES, *_COUNTERS):
        for series in series_of(run, quantity):
            rate = _counter_rates(series, 1e9 if quantity == "energy" else 1.0) if quantity in _COUNTERS else series
            if len(rate.t_ns) > 3:
                yield quantity, rate, _sample_means_by_step(rate, edges)


def _counter_rates(series: Series, factor: float) -> Series:
    """A counter as the gauge of its growth a ns, times a factor; none over gaps, and where it wrapped."""
    apart = np.maximum(np.diff(series.t_ns), 1.0)
    middle = (series.t_ns[1:] + series.t_ns[:-1]) / 2
    rates = np.diff(series.values) / apart * factor
    is_known = ~np.isin(series.t_ns[:-1], series.gaps_ns[:, 0])
    return Series(series.scope, series.source, series.refresh_ns, middle[is_known], rates[is_known], series.gaps_ns)


def _sample_means_by_step(series: Series, edges: Floats) -> Floats:
    """Mean of the samples within each step; NaN where none fell into it."""
    sums = np.concatenate([[0.0], np.cumsum(series.values)])
    first, last = (np.searchsorted(series.t_ns, edge) for edge in edges)
    with np.errstate(invalid="ignore", divide="ignore"):
        means: Floats = (sums[last] - sums[first]) / (last - first)
    return means


def _regularity_row(
    quantity: str, scope: str, values: Floats, period_ns: float | None, correlation: float | None, step_ns: float
) -> dict[str, object]:
    present = values[~np.isnan(values)]
    mean = float(present.mean()) if len(present) else float("nan")
    spread = float(present.std(ddof=1) / abs(mean)) if len(present) > 1 and mean else float("nan")
    return {
        "quantity": quantity,
        "scope": scope,
        "mean": null_if_nan(mean),
        "spread": null_if_nan(spread),
        "period_ns": period_ns,
        "periods_per_step": None if period_ns is None else step_ns / period_ns,
        "correlation": correlation,
        "changes": len(change_points(present)) if len(present) else 0,
    }


_CLEAR = 0.2  # correlation below which a period is not worth the name
_MOST_STEPS = 8  # periods are looked for up to so many steps


def period_of(series: Series, t0_ns: float, t1_ns: float, step_ns: float) -> tuple[float | None, float | None]:
    """(period in ns, correlation) from the samples alone; null where they are too coarse or show none."""
    spacing = series.period_ns
    inside = (series.t_ns >= t0_ns) & (series.t_ns <= t1_ns)
    if spacing <= 0 or inside.sum() < 16 or step_ns < 2 * spacing:
        return None, None
    first, last = series.t_ns[inside][[0, -1]]
    if last - first > MOST_WINDOWS * spacing:  # times of a damaged run: nothing lies between
        return None, None
    grid = np.arange(first, last, spacing)
    values = np.interp(grid, series.t_ns[inside], series.values[inside])
    likeness = _autocorrelation(values, int(_MOST_STEPS * step_ns / spacing) + 2)
    peak = _first_peak(likeness)
    if peak is None or likeness[peak] < _CLEAR:
        return None, None
    return _peak_position(likeness, peak) * spacing, float(likeness[peak])


def _autocorrelation(values: Floats, most: int) -> Floats:
    away = values - values.mean()
    size = 1 << int(np.ceil(np.log2(2 * len(away))))
    power = np.abs(np.fft.rfft(away, size)) ** 2
    raw = np.fft.irfft(power, size)[: min(most, len(away) // 2)]
    counts = np.arange(len(away), len(away) - len(raw), -1)
    shaped: Floats = raw / counts
    return shaped / shaped[0] if len(shaped) and shaped[0] > 0 else np.zeros(1)


def _first_peak(likeness: Floats) -> int | None:
    """The first peak that is nearly as high as the highest: the others are its multiples."""
    peaks = np.flatnonzero((likeness[1:-1] > likeness[:-2]) & (likeness[1:-1] >= likeness[2:])) + 1
    if len(peaks) == 0 or likeness[peaks].max() <= 0:
        return None
    return int(peaks[likeness[peaks] >= 0.85 * likeness[peaks].max()][0])


def _peak_position(values: Floats, peak: int) -> float:
    """Place of a peak to a fraction of a sample, by the parabola through its neighbours."""
    before, top, right = values[peak - 1 : peak + 2]
    bend = before - 2 * top + right
    return peak + float(0.5 * (before - right) / bend) if bend else float(peak)
