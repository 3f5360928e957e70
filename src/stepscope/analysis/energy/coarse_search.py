"""Where a calibration starts: lags and widths on a grid, with powers by kind, and what is likely before any reading."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from stepscope.analysis.energy.readings import Readings
from stepscope.analysis.energy.sensor_model import SHORTEST_RC, SensorModel
from stepscope.analysis.energy.timeline import Timeline
from stepscope.arrays import Floats, Ints

_STATED_SPREAD, _FAR_OFF = 0.5, 4.0  # of the logarithm of a stated window; the most that it weighs against the readings
_LATE_COST = 1.0  # of a delay, per refresh beyond the first
_EARLY_COST = 6.0  # of a value that is read before it is made
_FILTER_COST = 1.0
_HOLD_COST = 0.2  # of values of unknown age: of two models that are as likely, the one without
A_THIRD = 0.3  # of the logarithm of a width


@dataclass(frozen=True)
class Prior:
    """The facts that are stated of a source before any reading, s: none is certain but `width`.

    `width`: of its windows where that is certain; `refresh`: between its updates; `stated`: its averaging window;
    `hold`: how much older than the last moment a value can be, where its clock is not known.
    """

    width: float | None = None
    refresh: float | None = None
    stated: float | None = None
    hold: float = 0.0

    def weight(self, model: SensorModel, period: float) -> float:
        """Logarithm of how likely a model is before any reading, up to a constant."""
        refresh = self.refresh or period
        log = -_FILTER_COST if model.rc > SHORTEST_RC else 0.0
        log -= _HOLD_COST if model.hold else 0.0
        if self.stated and model.width:
            log -= min(0.5 * (math.log(model.width / self.stated) / _STATED_SPREAD) ** 2, _FAR_OFF)
        if model.lag < 0:
            log -= min(-model.lag / (0.05 * refresh), 1.0) * _EARLY_COST
        return log - _LATE_COST * min(max(model.lag / refresh - 1, 0.0), 3.0)


# Widths as multiples of the period: spot conversions, part-time, full-time, slow filters.
WIDTHS = (0.014, 0.05, 0.11, 0.25, 0.5, 1.0, 1.6, 2.5, 5.0, 10.0, 40.0)
HELD_WIDTHS = (0.11, 0.5, 1.0, 2.5)  # of the hold: of what is read at unknown ages
SHORTEST, LONGEST = 2.5e-4, 0.5  # s; from a start at the shortest the descent goes on to what is shorter still
_LATEST = 0.05  # s, of the lag; slow sources are given more
_AHEAD = 0.001  # s: by how much the stamp of a read can come before the end of what it shows; none shows the future
_FINEST_GRID, _MOST_GRID = 2.5e-4, 60_000
_INSIDE = 0.98  # of a window must lie within the steps
_FINEST_LAG, _MOST_LAGS, _VALLEYS = 4e-4, 60, 3
_FAR_LAGS, _FAR_READINGS, _FAR_WIDTHS = 90, 400, (0.2, 1.1)  # of the search beyond usual delays, by the refresh
_SMOOTH, _LOW = 1.6e-3, 12  # s: windows over which errors change slowly with the lag; of them the lowest are looked at
_COARSE_RIDGE = 2e-4  # per reading and kind: what shares of the time of a percent can still move


@dataclass(frozen=True)
class Start:
    """A width and the lag of its centre (of a counter: of its end), s, and the squared error that they leave, W^2."""

    error: float
    centre: float
    width: float
    hold: float = 0.0

    def matches(self, width: float, hold: float) -> bool:
        """Is it of about this width, and of this hold?"""
        return self.hold == hold and abs(math.log(self.width / width)) < A_THIRD


@dataclass(frozen=True)
class TimeByGroup:
    """Time of each group of keys since the begin, on a grid (T,): `by` (T, groups), and its integral over time."""

    grid: Floats
    by: Floats
    integral: Floats

    def shares(self, end: Floats, width: Floats, hold: float) -> Floats:
        """Share of each kind in windows that end so, or up to `hold` earlier at random (M, kinds)."""
        if not hold:
            return (
                interpolate_rows(self.grid, self.by, end) - interpolate_rows(self.grid, self.by, end - width)
            ) / width[:, None]
        late, early = (
            interpolate_rows(self.grid, self.integral, end - old)
            - interpolate_rows(self.grid, self.integral, end - width - old)
            for old in (0.0, hold)
        )
        return np.asarray((late - early) / (width[:, None] * hold))


def coarse_search(timeline: Timeline, readings: Readings, period: float, prior: Prior) -> list[Start]:
    """The best lags of each width and hold, best first; `period` is the source's, also where readings are thinned."""
    spent = time_by_group(timeline, timeline.keys.kind, _FINEST_GRID)
    latest = (prior.refresh or period) + timeline.step_length
    if readings.width is not None:
        return sorted(_best_lags(readings, spent, None, 0.0, 0.0), key=lambda start: start.error)
    tried = [(prior.width, hold) for hold in {0.0, prior.hold}]
    if prior.width is None:
        stated = [prior.stated] if prior.stated else []
        refresh = [prior.refresh] if prior.refresh else []
        own = np.unique(np.round([*np.multiply(WIDTHS, period), *stated, *refresh], 6))
        tried = [(float(width), 0.0) for width in own if SHORTEST < width < LONGEST]
        tried += [(factor * prior.hold, prior.hold) for factor in HELD_WIDTHS if prior.hold]
    starts: list[Start] = []
    for width, hold in tried:
        assert width is not None, "a gauge is tried with widths"
        alike = _FAR_WIDTHS[0] <= width / (prior.refresh or period) <= _FAR_WIDTHS[1]
        starts += _best_lags(readings, spent, width, hold, latest if alike else 0.0)
    return sorted(starts, key=lambda start: start.error)


