"""Lag, width, filter and stamp noise of a power source, found from the training run itself.

The sensor model that best explains the readings: a grid of widths and lags with powers by kind, then Gauss-Newton
with powers by signature eliminated at each step (variable projection, Golub and Pereyra 1973).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse  # type: ignore[import-untyped]

from stepscope.analysis.energy.clocks import UpdateClock
from stepscope.analysis.energy.readings import Readings
from stepscope.analysis.energy.sensor_model import (
    SensorModel,
    covered,
    design,
    predicted,
    predicted_each,
    shared_error,
    slow_gain,
    whitened,
)
from stepscope.analysis.energy.timeline import GAP, KIND, SIGNATURE, Timeline, condense, hierarchy
from stepscope.arrays import Floats

FIRST, POLISH = 1_500, 6_000  # readings used to find the model, and to refine it
_FIRST_PIECES, _POLISH_PIECES = 120_000, 600_000  # pieces in their windows: wide windows need fewer readings
FEW_KEYS = 64, 256  # kinds and signatures that matter to how a source sees the past; fewer make it wrong
_SEARCHED = 16  # kinds that the search for a start tells apart
_STEPS_SEEN = 40  # the first readings are spread over so many steps, if there are
_CANDIDATES, _STARTS, _TRIAL_ROUNDS, _ROUNDS, _POLISH_ROUNDS = 8, 3, 4, 14, 6
_ROUNDS_NEAR = 6
_APART = 0.010  # s: channels of a chip are converted one after another, and so read by so much later
_CLEARLY = 5.0  # natural logarithm: by how much likelier a model of its own must be than that of a source like it
SURE = 3.0  # natural logarithm: a calibration must be 20 times likelier than the next
_OTHER = 0.2  # of the width: models that differ by more are not the same
_SAME_ENERGIES = 0.02  # summed differences of the kinds, as a share of the energy
_GUESSED_RC = 2e-3  # s: the descent does not find a filter from nothing
_NOISE = 0.015  # of the mean power: what the ridge takes a reading's error to be
_RIDGE = {SIGNATURE: 0.08, KIND: 0.30, GAP: 0.40}
_MOST_WIDTH, _MOST_RC, _MOST_SMEAR = 0.6, 0.05, 0.05  # s
_MOST_SD = 2e-3  # s: of what the curvature says about a parameter


@dataclass(frozen=True)
class Calibration:
    """The sensor model and how sure it is: standard deviations, s, of the kernel's centre, width and rc."""

    model: SensorModel
    sd_centre: float
    sd_width: float
    sd_rc: float
    margin: float = np.inf  # logarithm of how much likelier it is than the next that is clearly another


def calibrate(timeline: Timeline, readings: Readings, width: float | None = None) -> Calibration:
    """Fit the sensor model blindly; `width` is fixed where the source's window is known for sure (counters know)."""
    known_width = readings.width is not None or width is not None
    free = np.array([True, not known_width, True, True])
    timeline = condense(timeline, *FEW_KEYS)
    spread = _spread(timeline, readings)
    near = condense(timeline.until(float(spread.stamp[-1]) + 0.3), _SEARCHED, 0)
    starts = coarse_search(near, spread, readings.period, width)
    few = _Problem.of(timeline, spread.first(_affordable(timeline, starts[0].width, FIRST, _FIRST_PIECES)))
    # With powers by signature another start may be the best: kinds alone explain little of some models.
    better = sorted(_vectors(starts[:_CANDIDATES]), key=lambda vector: few.prepared(vector).solved(vector)[1])
    tried = [_descend(few, vector, free, _TRIAL_ROUNDS) for vector in [*better[:_STARTS], _filtered(better[0])]]
    cost, best = _descend(few, min(tried, key=lambda result: result[0])[1], free, _ROUNDS)
    rival = _rival(few, free, cost, best, tried)
    problem, most = few, _affordable(timeline, float(best[1]), POLISH, _POLISH_PIECES)
    if readings.count > 1.3 * few.readings.count and most > few.readings.count:
        problem = _Problem.of(timeline, readings.first(most))
        if problem.timeline.steps < few.timeline.steps:  # many readings a step: the spread ones saw more
            problem = few
    best, margin = (best, np.inf) if rival is None else _decided(few, problem, free, best, rival)
    if problem is not few:
        _, best = _descend(problem, best, free, _POLISH_ROUNDS)
    sd = problem.uncertainty(best, free)
    return Calibration(_model(best, problem.readings), *sd, margin=margin)


