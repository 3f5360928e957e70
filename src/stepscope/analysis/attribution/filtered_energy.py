"""Energy that has passed the sensor's filter until an instant, from sums along a lane: O(pieces), not O(windows)."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.attribution.timeline import Lane
from stepscope.analysis.intervals import Floats

_BLOCK = 10.0  # time constants in a block: exp(10) still leaves a sum 11 digits
_BLOCKS_BACK = 3  # what is older weighs less than exp(-20)


def energy_until(lane: Lane, watts: Floats, t: Floats) -> Floats:
    """Energy of the pieces before each instant, J; watts: of each piece (n,)."""
    total = np.append(0.0, np.cumsum(watts * (lane.t1 - lane.t0)))
    number = np.searchsorted(lane.t1, t, side="right")
    here = np.minimum(number, len(watts) - 1)
    part = np.where(number < len(watts), np.maximum(t - lane.t0[here], 0.0), 0.0)
    passed: Floats = total[number] + watts[here] * part
    return passed


def energy_held(lane: Lane, watts: Floats, t: Floats, rc: float) -> Floats:
    """Energy that went in before each instant and has not come out of a first-order filter yet, J.

    The integral of watts(s) exp(-(t - s) / rc): each piece is summed relative to the begin of its block of time, so
    that no exponential grows beyond exp(10).
    """
    origin, span = float(lane.t0[0]), _BLOCK * rc
    block = np.floor((lane.t1 - origin) / span)
    since = origin + block * span
    put_in = watts * rc * (np.exp((lane.t1 - since) / rc) - np.exp((lane.t0 - since) / rc))
    total = np.append(0.0, np.cumsum(put_in))
    number = np.searchsorted(lane.t1, t, side="right")
    own = np.floor((t - origin) / span)
    held, stop = np.zeros(len(t)), number
    for back in range(_BLOCKS_BACK):
        begin = origin + (own - back) * span
        start = np.minimum(np.searchsorted(block, own - back), stop)
        held += (total[stop] - total[start]) * np.exp(-(t - begin) / rc)
        stop = start
    here = np.minimum(number, len(watts) - 1)
    part = np.where(number < len(watts), np.maximum(t - lane.t0[here], 0.0), 0.0)
    whole: Floats = held - watts[here] * rc * np.expm1(-part / rc)
    return whole
