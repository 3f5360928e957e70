"""What one power source said: windows that end at a stamp, and the mean power in each. Seconds and watts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse  # type: ignore[import-untyped]

from stepscope.analysis.attribution.timeline import Flags
from stepscope.analysis.attribution.update_clock import UpdateClock, clock_of_changes
from stepscope.analysis.intervals import Floats

_SAME = 1e-7  # s: two ends of a window that are not two
_STILL = 1e-6  # of the power: what differs by less is the same
_BLURRED = 8.0  # updates: windows shorter than this say little where it is not known when the updates came
MOST_REPEATS = 0.25  # a share of equal neighbours above this means that the source is read faster than it moves


@dataclass(frozen=True)
class Register:
    """A running average as it was read: at `stamp` it held `watts`; a conversion of `weight` comes each `period`, s."""

    stamp: Floats
    watts: Floats
    weight: float
    period: float


@dataclass(frozen=True)
class Readings:
    """Mean power `watts` (M,) of windows that end at `stamp` (M,) less an unknown lag.

    `width` (M,) where the source is a counter: its windows are known. Otherwise the width is found by calibration.
    `mix` (M, L) where a reading is a weighted sum of L windows of the sensor (a running average taken apart); then
    `stamp` has L entries. `carry` above 0 says that what a reading lacks, the next one has (whitening.py).
    """

    stamp: Floats
    watts: Floats
    width: Floats | None = None
    mix: Any = None
    carry: float = 0.0
    register: Register | None = None  # behind windows that could not be told conversion by conversion

    @property
    def count(self) -> int:
        return len(self.watts)

    @property
    def period(self) -> float:
        """Median distance of the windows, s."""
        return float(np.median(np.diff(self.stamp))) if len(self.stamp) > 1 else 0.0

    @property
    def still(self) -> bool:
        """Does the source stand still? What the arithmetic of taking a running average apart leaves is no movement."""
        return not self.count or bool(np.ptp(self.watts) <= _STILL * np.abs(self.watts).max())

    @property
    def weight(self) -> Floats:
        """Of each reading (M,), mean 1: a counter is as wrong in J over a long window as over a short one."""
        return np.ones(self.count) if self.width is None else np.asarray(self.width / self.width.mean())

    @property
    def at(self) -> Floats:
        """Stamp of each reading (M,): of the last of its windows."""
        if self.mix is None:
            return self.stamp
        last: Floats = self.stamp[sparse.csr_matrix(self.mix).indices[self.mix.indptr[1:] - 1]]
        return last

    def first(self, count: int) -> Readings:
        """The first so many readings."""
        return self.kept(np.arange(self.count) < count) if count < self.count else self

    def kept(self, chosen: Flags) -> Readings:
        """Some of the readings, in order."""
        watts = self.watts[chosen]
        if self.mix is None:
            width = None if self.width is None else self.width[chosen]
            return replace(self, stamp=self.stamp[chosen], watts=watts, width=width)
        mix = self.mix[np.flatnonzero(chosen)]
        used = np.zeros(len(self.stamp), dtype=bool)
        used[mix.indices] = True
        return replace(self, stamp=self.stamp[used], watts=watts, mix=mix[:, np.flatnonzero(used)])


def from_gauge(t0: Floats, t1: Floats, watts: Floats, refresh: float | None = None) -> Readings:
    """Samples of a power register, read between t0 and t1; NaN is left out, and so is what was read twice."""
    read = ~(np.isnan(watts) | np.isnan(t0) | np.isnan(t1))
    stamp, watts = (t0[read] + t1[read]) / 2, watts[read]
    order = np.argsort(stamp, kind="stable")
    stamp, watts = stamp[order], watts[order]
    new = fresh(stamp, watts, refresh)
    return Readings(stamp[new], watts[new])


def fresh(stamp: Floats, value: Floats, refresh: float | None) -> Flags:
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
    held: Flags = moved | again
    return held


def from_counter(
    t0: Floats, t1: Floats, joules: Floats, gaps: Floats | None = None, refresh: float | None = None
) -> Readings:
    """Windows between the updates of an energy counter that never goes back (wraps undone before).

    A window in which the counter was not read (NaN in between, or one of `gaps` (m, 2)) is left out, not bridged.
    Where it is read faster than it moves, the windows end at its updates instead of at the reads.
    """
    stamp = (t0 + t1) / 2
    unread = np.isnan(joules) | np.isnan(stamp)
    broken_before = np.cumsum(unread)[~unread]
    stamp, joules = stamp[~unread], joules[~unread]
    if len(stamp) < 2:
        return Readings(stamp[:0], joules[:0], stamp[:0], carry=1.0)
    moved = np.append(False, np.diff(joules) > 0)
    clock = clock_of_changes(stamp, moved, refresh)
    earlier = np.append(-np.inf, stamp[:-1])
    stamp, joules, before = stamp[moved], joules[moved], broken_before[moved]  # the first window began before it
    edges = stamp
    if clock is not None:
        # A read that falls on an update may show the one before; after a short wait there is no other it could show.
        clear = ~clock.unsure(stamp) | (stamp - earlier[moved] < 0.85 * clock.period)
        edges, stamp, joules, before, since = (x[clear] for x in (stamp, stamp, joules, before, earlier[moved]))
        edges = clock.of_change(since, stamp)
    apart = _apart(edges, _SAME if clock is not None or refresh is None else _BLURRED * refresh)
    edges, stamp, joules, before = edges[apart], stamp[apart], joules[apart], before[apart]
    width, grown, whole = np.diff(edges), np.diff(joules), np.diff(before) == 0
    for begin, end in gaps if gaps is not None else ():
        whole &= (stamp[1:] <= begin) | (stamp[:-1] >= end)
    return Readings(edges[1:][whole], grown[whole] / width[whole], width[whole], carry=1.0 if clock is None else 0.0)


def _apart(edges: Floats, least: float) -> Flags:
    """Edges that lie at least so far from the last that was taken; the first is."""
    taken = np.zeros(len(edges), dtype=bool)
    if len(edges) and float(np.diff(edges).min(initial=np.inf)) > least:
        return ~taken
    last = -np.inf
    for place, edge in enumerate(edges.tolist()):
        if edge - last > least:
            taken[place], last = True, edge
    return taken


def relatched(readings: Readings, clock: UpdateClock) -> Readings:
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
    sure = ~clock.unsure(edge)
    at, joules, chain = clock.latched(edge[sure]), joules[sure], chain[sure]
    new = np.append(True, (np.diff(at) > _SAME) | (np.diff(chain) > 0))[: len(at)]
    at, joules, chain = at[new], joules[new], chain[new]
    joined = np.diff(chain) == 0
    width = np.diff(at)[joined]
    return Readings(at[1:][joined], np.diff(joules)[joined] / width, width)


def converted(readings: Readings, clock: UpdateClock) -> Readings:
    """A gauge's readings at the conversions that they show, each once; one read beside an update is left out."""
    number = clock.number(readings.stamp)
    sure = np.flatnonzero(~clock.unsure(readings.stamp))
    first = sure[np.append(True, np.diff(number[sure]) > 0)[: len(sure)]]
    return replace(readings, stamp=clock.made(number[first]), watts=readings.watts[first])
