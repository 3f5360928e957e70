"""Intervals of 95 % for what was measured; NaN where the data cannot give one."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from scipy import special  # type: ignore[import-untyped]  # scipy.stats takes half a second to import

Floats = np.ndarray[Any, np.dtype[np.float64]]
CONFIDENCE = 0.95


@lru_cache(maxsize=4096)
def _ranks(count: int, confidence: float) -> tuple[int, int] | None:
    """Positions (from 0) of the order statistics that enclose the median; None where the sample is too small."""
    below = special.bdtr(np.arange((count + 1) // 2), count, 0.5)  # chance that the median lies under rank k + 1
    rank = int((below <= (1 - confidence) / 2).sum())
    return (rank - 1, count - rank) if rank else None


def median_interval(values: Floats, confidence: float = CONFIDENCE) -> tuple[Floats, Floats, Floats]:
    """Median of each column and its order-statistic interval: (median, low, high); assumes no distribution.

    values: (n,) or (n, k) without NaN. Below 6 values no pair of them encloses the median so surely: NaN.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64), axis=0)
    nothing = np.full(ordered.shape[1:], np.nan)
    if len(ordered) == 0:
        return nothing, nothing, nothing
    median = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    ranks = _ranks(len(ordered), confidence)
    return (median, nothing, nothing) if ranks is None else (median, ordered[ranks[0]], ordered[ranks[1]])


def mean_interval(values: Floats, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Mean and its Student interval: (mean, low, high). values: (n,); NaN are left out; below 2 values NaN."""
    present = values[~np.isnan(values)]
    if len(present) == 0:
        return float("nan"), float("nan"), float("nan")
    mean = float(present.mean())
    if len(present) < 2:
        return mean, float("nan"), float("nan")
    half = float(special.stdtrit(len(present) - 1, (1 + confidence) / 2) * present.std(ddof=1) / np.sqrt(len(present)))
    return mean, mean - half, mean + half


def share_interval(hits: int, count: int, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """A share of `count` trials and its Wilson interval: (share, low, high); NaN without trials."""
    if count == 0:
        return float("nan"), float("nan"), float("nan")
    z = float(special.ndtri((1 + confidence) / 2))
    share, spread = hits / count, 1 + z * z / count
    centre = (share + z * z / (2 * count)) / spread
    half = z / spread * float(np.sqrt(share * (1 - share) / count + z * z / (4 * count * count)))
    return share, min(max(centre - half, 0.0), share), max(min(centre + half, 1.0), share)


def known(value: float) -> float | None:
    """NaN as null: not measured."""
    return None if np.isnan(value) else float(value)