def recalibrate(timeline: Timeline, readings: Readings, near: Calibration) -> Calibration:
    """Fit the model of a source that is like one already known: the same filter and width, read or converted later.

    Where its own readings do not tell clearly that it differs (a rail that hardly moves), the known model stands.
    """
    free = np.array([True, readings.width is None, True, True])
    timeline = condense(timeline, *FEW_KEYS)
    spread = _spread(timeline, readings)
    known = _vector(near.model, readings)
    problem = _Problem.of(timeline, spread.first(_affordable(timeline, float(known[1]), FIRST, _FIRST_PIECES)))
    searched = condense(problem.timeline, _SEARCHED, 0)
    starts = coarse_search(searched, problem.readings, readings.period, near.model.width)
    near_by = [start for start in starts if abs(start.centre - known[0]) < _APART]
    moved = [np.append(start.centre, known[1:]) for start in near_by[:_STARTS]]
    cost = problem.prepared(known).solved(known)[1]
    best = min([known, *moved], key=lambda vector: problem.solved(vector)[1])
    found, vector = _descend(problem, best, free, _ROUNDS_NEAR)
    # Where nothing is left to explain, readings that never move fit whatever the sensor does: they tell nothing.
    if found <= 0 or problem.readings.count / 2 * float(np.log(cost / found)) < _CLEARLY:
        return replace(near, model=_model(known, readings))
    sd = problem.uncertainty(vector, free)
    return Calibration(_model(vector, problem.readings), *sd, margin=near.margin)


def _vector(model: SensorModel, readings: Readings) -> Floats:
    """The inverse of `_model`."""
    width = 1.0 if readings.width is None else float(np.median(readings.width))
    width = width if model.width is None else model.width
    centre = model.lag + model.rc + (width / 2 if readings.width is None else 0.0)
    return np.array([centre, width, model.smear**2, model.rc**2])


def _rival(problem: _Problem, free: Any, cost: float, best: Floats, tried: list[tuple[float, Floats]]) -> Floats | None:
    """The likeliest model that is clearly another than the best and gives other energies; None where there is none."""
    others = [one for one in tried if np.abs(one[1][:2] - best[:2]).max() > _OTHER * best[1]]
    close = [one for one in others if one[0] < 2 * cost]
    if not close:
        return None
    _, rival = min(_descend(problem, one[1], free, _TRIAL_ROUNDS) for one in close[:1])
    if np.abs(rival[:2] - best[:2]).max() <= _OTHER * best[1] or _alike(problem, best, rival):
        return None
    return rival


def _decided(few: _Problem, all_of_it: _Problem, free: Any, best: Floats, rival: Floats) -> tuple[Floats, float]:
    """The likelier of two models, and by how much, natural logarithm: from all readings where the first do not tell."""
    found, margin = best, 0.0
    for problem in (few,) if all_of_it is few else (few, all_of_it):
        cost, one = _descend(problem, best, free, _TRIAL_ROUNDS)
        other_cost, other = _descend(problem, rival, free, _TRIAL_ROUNDS)
        margin = problem.readings.count / 2 * float(np.log(other_cost / cost))
        found = one if margin >= 0 else other
        if abs(margin) >= SURE:
            break
    return (best if margin >= 0 else found), abs(margin)


def _alike(problem: _Problem, one: Floats, other: Floats) -> bool:
    """Do two models give the kinds nearly the same energies, so that it does not matter which is right?"""
    seconds, kind = problem.timeline.seconds, problem.timeline.keys.kind
    first, second = (np.bincount(kind, seconds * problem.prepared(x).solved(x)[0]) for x in (one, other))
    return bool(np.abs(first - second).sum() < _SAME_ENERGIES * np.abs(first).sum())


