"""Readings of one power source: windows that end at a stamp, from gauges, counters and running averages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse  # type: ignore[import-untyped]

from stepscope.analysis.energy.update_clocks import (
    UpdateClock,
    explains_repeats,
    fit_clock_to_changes,
    fit_clocks_to_repeats,
    is_periodic,
    number_readings,
    undelayed_stamps,
)
from stepscope.arrays import Flags, Floats

_SAME = 1e-7  # s: two ends of a window that are not two
_STILL = 1e-6  # of the power: what differs by less is the same
_BLURRED = 8.0  # updates: windows shorter than this say little where it is not known when the updates came
MOST_REPEATS = 0.25  # a share of equal neighbours above this means that the source is read faster than it moves


@dataclass(frozen=True)
class RunningAverage:
    """A running average as it was read: at `stamp` it held `watts`; a conversion of `weight` comes each `period`, s."""

    stamp: Floats
    watts: Floats
    weight: float
    period: float


@dataclass(frozen=True)
class Conversions:
    """Values (K,) of a running average, each once, at the conversions `number` (K,) that brought them, `stamp`, s."""

    stamp: Floats
    watts: Floats
    number: Floats
    weight: float
    period: float


@dataclass(frozen=True)
class Readings:
    """Mean power `watts` (M,) of windows that end at `stamp` (M,) less an unknown lag.

    `width` (M,) where the source is a counter: its windows are known. Otherwise the width is found by calibration.
    `mix` (M, L) where a reading is a weighted sum of L windows of the sensor (a running average taken apart); then
    `stamp` has L entries. `carry` above 0 says that what a reading lacks, the next one has (neighbour_errors.py).
    """

    stamp: Floats
    watts: Floats
    width: Floats | None = None
    mix: Any = None
    carry: float = 0.0
    tick: float = 0.0  # s, from update to update: a gauge's values, each once, at the update that brought it; else 0
    register: RunningAverage | None = None  # behind windows that could not be told conversion by conversion
    conversions: Conversions | None = None  # of a running average that was told conversion by conversion
    also: tuple[Readings, ...] = ()  # the same reads by other clocks that explain their repeats about as well
    trust: Floats | None = None  # (M,), relative: 1 over the error of each, where errors are known to differ

    @property
    def count(self) -> int:
        return len(self.watts)

    @property
    def is_gauge(self) -> bool:
        """Are these a register's values? Of a counter, or of an average taken apart, the windows are known."""
        return self.width is None and self.mix is None

    @property
    def has_update_times(self) -> bool:
        """Are these a gauge's values, each once, at the update that brought it?"""
        return self.tick > 0

    @property
    def period(self) -> float:
        """Median distance of the windows, s."""
        return float(np.median(np.diff(self.stamp))) if len(self.stamp) > 1 else 0.0

    @property
    def resolution(self) -> float:
        """Typical distance from one of the values to the next larger one, W: the step of a sensor that shows steps."""
        steps = np.diff(np.unique(self.watts))
        return float(np.median(steps)) if len(steps) else 0.0

    @property
    def still(self) -> bool:
        """Does the source stand still? What the arithmetic of taking a running average apart leaves is no movement."""
        return not self.count or bool(np.ptp(self.watts) <= _STILL * np.abs(self.watts).max())

    @property
    def weight(self) -> Floats:
        """Of each reading (M,), mean 1: a counter is as wrong in J over a long window as over a short one."""
        own = np.ones(self.count) if self.width is None else self.width / self.width.mean()
        return np.asarray(own) if self.trust is None else np.asarray(own * self.trust / (own * self.trust).mean())

    @property
    def at(self) -> Floats:
        """Stamp of each reading (M,): of the last of its windows."""
        if self.mix is None:
            return self.stamp
        last: Floats = self.stamp[sparse.csr_matrix(self.mix).indices[self.mix.indptr[1:] - 1]]
        return last

    def reweighted(self, factor: float) -> Readings:
        """All readings of a running average, were the weight of one conversion so many times what is stated."""
        if self.conversions is not None:
            means = self.conversions
            return _readings_by_conversion(means.stamp, means.watts, means.number, means.weight * factor, means.period)
        if self.register is not None:
            register = self.register
            return _readings_by_window(register.stamp, register.watts, register.weight * factor, register.period)
        return self

    def first(self, count: int) -> Readings:
        """The first so many readings."""
        return self.select(np.arange(self.count) < count) if count < self.count else self

    def select(self, chosen: Flags) -> Readings:
        """Some of the readings, in order."""
        watts = self.watts[chosen]
        trust = None if self.trust is None else self.trust[chosen]
        if self.mix is None:
            width = None if self.width is None else self.width[chosen]
            return replace(self, stamp=self.stamp[chosen], watts=watts, width=width, trust=trust)
        mix = self.mix[np.flatnonzero(chosen)]
        used = np.zeros(len(self.stamp), dtype=bool)
        used[mix.indices] = True
        return replace(self, stamp=self.stamp[used], watts=watts, mix=mix[:, np.flatnonzero(used)], trust=trust)


