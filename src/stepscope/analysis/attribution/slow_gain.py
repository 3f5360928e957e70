"""Power that grows slowly with temperature and clocks: one factor for all keys, from readings against the fit."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.intervals import Floats

SPAN = 4.0  # s: heat is slow, and a shorter span would follow the ops themselves where phases move slowly
_FEWEST, _STEPS = 20, 3


def slow_gain(at: Floats, watts: Floats, fitted: Floats, step_length: float) -> Floats:
    """Readings over fit, each summed over a moving span of at least 4 s, 3 steps and 20 readings; else 1."""
    count = len(watts)
    period = float(np.median(np.diff(at))) if count > 1 else 0.0
    if period <= 0:
        return np.ones(count)
    span = max(_FEWEST, round(max(SPAN, _STEPS * step_length) / period))
    if count < 3 * span:
        return np.ones(count)
    below = _moving_sum(fitted, span)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(below > 0, _moving_sum(watts, span) / below, 1.0)
    return np.asarray(np.clip(ratio, 0.2, 5.0))


def _moving_sum(values: Floats, span: int) -> Floats:
    """Sum over a window centred on each entry; shorter at the ends."""
    total = np.append(0.0, np.cumsum(values))
    place = np.arange(len(values))
    low, high = np.maximum(place - span // 2, 0), np.minimum(place + (span + 1) // 2, len(values))
    summed: Floats = total[high] - total[low]
    return summed