def _spread(timeline: Timeline, readings: Readings) -> Readings:
    """The first readings, thinned where they come so fast that they would see a few steps alone."""
    wanted = min(_STEPS_SEEN, timeline.steps) * timeline.step_length
    stride = max(int(wanted / max(readings.period, 1e-9) / FIRST), 1)
    thin = readings if stride == 1 else readings.kept(np.arange(readings.count) % stride == 0)
    return thin.first(FIRST)


def _affordable(timeline: Timeline, width: float, most: int, pieces: int) -> int:
    """So many readings that their windows hold no more than so many pieces."""
    a_second = sum(len(lane.t0) for lane in timeline.lanes) / (timeline.end - timeline.begin)
    return int(np.clip(pieces / max(a_second * width, 1), most // 5, most))


def _vectors(starts: list[Start]) -> list[Floats]:
    """Centre, width, and squares of smear and rc: the squares have a slope at 0, their roots have none."""
    return [np.array([start.centre, start.width, 1e-8, 1e-8]) for start in starts]


def _filtered(vector: Floats) -> Floats:
    """The same start behind an analogue filter."""
    return np.append(vector[:3], min(_GUESSED_RC, float(vector[1])) ** 2)


def _model(x: Floats, readings: Readings) -> SensorModel:
    rc, smear = float(np.sqrt(max(x[3], 0.0))), float(np.sqrt(max(x[2], 0.0)))
    if readings.width is not None:
        return SensorModel(float(x[0]) - rc, None, rc, smear)
    return SensorModel(float(x[0] - x[1] / 2) - rc, float(x[1]), rc, smear)


@dataclass(frozen=True)
class _Problem:
    """The first readings of a run, and the penalties of the powers by signature."""

    timeline: Timeline
    readings: Readings
    gain: Floats
    mixing: Any  # (P, D), sparse
    prior: Floats
    penalty: Floats
    theta: float = 0.0

    @classmethod
    def of(cls, timeline: Timeline, part: Readings) -> _Problem:
        cut = timeline.until(float(part.stamp[-1]) + 0.3)
        shape = hierarchy(timeline.keys, "signature")
        mean = float(part.watts.mean())
        spread = np.array([_RIDGE.get(int(level), 0.3) for level in shape.level])
        penalty = (_NOISE / spread) ** 2
        return cls(cut, part, np.ones(part.count), sparse.csr_matrix(shape.mixing), shape.prior_mean(mean), penalty)

    def prepared(self, x: Floats) -> _Problem:
        """The same with the slow gain, and with the shared error of neighbours, that show at these parameters."""
        watts = self.solved(x)[0]
        fitted = predicted(self.timeline, self.readings, _model(x, self.readings), watts)
        gain = slow_gain(self.readings.at, self.readings.watts, fitted, self.timeline.step_length)
        left = (self.readings.watts - gain * fitted) * self.readings.weight
        return replace(self, gain=gain, theta=shared_error(left) if self.readings.carry else 0.0)

    def scale(self, x: Floats) -> Floats:
        """Weight of each row (M,); 0 for readings that reach beyond the steps."""
        inside = covered(self.timeline, self.readings, _model(x, self.readings))
        weight: Floats = self.readings.weight * inside
        return weight

    def solved(self, x: Floats) -> tuple[Floats, float, Floats, tuple[Floats, Floats]]:
        """Best powers (P,), cost, what is left of the readings (M,), and the rows and normal equations behind them."""
        scale = self.scale(x)
        plain = (design(self.timeline, self.readings, _model(x, self.readings)) @ self.mixing).toarray()
        rows = whitened(plain * (scale * self.gain)[:, None], self.theta)
        normal = rows.T @ rows
        normal[np.diag_indices_from(normal)] += self.penalty
        error = whitened(self.readings.watts * scale, self.theta) - rows @ self.prior
        moved = np.linalg.solve(normal, rows.T @ error)
        left = error - rows @ moved
        cost = float((left @ left + self.penalty @ moved**2) / max((scale > 0).sum(), 1))
        return self.mixing @ (self.prior + moved), cost, left, (rows, normal)

    def slopes(self, x: Floats, watts: Floats, free: Any) -> Floats:
        """Return the derivative of the fitted rows by each free parameter (M, free)."""
        steps = np.diag(_difference_steps(x))[free]
        models = [_model(x + step, self.readings) for step in (np.zeros(4), *steps)]
        base, *moved = predicted_each(self.timeline, self.readings, models, watts)
        columns = np.column_stack([(one - base) / step.sum() for one, step in zip(moved, steps, strict=True)])
        return whitened(columns * (self.gain * self.scale(x))[:, None], self.theta)

    def uncertainty(self, x: Floats, free: Any) -> tuple[float, float, float]:
        """Standard deviations of centre, width and rc, s."""
        problem = self.prepared(x)
        watts, cost, _, (rows, normal) = problem.solved(x)
        x = np.append(x[:3], max(x[3], 1e-8))
        curvature = _projected(problem.slopes(x, watts, free), rows, normal)
        noise = cost * self.readings.count / max(self.readings.count - len(normal), self.readings.count // 3, 1)
        sd = np.zeros(4)
        sd[free] = np.sqrt(noise / np.maximum(np.diag(curvature), 1e-12))
        rc_sd = sd[3] / (2 * np.sqrt(x[3]))
        return min(sd[0], _MOST_SD), min(sd[1], _MOST_SD), min(rc_sd, _MOST_SD)


def _projected(slopes: Floats, rows: Floats, normal: Floats) -> Floats:
    """Curvature of the cost in the parameters, with the powers following (free, free)."""
    along = rows.T @ slopes
    curvature: Floats = slopes.T @ slopes - along.T @ np.linalg.solve(normal, along)
    return curvature


def _difference_steps(x: Floats) -> Floats:
    """Finite differences: a share of the width, and squares of 0.1 ms."""
    fine = float(np.clip(x[1] / 50, 2e-5, 1e-4))
    return np.array([fine, fine, 1e-8 + 0.02 * x[2], 1e-8 + 0.02 * x[3]])


def _descend(problem: _Problem, x: Floats, free: Any, rounds: int) -> tuple[float, Floats]:
    """Damped Gauss-Newton from a start, within bounds. Returns cost (W^2 a reading) and parameters."""
    problem = problem.prepared(x)
    watts, cost, left, parts = problem.solved(x)
    damping = 1e-3
    for _ in range(rounds):
        slopes = problem.slopes(x, watts, free)
        step = np.zeros(4)
        step[free] = _bounded_step(_projected(slopes, *parts), slopes.T @ left, x[free], damping)
        new = _within(x + step)
        solved = problem.solved(new)
        if solved[1] < cost:
            gained = (cost - solved[1]) / cost
            x, damping = new, damping / 10
            watts, cost, left, parts = solved
            if gained < 1e-5:
                break
        else:
            damping = max(damping, 1e-3) * 30
            if damping > 1e4:
                break
    return cost, x


def _bounded_step(curvature: Floats, pull: Floats, x: Floats, damping: float) -> Floats:
    """The Gauss-Newton step; a parameter at 0 that would go below stays there and the others are solved again."""
    held = np.zeros(len(x), dtype=bool)
    step = np.zeros(len(x))
    damped = curvature + np.diag(damping * np.diag(curvature) + 1e-12)
    for _ in range(len(x)):
        move = ~held
        step = np.zeros(len(x))
        step[move] = np.linalg.lstsq(damped[np.ix_(move, move)], pull[move], rcond=None)[0]
        below = move & (x <= 1e-10) & (step < 0)
        if not below.any():
            break
        held |= below
    return step


def _within(x: Floats) -> Floats:
    """Widths from 50 us, squares from 0, all bounded."""
    bounded: Floats = np.clip(x, [-1e3, 5e-5, 0, 0], [1e3, _MOST_WIDTH, _MOST_SMEAR**2, _MOST_RC**2])
    return bounded


# Widths as multiples of the period: spot conversions, part-time, full-time, slow filters.
WIDTHS = (0.014, 0.05, 0.11, 0.25, 0.5, 1.0, 1.6, 2.5, 5.0, 10.0, 40.0)
SHORTEST, LONGEST = 2.5e-4, 0.5  # s; from a start at the shortest the descent goes on to what is shorter still
_EARLIEST, _LATEST = -0.004, 0.05  # s, of the lag; slow sources are given more
_AHEAD = 0.001  # s: by how much the stamp of a read can come before the end of what it shows
_FINEST_GRID, _MOST_GRID = 2.5e-4, 60_000
_INSIDE = 0.98  # of a window must lie within the steps
_FINEST_LAG, _MOST_LAGS, _VALLEYS = 4e-4, 60, 3
_SMOOTH, _LOW = 1.6e-3, 12  # s: windows over which errors change slowly with the lag; of them the lowest are looked at
_COARSE_RIDGE = 2e-4  # per reading and kind: what shares of the time of a percent can still move


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
        errors = np.array([_search_error(readings, grid, spent, lag, own) for lag in lags])
    else:  # every second lag, then those beside the lowest
        errors = np.full(len(lags), np.inf)
        errors[::2] = [_search_error(readings, grid, spent, lag, own) for lag in lags[::2]]
        low = np.argsort(errors)[:_LOW]
        for place in np.setdiff1d(np.clip(np.append(low - 1, low + 1), 0, len(lags) - 1), np.arange(0, len(lags), 2)):
            errors[place] = _search_error(readings, grid, spent, float(lags[place]), own)
    edged = np.concatenate([[np.inf], errors, [np.inf]])
    valleys = np.flatnonzero((errors <= edged[:-2]) & (errors <= edged[2:]))
    lowest = valleys[np.argsort(errors[valleys])[:_VALLEYS]]
    return [Start(float(errors[place]), float(lags[place]), middle) for place in lowest]


def _search_error(readings: Readings, grid: Floats, spent: Floats, centre: float, width: Floats) -> float:
    """Mean squared error of the readings with one power a kind, W^2; of a counter, `centre` is the lag of the end."""
    end = readings.stamp - centre + (width / 2 if readings.width is None else 0.0)
    share = (_spent_at(grid, spent, end) - _spent_at(grid, spent, end - width)) / width[:, None]
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
    left = off - share @ np.linalg.solve(normal, share.T @ off)
    return float(left @ left) / len(share)


def _spent_at(grid: Floats, spent: Floats, t: Floats) -> Floats:
    """Rows of `spent` at any instant, linear between grid points."""
    place = np.clip((t - grid[0]) / (grid[1] - grid[0]), 0, len(grid) - 1.000001)
    below = place.astype(np.int64)
    part = (place - below)[:, None]
    rows: Floats = spent[below] * (1 - part) + spent[below + 1] * part
    return rows


@dataclass(frozen=True)
class KnownSource:
    """`first`: the calibration with the readings as they came; `clock`: that was then found behind what it left.

    `last`: the calibration with the readings told by that clock; without a clock the same as `first`.
    """

    first: Calibration
    clock: UpdateClock | None
    last: Calibration


def known_to_json(known: KnownSource) -> dict[str, Any]:
    """Plain numbers and lists; an infinite margin is null, which JSON has no number for."""
    clock = known.clock
    return {
        "first": _calibration_json(known.first),
        "clock": clock and {"at": clock.at.tolist(), "turns": clock.turns.tolist(), "period": clock.period},
        "last": _calibration_json(known.last),
    }


def known_from_json(stored: dict[str, Any]) -> KnownSource:
    """KeyError, TypeError or ValueError where it is none of ours."""
    clock = stored["clock"]
    return KnownSource(
        _calibration_from_json(stored["first"]),
        clock and UpdateClock(np.array(clock["at"], float), np.array(clock["turns"], float), float(clock["period"])),
        _calibration_from_json(stored["last"]),
    )


def _calibration_json(found: Calibration) -> dict[str, Any]:
    return {
        **{name: float(getattr(found, name)) for name in ("sd_centre", "sd_width", "sd_rc")},
        "margin": None if math.isinf(found.margin) else float(found.margin),
        "model": {name: None if value is None else float(value) for name, value in asdict(found.model).items()},
    }


def _calibration_from_json(stored: dict[str, Any]) -> Calibration:
    model, margin = stored["model"], stored["margin"]
    width = model["width"]
    seen = SensorModel(
        float(model["lag"]), None if width is None else float(width), float(model["rc"]), float(model["smear"])
    )
    sd_centre, sd_width, sd_rc = (float(stored[name]) for name in ("sd_centre", "sd_width", "sd_rc"))
    return Calibration(seen, sd_centre, sd_width, sd_rc, math.inf if margin is None else float(margin))