_PER_UPDATE = 1.5  # reads: below, it is not seen when the value changed
_FEWEST_UPDATES = 20
_MOST_REPEATED = 4  # reads in a row
_BEYOND_CHANCE, _FEWEST_EQUAL = 2.0, 5  # equal neighbours against neighbours one step of resolution apart


_COARSE_STAMPS = 0.5  # moments a reading below which the stamps of a log are coarse: whole seconds, say


def stamped_values(t0: Floats, t1: Floats, watts: Floats) -> tuple[Floats, Floats]:
    """Return stamps and values of what was read, NaN excluded, in order of time, each moment once.

    Of readings that share a stamp by chance the first counts, since the stamp is its own; of those that share one in
    a log of coarse stamps their mean. t0, t1: (M,) begin and end of each read.
    """
    read = ~(np.isnan(watts) | np.isnan(t0) | np.isnan(t1))
    stamp, first, place = np.unique((t0[read] + t1[read]) / 2, return_index=True, return_inverse=True)
    watts = watts[read]
    if len(stamp) >= _COARSE_STAMPS * len(watts):
        return stamp, watts[first]
    return stamp, np.bincount(place.reshape(-1), watts) / np.bincount(place.reshape(-1))


def from_gauge(t0: Floats, t1: Floats, watts: Floats, refresh: float | None = None) -> Readings:
    """Samples of a power register, read between t0 and t1; NaN is excluded, and so is what was read twice.

    A register that is read faster than it moves tells its clock: readings are then placed at the updates.
    """
    stamp, watts = stamped_values(t0, t1, watts)
    clocks = _clocks_of_gauge(stamp, watts, refresh)
    if clocks:
        first, *others = (_readings_at_updates(stamp, watts, clock) for clock in clocks)
        return replace(first, also=tuple(others))
    new = new_value_flags(stamp, watts, refresh) & ~_repeat_flags(watts)
    return Readings(stamp[new], watts[new])


def _clocks_of_gauge(stamp: Floats, watts: Floats, refresh: float | None) -> list[UpdateClock]:
    """The clocks that can be behind a gauge's changes; none where it is not read often enough to see them."""
    moved = np.append(False, np.diff(watts) != 0)
    if moved.sum() < _FEWEST_UPDATES:
        return []
    clocks = fit_clocks_to_repeats(stamp, watts, refresh)
    interval = float(np.median(np.diff(stamp[moved])))
    if clocks or interval < _PER_UPDATE * float(stamp[-1] - stamp[0]) / (len(stamp) - 1):
        return clocks
    clock = fit_clock_to_changes(stamp, moved, refresh if refresh and abs(refresh / interval - 1) < 0.5 else interval)
    return [clock] if clock is not None and explains_repeats(clock, stamp, watts) else []


def _readings_at_updates(stamp: Floats, watts: Floats, clock: UpdateClock) -> Readings:
    """Each value once, at the update before it was first read; a read beside an update may show either value."""
    sure = ~clock.is_near_update(stamp)
    number = clock.number(stamp)
    place = np.flatnonzero(sure)
    first = place[np.append(True, np.diff(number[place]) > 0)[: len(place)]]
    return Readings(clock.update_times(number[first]), watts[first], tick=clock.period)


def _repeat_flags(watts: Floats) -> Flags:
    """Readings that equal the one before, where that is commoner than chance: a value was given out twice.

    What stays equal for longer is power that does not move.
    """
    change = np.diff(watts)
    apart = np.abs(change[change != 0])
    begin = np.flatnonzero(np.append(True, change != 0)[: len(watts)])
    size = np.diff(np.append(begin, len(watts)))
    again = np.ones(len(watts), dtype=bool)
    again[begin] = False
    again &= np.repeat(size, size) <= _MOST_REPEATED
    if again.sum() < _FEWEST_EQUAL or not len(apart):
        return np.zeros(len(watts), dtype=bool)
    step = float(apart.min())
    beside = float((np.abs(apart - step) < 0.25 * step).sum()) / 2  # as common as equal ones, by chance
    return again if again.sum() >= _BEYOND_CHANCE * beside + _FEWEST_EQUAL else np.zeros(len(watts), dtype=bool)


