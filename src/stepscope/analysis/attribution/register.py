"""A register that holds a running average, taken apart into the conversions that moved it.

new = old + weight (conversion - old): INA3221 in averaging mode (Texas Instruments, SBOS576), 1.1 ms every 6.6 ms on
a Jetson. Conversions come by the chip's own clock; a reading tells one only if none was missed in between.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse  # type: ignore[import-untyped]

from stepscope.analysis.attribution.clock_fit import fitted_clock, is_periodic, numbered
from stepscope.analysis.attribution.readings import Readings, Register
from stepscope.analysis.attribution.update_clock import UpdateClock, clock_of_changes
from stepscope.analysis.intervals import Floats

_POLLED_FASTER, _POLLED_SLOWER = 0.8, 1.2  # conversion periods: below each conversion is seen, above some are missed
_TOO_FEW = 20
_MOST_MISSED = 8  # conversions between two readings beyond which a new chain begins


def taken_apart(stamp: Floats, watts: Floats, weight: float, period: float) -> Readings:
    """Mean power of the conversions between readings, W. weight: of one conversion; period: of conversions, s.

    `stamp` (M,) and `watts` (M,) are as read, without NaN. Readings that are slower than the conversions leave it open
    which of them they hold: then each is a window since the reading before, with its own width.
    """
    if len(stamp) < _TOO_FEW:
        return Readings(stamp[:0], watts[:0])
    distance = float(np.median(np.diff(stamp)))
    if distance < _POLLED_FASTER * period:
        clock = clock_of_changes(stamp, np.append(False, np.diff(watts) != 0), period)
        if clock is not None:
            number = clock.number(stamp)
            seen = np.append(True, np.diff(number) > 0)
            made = clock.latched(stamp)
            return _by_conversions(made[seen], watts[seen], number[seen], weight, clock.period)
    if distance < _POLLED_SLOWER * period and is_periodic(stamp):
        return _by_conversions(fitted_clock(stamp), watts, numbered(stamp), weight, distance)
    return _by_windows(stamp, watts, weight, period)


def _by_windows(stamp: Floats, watts: Floats, weight: float, period: float) -> Readings:
    """Each reading less what is left of the one before: the mean over the time between, nearly evenly weighted."""
    width = np.diff(stamp)
    kept = np.exp(np.log1p(-weight) * width / period)
    mean = (watts[1:] - kept * watts[:-1]) / (1 - kept)
    return Readings(stamp[1:], mean, width, register=Register(stamp, watts, weight, period))


def by_clock(register: Register, clock: UpdateClock) -> Readings:
    """What the reads tell of the conversions between them, once it is known when those were."""
    number = clock.number(register.stamp)
    seen = np.append(True, np.diff(number) > 0) & ~clock.unsure(register.stamp)
    made = clock.latched(register.stamp)
    return _by_conversions(made[seen], register.watts[seen], number[seen], register.weight, clock.period)


def surprises(register: Register, end: Floats, fitted: Floats) -> tuple[Floats, Floats]:
    """By how much each reading is off what the one before and a first fit foretell (M,), W; and its speed, W/s.

    end: (M,) stamps of the windows; fitted: (M,) mean power in each.
    """
    place = np.searchsorted(register.stamp, end)
    held, before = register.watts[place], register.watts[place - 1]
    width = register.stamp[place] - register.stamp[place - 1]
    kept = np.exp(np.log1p(-register.weight) * width / register.period)
    surprise = held - kept * before - (1 - kept) * fitted
    return surprise, (fitted - held) * register.weight / register.period


def _by_conversions(stamp: Floats, watts: Floats, number: Floats, weight: float, period: float) -> Readings:
    """One window a conversion; a reading after missed conversions is their weighted mean."""
    steps = np.diff(number).astype(np.int64)
    kept = (1 - weight) ** steps
    mean = (watts[1:] - kept * watts[:-1]) / (1 - kept)
    chosen = steps <= _MOST_MISSED
    stamp, mean, steps, kept = stamp[1:][chosen], mean[chosen], steps[chosen], kept[chosen]
    if (steps == 1).all():
        return Readings(stamp, mean)
    row = np.repeat(np.arange(len(steps)), steps)
    back = np.repeat(np.cumsum(steps), steps) - 1 - np.arange(len(row))  # conversions before the last of the reading
    share = weight * (1 - weight) ** back / (1 - kept[row])
    mix = sparse.csr_matrix((share, np.arange(len(row)), np.append(0, np.cumsum(steps))), (len(steps), len(row)))
    return Readings(stamp[row] - back * period, mean, mix=mix)