def time_by_group(timeline: Timeline, group: Ints, finest: float) -> TimeByGroup:
    """Time of each group of keys since the begin; group: (P,) of each key; finest: step of the grid, s, if not longer.

    What is in no piece of the first lane is the gap's.
    """
    span = timeline.end - timeline.begin
    grid = timeline.begin + np.arange(0, span, max(finest, span / _MOST_GRID))
    spent = np.zeros((len(grid), int(group.max()) + 1))
    for lane in timeline.lanes:
        own = group[lane.key]
        for number in np.unique(own):
            t0, t1 = lane.t0[own == number], np.maximum(lane.t1, lane.t0)[own == number]
            inside = np.stack([np.zeros(len(t0)), t1 - t0], 1).ravel()
            spent[:, number] += np.interp(grid, np.stack([t0, t1], 1).ravel(), np.cumsum(inside))
    first = group[np.unique(timeline.lanes[0].key)]
    gap = int(group[timeline.keys.gap])
    spent[:, gap] += grid - timeline.begin - spent[:, np.unique(first)].sum(axis=1)
    half = np.diff(grid)[:, None] * (spent[1:] + spent[:-1]) / 2
    return TimeByGroup(grid, spent, np.concatenate([np.zeros((1, spent.shape[1])), np.cumsum(half, axis=0)]))