def new_value_flags(stamp: Floats, value: Floats, refresh: float | None) -> Flags:
    """Readings that hold something new: the value moved, or a whole refresh has passed since the last that did."""
    new = np.ones(len(value), dtype=bool)
    if len(value) < 2:
        return new
    moved = np.append(True, np.diff(value) != 0)
    if refresh is None and (1 - moved.mean() < MOST_REPEATS or moved.sum() < 2):  # one that stands still tells no pace
        return new
    if refresh is not None and float(np.median(np.diff(stamp))) >= 0.95 * refresh:
        return new
    period = refresh if refresh is not None else float(np.median(np.diff(stamp[moved])))
    since = stamp - np.maximum.accumulate(np.where(moved, stamp, -np.inf))
    passed = np.floor(since / period + 0.02)
    again = np.append(False, (passed[1:] > passed[:-1]) & ~moved[1:])
    flags: Flags = moved | again
    return flags


def from_counter(
    t0: Floats, t1: Floats, joules: Floats, gaps: Floats | None = None, refresh: float | None = None
) -> Readings:
    """Windows between the updates of an energy counter that never goes back (wraps undone before).

    A window in which the counter was not read (NaN in between, or one of `gaps` (m, 2)) is excluded, not bridged.
    Where it is read faster than it moves, the windows end at its updates instead of at the reads.
    """
    stamp = (t0 + t1) / 2
    unread = np.isnan(joules) | np.isnan(stamp)
    broken_before = np.cumsum(unread)[~unread]
    stamp, joules = stamp[~unread], joules[~unread]
    if len(stamp) < 2:
        return Readings(stamp[:0], joules[:0], stamp[:0], carry=1.0)
    moved = np.append(False, np.diff(joules) > 0)
    clock = fit_clock_to_changes(stamp, moved, refresh)
    earlier = np.append(-np.inf, stamp[:-1])
    stamp, joules, before = stamp[moved], joules[moved], broken_before[moved]  # the first window began before it
    edges = stamp
    if clock is not None:
        # A read that falls on an update may show the one before; after a short wait there is no other it could show.
        clear = ~clock.is_near_update(stamp) | (stamp - earlier[moved] < 0.85 * clock.period)
        edges, stamp, joules, before, since = (x[clear] for x in (stamp, stamp, joules, before, earlier[moved]))
        edges = clock.change_times(since, stamp)
    apart = _flags_of_edges_apart(edges, _SAME if clock is not None or refresh is None else _BLURRED * refresh)
    edges, stamp, joules, before = edges[apart], stamp[apart], joules[apart], before[apart]
    width, grown, whole = np.diff(edges), np.diff(joules), np.diff(before) == 0
    for begin, end in gaps if gaps is not None else ():
        whole &= (stamp[1:] <= begin) | (stamp[:-1] >= end)
    return Readings(edges[1:][whole], grown[whole] / width[whole], width[whole], carry=1.0 if clock is None else 0.0)


def _flags_of_edges_apart(edges: Floats, least: float) -> Flags:
    """Edges that lie at least so far from the last that was taken; the first is."""
    is_apart = np.zeros(len(edges), dtype=bool)
    if len(edges) and float(np.diff(edges).min(initial=np.inf)) > least:
        return ~is_apart
    last = -np.inf
    for index, edge in enumerate(edges.tolist()):
        if edge - last > least:
            is_apart[index], last = True, edge
    return is_apart


def move_to_updates(readings: Readings, clock: UpdateClock) -> Readings:
    """A counter's windows with both ends moved back to the updates; an end that is unsure joins two windows.

    Leaving such windows out would leave their energy out, and they are not like the others: a program that keeps the
    core busy is also what makes reads late.
    """
    assert readings.width is not None, "a counter has widths"
    begin, grown = readings.stamp - readings.width, np.cumsum(readings.watts * readings.width)
    apart = np.append(True, begin[1:] - readings.stamp[:-1] > _SAME)
    first, chain = np.flatnonzero(apart), np.cumsum(apart)
    edge = np.insert(readings.stamp, first, begin[first])
    joules = np.insert(grown, first, (grown - readings.watts * readings.width)[first])
    chain = np.insert(chain, first, chain[first])
    sure = ~clock.is_near_update(edge)
    at, joules, chain = clock.last_update_times(edge[sure]), joules[sure], chain[sure]
    new = np.append(True, (np.diff(at) > _SAME) | (np.diff(chain) > 0))[: len(at)]
    at, joules, chain = at[new], joules[new], chain[new]
    joined = np.diff(chain) == 0
    width = np.diff(at)[joined]
    return Readings(at[1:][joined], np.diff(joules)[joined] / width, width)


