"""Energy from readings of power: trapezoids over the readings' own times (Eq. 4 of the 2019 paper)."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.growth import Growth
from stepscope.analysis.intervals import Floats

MOST_W = 5000.0  # more than any machine draws that this is for: a reading above is garbage
_NOTHING_NEWER = 2.2  # refreshes
_LONG_PERIODS, _LONG_NS = 20, 500_000_000  # a longer silence than both is a gap even where no row says so


def integrated(t_ns: Floats, power_w: Floats, refresh_ns: float = 0.0) -> Growth:
    """Energy between good readings of power, J; power that is negative or beyond reason was not read.

    t_ns, power_w: (n,), NaN where not read. A gap is where a reading failed, or where none was taken for long;
    not where the sensor had nothing newer to give, which it says by the same NaN: readings two refreshes apart.
    """
    good = np.isfinite(power_w) & (power_w >= 0) & (power_w <= MOST_W)
    read = np.flatnonzero(good)
    t, watts = t_ns[read], power_w[read]
    if len(read) < 2:
        return Growth(t, np.empty(0), np.empty(0, dtype=np.bool_))
    apart = np.diff(t)
    silent = apart > max(_LONG_PERIODS * float(np.median(apart)), _LONG_NS)
    gap = ((np.diff(read) > 1) & (apart > _NOTHING_NEWER * refresh_ns)) | silent
    refused = int((~good & np.isfinite(power_w)).sum())
    steps = np.where(gap, np.nan, apart * (watts[1:] + watts[:-1]) / 2e9)
    return Growth(t, steps, gap, refused=refused)


def seen_refresh_ns(t_ns: Floats, values: Floats) -> float:
    """How often a gauge that does not say so takes a new value, ns: the typical time between changes.

    0 where it never changes, or with nearly every reading: then the readings themselves are the limit.
    """
    moved = np.flatnonzero(np.diff(values)) + 1
    if not len(moved):
        return 0.0
    between = np.diff(t_ns[moved]) if len(moved) > 1 else np.diff(t_ns[[0, moved[0], -1]])
    typical = float(np.median(between)) if len(moved) > 1 else float(between.max())
    return typical if typical > _NOTHING_NEWER * float(np.median(np.diff(t_ns))) else 0.0
