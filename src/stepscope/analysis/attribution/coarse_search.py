"""Where to start the calibration: which width and lag explain the readings best with one power a kind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.analysis.attribution.readings import Readings
from stepscope.analysis.attribution.timeline import Timeline
from stepscope.analysis.intervals import Floats

# Widths as multiples of the period: spot conversions, part-time, full-time, slow filters.
WIDTHS = (0.014, 0.05, 0.11, 0.25, 0.5, 1.0, 1.6, 2.5, 5.0, 10.0, 40.0)
SHORTEST, LONGEST = 2.5e-4, 0.5  # s; from a start at the shortest the descent goes on to what is shorter still
_EARLIEST, _LATEST = -0.004, 0.05  # s, of the lag; slow sources are given more
_AHEAD = 0.001  # s: by how much the stamp of a read can come before the end of what it shows
_FINEST_GRID, _MOST_GRID = 2.5e-4, 60_000
_INSIDE = 0.98  # of a window must lie within the steps
_FINEST_LAG, _MOST_LAGS, _VALLEYS = 4e-4, 60, 3
_SMOOTH, _LOW = 1.6e-3, 12  # s: windows over which errors change slowly with the lag; of them the lowest are looked at
_RIDGE = 2e-4  # per reading and kind: what shares of the time of a percent can still move


@dataclass(frozen=True)
class Start:
    """A width and the lag of its centre (of a counter: of its end), s, and the squared error that they leave, W^2."""

    error: float
    centre: float
    width: float


def coarse_search(timeline: Timeline, readings: Readings, period: float, width: float | None = None) -> list[Start]:
    """The best lag of each width, best first; `period` is the source's, also where the readings are thinned."""
    grid, spent = _spent_by_kind(timeline)
    if readings.width is not None:
        return sorted(_best_lags(readings, grid, spent, None), key=lambda start: start.error)
    widths = [width] if width is not None else [w for w in np.multiply(WIDTHS, period) if SHORTEST < w < LONGEST]
    starts = [start for w in widths for start in _best_lags(readings, grid, spent, w)]
    return sorted(starts, key=lambda start: start.error)


def _spent_by_kind(timeline: Timeline) -> tuple[Floats, Floats]:
    """Time of each kind since the begin, on a grid: (T,), (T, kinds); the last kind is the gap."""
    span = timeline.end - timeline.begin
    grid = timeline.begin + np.arange(0, span, max(_FINEST_GRID, span / _MOST_GRID))
    kinds = int(timeline.keys.kind.max()) + 1
    spent = np.zeros((len(grid), kinds))
    for lane in timeline.lanes:
        edges = np.stack([lane.t0, np.maximum(lane.t1, lane.t0)], 1).ravel()
        kind = timeline.keys.kind[lane.key]
        for one in np.unique(kind):
            inside = np.stack([np.zeros(len(kind)), (lane.t1 - lane.t0) * (kind == one)], 1).ravel()
            spent[:, one] += np.interp(grid, edges, np.cumsum(inside))
    first = timeline.keys.kind[np.unique(timeline.lanes[0].key)]
    gap = int(timeline.keys.kind[timeline.keys.gap])
    spent[:, gap] += grid - timeline.begin - spent[:, np.unique(first)].sum(axis=1)
    return grid, spent


def _best_lags(readings: Readings, grid: Floats, spent: Floats, width: float | None) -> list[Start]:
    """The best lags of one width, or of the readings' own widths: steps repeat, so several explain much."""
    own = readings.width if width is None else np.full(len(readings.stamp), width)
    assert own is not None, "a counter has widths"
    middle = float(np.median(own))
    latest = max(_LATEST, 1.5 * readings.period) + (middle / 2 if readings.width is None else 0.0)
    coarse = float(np.clip(middle / 8, _FINEST_LAG, max(1e-3, latest / _MOST_LAGS)))
    # A gauge's window ends before it is read; what a counter grew by may be stamped a little early.
    earliest = _EARLIEST if readings.width is not None else middle / 2 - _AHEAD
    lags = np.arange(earliest, max(latest, earliest + 8 * coarse), coarse)
    if middle < _SMOOTH:
        errors = np.array([_error(readings, grid, spent, lag, own) for lag in lags])
    else:  # every second lag, then those beside the lowest
        errors = np.full(len(lags), np.inf)
        errors[::2] = [_error(readings, grid, spent, lag, own) for lag in lags[::2]]
        low = np.argsort(errors)[:_LOW]
        for place in np.setdiff1d(np.clip(np.append(low - 1, low + 1), 0, len(lags) - 1), np.arange(0, len(lags), 2)):
            errors[place] = _error(readings, grid, spent, float(lags[place]), own)
    edged = np.concatenate([[np.inf], errors, [np.inf]])
    valleys = np.flatnonzero((errors <= edged[:-2]) & (errors <= edged[2:]))
    lowest = valleys[np.argsort(errors[valleys])[:_VALLEYS]]
    return [Start(float(errors[place]), float(lags[place]), middle) for place in lowest]


def _error(readings: Readings, grid: Floats, spent: Floats, centre: float, width: Floats) -> float:
    """Mean squared error of the readings with one power a kind, W^2; of a counter, `centre` is the lag of the end."""
    end = readings.stamp - centre + (width / 2 if readings.width is None else 0.0)
    share = (_at(grid, spent, end) - _at(grid, spent, end - width)) / width[:, None]
    if readings.mix is not None:
        share = readings.mix @ share
    inside = share.sum(axis=1) > _INSIDE
    if inside.sum() < share.shape[1]:
        return np.inf
    share = share[inside] * readings.weight[inside, None]
    mean = readings.watts.mean()
    normal = share.T @ share
    normal[np.diag_indices_from(normal)] += _RIDGE * len(share)
    off = readings.watts[inside] * readings.weight[inside] - mean * share.sum(axis=1)
    left = off - share @ np.linalg.solve(normal, share.T @ off)
    return float(left @ left) / len(share)


def _at(grid: Floats, spent: Floats, t: Floats) -> Floats:
    """Rows of `spent` at any instant, linear between grid points."""
    place = np.clip((t - grid[0]) / (grid[1] - grid[0]), 0, len(grid) - 1.000001)
    below = place.astype(np.int64)
    part = (place - below)[:, None]
    rows: Floats = spent[below] * (1 - part) + spent[below + 1] * part
    return rows