def move_to_conversions(readings: Readings, clock: UpdateClock) -> Readings:
    """A gauge's readings at the conversions that they show, each once; one read beside an update is excluded."""
    number = clock.number(readings.stamp)
    sure = np.flatnonzero(~clock.is_near_update(readings.stamp))
    first = sure[np.append(True, np.diff(number[sure]) > 0)[: len(sure)]]
    return replace(readings, stamp=clock.update_times(number[first]), watts=readings.watts[first])


# new = old + weight (conversion - old): INA3221 in averaging mode (Texas Instruments, SBOS576), 1.1 ms every 6.6 ms on
# a Jetson. Conversions come by the chip's own clock; a reading tells one only if none was missed in between.

_POLLED_FASTER, _POLLED_SLOWER = 0.8, 1.2  # conversion periods: below each conversion is seen, above some are missed
_TOO_FEW = 20
_MOST_MISSED = 8  # conversions between two readings beyond which a new chain begins


def from_running_average(stamp: Floats, watts: Floats, weight: float, period: float) -> Readings:
    """Mean power of the conversions between readings, W. weight: of one conversion; period: of conversions, s.

    `stamp` (M,) and `watts` (M,) are as read, without NaN. Readings that are slower than the conversions leave it open
    which of them they hold: then each is a window since the reading before, with its own width.
    """
    if len(stamp) < _TOO_FEW:
        return Readings(stamp[:0], watts[:0])
    distance = float(np.median(np.diff(stamp)))
    if distance < _POLLED_FASTER * period:
        clock = fit_clock_to_changes(stamp, np.append(False, np.diff(watts) != 0), period)
        if clock is not None:
            number = clock.number(stamp)
            is_first = np.append(True, np.diff(number) > 0)
            update_times = clock.last_update_times(stamp)
            return _readings_by_conversion(
                update_times[is_first], watts[is_first], number[is_first], weight, clock.period
            )
    if distance < _POLLED_SLOWER * period and is_periodic(stamp):
        return _readings_by_conversion(undelayed_stamps(stamp), watts, number_readings(stamp), weight, distance)
    return _readings_by_window(stamp, watts, weight, period)


def _readings_by_window(stamp: Floats, watts: Floats, weight: float, period: float) -> Readings:
    """Each reading less what is left of the one before: the mean over the time between, nearly evenly weighted."""
    width = np.diff(stamp)
    carry = np.exp(np.log1p(-weight) * width / period)
    mean = (watts[1:] - carry * watts[:-1]) / (1 - carry)
    return Readings(stamp[1:], mean, width, register=RunningAverage(stamp, watts, weight, period))


def readings_by_clock(register: RunningAverage, clock: UpdateClock) -> Readings:
    """Return what the reads tell of the conversions between them, once it is known when those were."""
    number = clock.number(register.stamp)
    is_first = np.append(True, np.diff(number) > 0) & ~clock.is_near_update(register.stamp)
    update_times = clock.last_update_times(register.stamp)
    return _readings_by_conversion(
        update_times[is_first], register.watts[is_first], number[is_first], register.weight, clock.period
    )


def prediction_errors(register: RunningAverage, end: Floats, fitted: Floats) -> tuple[Floats, Floats]:
    """By how much each reading is off what the one before and a first fit predict (M,), W; and its speed, W/s.

    end: (M,) stamps of the windows; fitted: (M,) mean power in each.
    """
    place = np.searchsorted(register.stamp, end)
    current, before = register.watts[place], register.watts[place - 1]
    width = register.stamp[place] - register.stamp[place - 1]
    carry = np.exp(np.log1p(-register.weight) * width / register.period)
    surprise = current - carry * before - (1 - carry) * fitted
    return surprise, (fitted - current) * register.weight / register.period


