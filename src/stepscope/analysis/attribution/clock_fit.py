"""The clock of a periodic source behind stamps that are late by a positive, noisy delay."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.intervals import Floats

_ROUNDS = 12
_LATE_WEIGHT = 0.05  # a stamp above the line says little: it was late
_OFF, _OFTEN = 0.3, 0.1  # of a period off a whole number of them; a share of the distances
_LOST, _NEAR = 1.5, 9  # a distance of so many periods may mean lost readings; so many neighbours decide


def fitted_clock(stamp: Floats) -> Floats:
    """Stamps moved onto the source's own clock: a line under the lower envelope of (number, stamp), s.

    Where readings were lost the numbers skip. Fewer than 20 stamps are returned as they are.
    """
    if len(stamp) < 20:
        return stamp
    number = numbered(stamp)
    design = np.column_stack([np.ones(len(number)), (number - number.mean()) / number.std()])
    weight = np.ones(len(number))
    line = stamp
    for _ in range(_ROUNDS):
        root = np.sqrt(weight)
        solution = np.linalg.lstsq(design * root[:, None], stamp * root, rcond=None)[0]
        line = design @ solution
        weight = np.where(stamp > line, _LATE_WEIGHT, 1.0)
    return np.asarray(line)


def numbered(stamp: Floats) -> Floats:
    """Number of each reading in units of the period, from 0; lost readings leave holes.

    A late stamp is followed by punctual ones, a lost reading is not: what counts is how far the earliest of the next
    readings lies behind the earliest of those before.
    """
    count = len(stamp)
    over = max(min(50, count // 4), 1)
    period = float(np.median(stamp[over:] - stamp[:-over])) / over
    drift = stamp - period * np.arange(count)
    holes = np.zeros(count)
    since = 0
    for place in np.flatnonzero(np.diff(stamp) > _LOST * period) + 1:
        before = drift[max(since, place - _NEAR) : place].min()
        lost = round(float(drift[place : place + _NEAR].min() - before) / period)
        if lost > 0:
            holes[place], since = lost, int(place)
    numbers: Floats = np.arange(count, dtype=np.float64) + np.cumsum(holes)
    return numbers


def is_periodic(stamp: Floats) -> bool:
    """Do the stamps keep to a clock: is their lateness against it bounded rather than a walk (a dithered sampler)?

    Distances of a clock that is read late alternate (late, then early): their neighbours correlate at -0.5.
    A sampler that draws each distance anew has none; one that aims at a grid is a clock too. Distances of the golden
    ratio (0.62 and 1.62 of a period) are no clock's: what is longer than a period must be several.
    """
    distance = np.diff(stamp)
    if len(distance) < 20:
        return False
    periods = distance / float(np.median(distance))
    longer = periods > _LOST
    if float((longer & (np.abs(periods - np.rint(periods)) > _OFF)).mean()) > _OFTEN:
        return False
    regular = distance[~longer]
    spread = regular - regular.mean()
    varies = float(spread @ spread)
    if varies <= 0 or spread.std() < 0.002 * regular.mean():
        return True
    return float(spread[1:] @ spread[:-1]) / varies < -0.25
