"""Statistics of pairs: the ratio of a change's step time to that of the training as is, with its CI.

The estimate is the median of all means of two log ratios (Hodges and Lehmann, 1963) and its interval that of the
signed-rank test: one disturbed pair in ten does not bend it, and no distribution is assumed but a symmetric one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy import special  # type: ignore[import-untyped]

from stepscope.analysis.estimate import CONFIDENCE, mean_interval

LEAST_PAIRS = 6  # fewer cannot exclude anything at 95 %


def ratio_interval(logs: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Return (ratio, low, high) of log ratios of pairs: of few Student's; NaN where there are none."""
    middle, low, high = centre_interval(logs, confidence)
    return math.exp(middle), math.exp(low), math.exp(high)


def centre_interval(observed: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Return (centre, low, high) of what pairs gave: of few Student's; NaN where there are none."""
    values = np.asarray(observed, dtype=np.float64)
    if not len(values):
        return math.nan, math.nan, math.nan
    first, second = np.triu_indices(len(values))
    means = np.sort((values[first] + values[second]) / 2)
    middle = float(np.median(means))
    rank = _rank(len(values), confidence)
    if rank is None:
        mean, low, high = mean_interval(values, confidence)
        return mean, low, high
    return middle, float(means[rank]), float(means[len(means) - 1 - rank])


def process_interval(by_process: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Return (ratio, low, high) of log ratios in several processes: from 3 on each is one observation (Student).

    Processes differ by more than their pairs do (the heap lies elsewhere).
    """
    pooled = ratio_interval([value for logs in by_process for value in logs])
    if len(by_process) < 3:  # two say nothing of how processes differ
        return pooled
    centres = np.array([float(np.median(logs)) for logs in by_process if len(logs)], dtype=np.float64)
    middle, low, high = mean_interval(centres)
    if not math.isnan(pooled[1]):  # where processes do not differ, no narrower than the pairs allow
        low, high = min(low, math.log(pooled[1])), max(high, math.log(pooled[2]))
    return tuple(math.exp(value) for value in (middle, low, high))  # type: ignore[return-value]


@lru_cache(maxsize=1024)
def _rank(count: int, confidence: float) -> int | None:
    """Return the place (from 0) of the mean that bounds the interval; None where the sample is too small."""
    tail = (1 - confidence) / 2
    if count > 40:
        centre, spread = count * (count + 1) / 4, math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
        return max(0, math.floor(centre + float(special.ndtri(tail)) * spread))
    ways = np.zeros(count * (count + 1) // 2 + 1)
    ways[0] = 1
    for rank in range(1, count + 1):
        ways[rank:] += ways[:-rank].copy()
    below = np.cumsum(ways) / 2.0**count
    least = int((below <= tail).sum())
    return least - 1 if least else None
