"""Period of a quantity, from its samples alone."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.channels import MOST_WINDOWS, Series
from stepscope.arrays import Floats

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