def _best_lags(readings: Readings, spent: TimeByGroup, width: float | None, hold: float, far: float) -> list[Start]:
    """The best lags of one width, or of the readings' own widths: steps repeat, so several explain much.

    far: the latest lag of the end that is thought possible, s.
    """
    own = readings.width if width is None else np.full(len(readings.stamp), width)
    assert own is not None, "a counter has widths"
    middle = float(np.median(own))
    whole = middle + hold
    latest = max(_LATEST, 1.5 * readings.period) + (whole / 2 if readings.width is None else 0.0)
    coarse = float(np.clip(whole / 8, _FINEST_LAG, max(1e-3, latest / _MOST_LAGS)))
    earliest = -_AHEAD if readings.width is not None else whole / 2 - _AHEAD
    lags = np.arange(earliest, max(latest, earliest + 8 * coarse), coarse)

    def error(lag: float, of: Readings, own: Floats) -> float:
        return _search_error(of, spent, lag, own, hold)

    if middle < _SMOOTH:
        errors = np.array([error(lag, readings, own) for lag in lags])
    else:  # every second lag, then those beside the lowest
        errors = np.full(len(lags), np.inf)
        errors[::2] = [error(lag, readings, own) for lag in lags[::2]]
        low = np.argsort(errors)[:_LOW]
        for place in np.setdiff1d(np.clip(np.append(low - 1, low + 1), 0, len(lags) - 1), np.arange(0, len(lags), 2)):
            errors[place] = error(float(lags[place]), readings, own)
    starts = _starts_at_minima(errors, lags, middle, hold)
    last = far + whole / 2
    if readings.mix is None and last > lags[-1] + coarse:
        further = np.arange(lags[-1] + coarse, last, max(coarse, (last - lags[-1]) / _FAR_LAGS))
        few = readings.first(_FAR_READINGS)
        minima = _starts_at_minima(
            np.array([error(lag, few, own[: few.count]) for lag in further]), further, middle, hold
        )
        starts += [replace(start, error=error(start.centre, readings, own)) for start in minima]
    return starts


def _starts_at_minima(errors: Floats, lags: Floats, width: float, hold: float) -> list[Start]:
    edged = np.concatenate([[np.inf], errors, [np.inf]])
    valleys = np.flatnonzero((errors <= edged[:-2]) & (errors <= edged[2:]))
    lowest = valleys[np.argsort(errors[valleys])[:_VALLEYS]]
    return [Start(float(errors[place]), float(lags[place]), width, hold) for place in lowest]


def _search_error(readings: Readings, spent: TimeByGroup, centre: float, width: Floats, hold: float) -> float:
    """Mean squared error of the readings with one power a kind, W^2; of a counter, `centre` is the lag of the end."""
    end = readings.stamp - centre + ((width + hold) / 2 if readings.width is None else 0.0)
    share = spent.shares(end, width, hold)
    if readings.mix is not None:
        share = readings.mix @ share
    inside = share.sum(axis=1) > _INSIDE
    if inside.sum() < share.shape[1]:
        return np.inf
    share = share[inside] * readings.weight[inside, None]
    mean = readings.watts.mean()
    normal = share.T @ share
    normal[np.diag_indices_from(normal)] += _COARSE_RIDGE * len(share)
    off = readings.watts[inside] * readings.weight[inside] - mean * share.sum(axis=1)
    residuals = off - share @ np.linalg.solve(normal, share.T @ off)
    return float(residuals @ residuals) / len(share)


def interpolate_rows(grid: Floats, spent: Floats, t: Floats) -> Floats:
    """Rows of `spent` at any instant, linear between grid points."""
    place = np.clip((t - grid[0]) / (grid[1] - grid[0]), 0, len(grid) - 1.000001)
    below = place.astype(np.int64)
    part = (place - below)[:, None]
    rows: Floats = spent[below] * (1 - part) + spent[below + 1] * part
    return rows


def diverse_starts(starts: list[Start], prior: Prior) -> list[Start]:
    """The best start of each window that sensors are known to have, and the best others; none close to a better one."""
    expected = [prior.stated, *(prior.refresh * share for share in _EXPECTED if prior.refresh)]
    windows = [(width, hold) for width in expected if width for hold in {0.0, prior.hold}]
    first = [next((start for start in starts if start.matches(width, hold)), None) for width, hold in windows]
    chosen: list[Start] = []
    for start in [*(start for start in first if start is not None), *starts]:
        if not any(
            start.matches(other.width, other.hold)
            and abs(start.centre - other.centre) < 0.25 * max(start.width, other.width)
            for other in chosen
        ):
            chosen.append(start)
        if len(chosen) == _STARTS + len(windows) // 2:
            break
    return chosen


_STARTS, _EXPECTED = 6, (1.0, 0.5, 0.25)  # of the refresh: windows of gauges