def _readings_by_conversion(stamp: Floats, watts: Floats, number: Floats, weight: float, period: float) -> Readings:
    """One window a conversion; a reading after missed conversions is their weighted mean."""
    means = Conversions(stamp, watts, number, weight, period)
    steps = np.diff(number).astype(np.int64)
    carry = (1 - weight) ** steps
    mean = (watts[1:] - carry * watts[:-1]) / (1 - carry)
    chosen = steps <= _MOST_MISSED
    stamp, mean, steps, carry = stamp[1:][chosen], mean[chosen], steps[chosen], carry[chosen]
    if (steps == 1).all():
        return Readings(stamp, mean, conversions=means)
    row = np.repeat(np.arange(len(steps)), steps)
    back = np.repeat(np.cumsum(steps), steps) - 1 - np.arange(len(row))  # conversions before the last of the reading
    share = weight * (1 - weight) ** back / (1 - carry[row])
    mix = sparse.csr_matrix((share, np.arange(len(row)), np.append(0, np.cumsum(steps))), (len(steps), len(row)))
    return Readings(stamp[row] - back * period, mean, mix=mix, conversions=means)


_DECAY = 3.0  # time constants after the load that a decay is followed
_FEWEST_DECAY, _CLEAR_DECAY = 20, 20.0  # readings of it; its height in steps of the sensor
_PURE = 0.01  # of the height of a decay: what it may be off an exponential
_LEAST_SD = 0.01  # of a time constant that a decay tells


def fit_decay_time(stamp: Floats, watts: Floats, end: float, nominal: float, step: float) -> tuple[float, float] | None:
    """The time constant of a running average, s, and its standard deviation, from its fall after a load's end.

    None where what follows is no clean exponential: then the device did not rest at once. stamp, watts: (M,) as read;
    nominal: time constant as stated, s; step: of the sensor, W.
    """
    after = (stamp > end + 0.05 * nominal) & (stamp < end + _DECAY * nominal)
    t, y = stamp[after] - end, watts[after]
    if len(t) < _FEWEST_DECAY or t[-1] - t[0] < nominal:
        return None
    tried = nominal * np.geomspace(0.4, 2.5, 121)
    errors, heights = np.empty(len(tried)), np.empty(len(tried))
    for index, tau in enumerate(tried.tolist()):
        shape = np.column_stack([np.ones(len(t)), np.exp(-t / tau)])
        solution = np.linalg.lstsq(shape, y, rcond=None)[0]
        errors[index], heights[index] = float(((y - shape @ solution) ** 2).mean()), abs(float(solution[1]))
    best = int(np.argmin(errors))
    height, noise = heights[best], max(float(errors[best]), 1e-12)
    if not 0 < best < len(tried) - 1 or height < _CLEAR_DECAY * step or noise**0.5 > step + _PURE * height:
        return None
    bend = float(errors[best - 1] + errors[best + 1] - 2 * errors[best]) / float(np.log(tried[1] / tried[0])) ** 2
    sd = float(np.sqrt(2 * noise / max(bend, 1e-30) / len(t)))
    return float(tried[best]), float(tried[best]) * max(sd, _LEAST_SD)


_STEPS = 3  # what only rests moves again in the next step
_LEAST_S, _FEWEST_STILL = 0.5, 50  # of a stretch, and of readings beside it that tell how often the source moves
_CHANCE = 1e-9  # that a source which moves as this one does rests so long by itself


def stuck_readings(t: Floats, watts: Floats, step_s: float) -> Flags:
    """Readings (M,) of every stretch of one value that chance and a step's own pauses do not explain."""
    stuck = np.zeros(len(watts), dtype=bool)
    valid = np.flatnonzero(~np.isnan(watts))
    if len(valid) < 2 * _FEWEST_STILL:
        return stuck
    moved = np.append(True, np.diff(watts[valid]) != 0)
    begin = np.flatnonzero(moved)
    size = np.diff(np.append(begin, len(valid)))
    last = begin + size - 1
    for number in np.argsort(-size, kind="stable").tolist():
        inside = valid[begin[number] : last[number] + 1]
        beside = len(valid) - int(stuck.sum()) - len(inside)
        rests = size - 1
        resting = float(rests.sum() - rests[number] - max(int(stuck.sum()) - 1, 0)) / max(beside, 1)
        if beside < _FEWEST_STILL or t[inside[-1]] - t[inside[0]] < max(_LEAST_S, _STEPS * step_s):
            break
        if resting > 0 and len(inside) * np.log(min(resting, 1.0)) > np.log(_CHANCE / len(valid)):
            break
        stuck[inside] = True
    return stuck
