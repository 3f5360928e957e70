"""Lag, width, filter and stamp noise of a power source, found from the training run itself.

The sensor model that best explains the readings: a grid of widths and lags with powers by kind, then Gauss-Newton
with powers by signature eliminated at each step (variable projection, Golub and Pereyra 1973).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse  # type: ignore[import-untyped]

from stepscope.analysis.energy.calibration_readings import (
    FIRST,
    FIRST_PIECES,
    POLISH,
    POLISH_PIECES,
    readings_within_budget,
    thin_readings,
)
from stepscope.analysis.energy.coarse_search import A_THIRD, Prior, Start, coarse_search, diverse_starts
from stepscope.analysis.energy.likeliest_window import LikeliestWindow, likeliest_sensor
from stepscope.analysis.energy.neighbour_errors import neighbour_error_theta, whitened
from stepscope.analysis.energy.readings import Readings
from stepscope.analysis.energy.regression import ANY_SPREAD, Moments, log_evidence, regress
from stepscope.analysis.energy.scaled_rows import scaled_rows
from stepscope.analysis.energy.sensor_model import (
    SHORTEST_RC,
    SensorModel,
    design,
    fully_covered_flags,
    predict_for_models,
    predict_readings,
    slow_gain,
)
from stepscope.analysis.energy.timeline import (
    GAP,
    KIND,
    SIGNATURE,
    Timeline,
    condense,
    hierarchy,
    join_uncertain_pieces,
)
from stepscope.arrays import Flags, Floats

FEW_KEYS = 64, 256  # kinds and signatures that matter to how a source sees the past; fewer make it wrong
_SEARCHED = 16  # kinds that the search for a start tells apart
_TRIAL_ROUNDS, _ROUNDS, _POLISH_ROUNDS = 4, 14, 5
_ROUNDS_NEAR = 6
_APART = 0.010  # s: channels of a chip are converted one after another, and so read by so much later
_CLEARLY = 5.0  # natural logarithm: by how much likelier a model of its own must be than that of a source like it
_GUESSED_RC, _FILTERED = (0.7e-3, 2e-3, 5e-3, 15e-3), 3  # s; starts that are also tried behind a filter
_NOISE = 0.015  # of the mean power: what the ridge takes a reading's error to be
_RIDGE = {SIGNATURE: 0.08, KIND: 0.30, GAP: 0.40}
_MOST_WIDTH, _MOST_RC, _MOST_SMEAR = 0.6, 0.05, 0.05  # s
_MOST_SD = 2e-3  # s, and of the width: of what the curvature says about a parameter

# Models are compared by their evidence. Errors of neighbouring readings are not independent, so that what the readings
# tell of two models counts half; and where no reading decides, the prior does, within a few units.
TEMPER = 0.5
_FINALISTS, _STANDS = 4, 12.0  # models that are compared on all readings; log odds below which a model is given up
_HOPELESS = 40.0  # the same, from the first readings
_DISTINCT = 0.05  # of the width: models that are nearer to one another are one
_SAME_ENERGIES = 0.005  # summed differences of the kinds, as a share of the energy: rivals that agree are no rivals


@dataclass(frozen=True)
class Rival:
    """Another model, and the logarithm of its odds against the best."""

    model: SensorModel
    log_odds: float


@dataclass(frozen=True)
class Calibration:
    """The sensor model and how sure it is: standard deviations, s, of the kernel's centre, width and rc.

    `rivals` are the other models that the readings do not exclude and that give other energies.
    """

    model: SensorModel
    sd_centre: float
    sd_width: float
    sd_rc: float
    rivals: tuple[Rival, ...] = ()


def fit_sensor_model(timeline: Timeline, readings: Readings, prior: Prior | None = None) -> Calibration:
    """Fit the sensor model blindly, and look on purpose for others that explain the readings as well."""
    prior = prior or Prior()
    known_width = readings.width is not None or prior.width is not None
    free = np.array([True, not known_width, True, True])
    timeline = join_uncertain_pieces(condense(timeline, *FEW_KEYS))
    thin = thin_readings(timeline, readings)
    spread = thin.first(FIRST)
    near = condense(timeline.until(float(spread.stamp[-1]) + 0.3), _SEARCHED, 0)
    starts = diverse_starts(coarse_search(near, spread, readings.period, prior), prior)
    few = _CalibrationProblem.of(timeline, readings_within_budget(timeline, thin, starts[0].width, FIRST, FIRST_PIECES))
    tried = [_minimise(few.with_hold(start.hold), _parameters_of_start(start), free, _TRIAL_ROUNDS) for start in starts]
    promising = sorted(zip(tried, starts, strict=True), key=lambda pair: pair[0].cost)[:_FILTERED]
    more = [_start_with_best_filter(few, start) for _, start in promising]
    tried += [_minimise(few.with_hold(x.hold), x.x, free, _TRIAL_ROUNDS) for x in (*more, *_typical_models(few, prior))]
    few = few.with_trust(min(tried, key=lambda descent: descent.cost))
    likely, dropped = _likeliest(_weigh_models(few, _distinct(tried), prior, readings.period), _FINALISTS)
    better = _distinct([_minimise(few.with_hold(descent.hold), descent.x, free, _ROUNDS) for _, descent in likely])
    problem, more_readings = (
        few,
        readings_within_budget(timeline, readings, float(likely[0][1].x[1]), POLISH, POLISH_PIECES),
    )
    if readings.count > 1.3 * few.readings.count and more_readings.count > few.readings.count:
        larger = _CalibrationProblem.of(timeline, more_readings)
        if larger.timeline.steps >= few.timeline.steps:  # else many readings a step: the spread ones saw more
            problem = larger.with_trust(likely[0][1])
    likely, _ = _likeliest(_weigh_models(few, better, prior, readings.period), _FINALISTS)
    last = _distinct([_descend_with_learnt_noise(problem.with_hold(model.hold), model.x, free) for _, model in likely])
    likely, more_dropped = _likeliest(_weigh_models(problem, last, prior, readings.period), _FILTERS_WEIGHED)
    last = _distinct([_refine_by_likelihood(problem.with_hold(model.hold), model, free) for _, model in likely])
    (_, best), *likely = _likeliest(_weigh_models(problem, last, prior, readings.period), _FINALISTS)[0]
    # The search ends at other filters behind the same window, which the likelihood then moves: those are no others.
    others = [pair for pair in (*more_dropped, *dropped) if not _differs_by_filter_alone(pair[1], best)]
    own = problem.with_hold(best.hold)
    rivals = tuple(
        Rival(problem.with_hold(model.hold).model(model.x), log)
        for log, model in (*likely, *others)
        if log > -_STANDS and not _gives_same_energies(problem, best, model)
    )
    return Calibration(own.model(best.x), *_parameter_sd(own, best, free), rivals=rivals)


def _differs_by_filter_alone(model: _Descent, other: _Descent) -> bool:
    """Are both behind a filter, with windows that begin and end together?"""
    (centre, width, _, rc), (other_centre, other_width, _, other_rc) = model.x, other.x
    late = abs(centre - np.sqrt(max(rc, 0.0)) - other_centre + np.sqrt(max(other_rc, 0.0)))
    near = late < A_THIRD * other_width and abs(np.log(width / other_width)) < A_THIRD
    return bool(near and model.hold == other.hold and min(rc, other_rc) > SHORTEST_RC**2)


def _likeliest(weighed: _Weighed, most: int) -> tuple[_Weighed, _Weighed]:
    """So many of the models, by their odds, to be followed further; and of the others those that stand, as they are.

    Where the readings hardly tell sensors apart, those that nothing was left for are rivals as well.
    """
    odds = [(log - weighed[0][0], model) for log, model in weighed]
    followed = [(log, model) for log, model in odds[:most] if log > -_HOPELESS]
    return followed, [(log, model) for log, model in odds[most : most + _MOST_DROPPED] if log > -_STANDS]


def refit_sensor_model(timeline: Timeline, readings: Readings, near: Calibration) -> Calibration:
    """Fit the model of a source that is like one already known: the same filter and width, read or converted later.

    Where its own readings do not tell clearly that it differs (a rail that hardly moves), the known model stands.
    """
    free = np.array([True, readings.width is None, True, True])
    timeline = join_uncertain_pieces(condense(timeline, *FEW_KEYS))
    near_start = _parameters_of_model(near.model, readings)
    part = readings_within_budget(
        timeline, thin_readings(timeline, readings), float(near_start[1]), FIRST, FIRST_PIECES
    )
    problem = _CalibrationProblem.of(timeline, part).with_hold(near.model.hold)
    searched = condense(problem.timeline, _SEARCHED, 0)
    prior = Prior(width=near.model.width, hold=near.model.hold)
    starts = [start for start in coarse_search(searched, part, readings.period, prior) if start.hold == problem.hold]
    near_by = [start for start in starts if abs(start.centre - near_start[0]) < _APART]
    moved = [np.append(start.centre, near_start[1:]) for start in near_by[:_NEAR_STARTS]]
    cost = problem.with_gain_and_theta(near_start).solve_powers(near_start)[1]
    best = min([near_start, *moved], key=lambda vector: problem.solve_powers(vector)[1])
    descent = _minimise(problem, best, free, _ROUNDS_NEAR)
    # Where nothing is left to explain, readings that never move fit whatever the sensor does: they tell nothing.
    if descent.cost <= 0 or problem.readings.count / 2 * float(np.log(cost / descent.cost)) < _CLEARLY:
        return near
    descent = _refine_by_likelihood(problem, _descend_with_learnt_noise(problem, descent.x, free), free)
    return Calibration(problem.model(descent.x), *_parameter_sd(problem, descent, free), rivals=near.rivals)


def _parameter_sd(problem: _CalibrationProblem, descent: _Descent, free: Any) -> tuple[float, float, float]:
    """Standard deviations of centre, width and rc, s."""
    sd = problem.with_learnt_noise(descent.x).uncertainty(descent.x, free)
    best = descent.likeliest
    if best is None:
        return sd
    likeliest_sd = best.sd_centre, best.sd_width, best.sd_rc
    centre, width, rc = (own if known is None else min(own, known) for own, known in zip(sd, likeliest_sd, strict=True))
    return centre, width, rc


_NEAR_STARTS = 3


@dataclass(frozen=True)
class _Descent:
    """Where a descent ended: the squared error that is left, W^2 a reading, the parameters, and the hold, s."""

    cost: float
    x: Floats
    hold: float
    likeliest: LikeliestWindow | None = None  # with standard deviations, where the readings tell


_Weighed = list[tuple[float, _Descent]]  # logarithm of the odds, and the model


def _distinct(descents: list[_Descent]) -> list[_Descent]:
    """Descents by cost, each end once."""
    chosen: list[_Descent] = []
    for descent in sorted(descents, key=lambda descent: descent.cost):
        near = _DISTINCT * float(descent.x[1])
        if not any(
            other.hold == descent.hold
            and np.abs(other.x[:2] - descent.x[:2]).max() < near
            and abs(np.sqrt(max(other.x[3], 0)) - np.sqrt(max(descent.x[3], 0))) < near
            for other in chosen
        ):
            chosen.append(descent)
    return chosen


def _weigh_models(problem: _CalibrationProblem, descents: list[_Descent], prior: Prior, period: float) -> _Weighed:
    """Logarithm of the weight of each model, best first, by readings that all of them cover."""
    if len(descents) == 1:
        return [(0.0, descents[0])]
    models = [problem.with_hold(descent.hold).model(descent.x) for descent in descents]
    covered = np.all([fully_covered_flags(problem.timeline, problem.readings, model) for model in models], axis=0)
    same = (
        _CalibrationProblem.of(problem.timeline, problem.readings.select(covered))
        if covered.sum() >= _FEWEST_COMPARED
        else problem
    )
    weighed = [
        (TEMPER * same.with_hold(descent.hold).evidence(descent.x) + prior.weight(model, period), descent)
        for descent, model in zip(descents, models, strict=True)
    ]
    return sorted(weighed, key=lambda pair: -pair[0])


_FEWEST_COMPARED = 20
_ROUGH = 0.5  # of what a reading sees: where pieces lie by so much elsewhere, it says nothing of the sensor's delay


def _gives_same_energies(problem: _CalibrationProblem, descent: _Descent, other: _Descent) -> bool:
    """Return whether two models give nearly the same energies, so that the choice does not matter."""
    seconds, kind = problem.timeline.seconds, problem.timeline.keys.kind
    first, second = (
        np.bincount(kind, seconds * problem.with_hold(way.hold).with_gain_and_theta(way.x).solve_powers(way.x)[0])
        for way in (descent, other)
    )
    return bool(np.abs(first - second).sum() < _SAME_ENERGIES * np.abs(first).sum())


def _parameters_of_model(model: SensorModel, readings: Readings) -> Floats:
    """The inverse of `_CalibrationProblem.model`."""
    width = 1.0 if readings.width is None else float(np.median(readings.width))
    width = width if model.width is None else model.width
    centre = model.lag + model.rc + ((width + model.hold) / 2 if readings.width is None else 0.0)
    return np.array([centre, width, model.smear**2, model.rc**2])


def _parameters_of_start(start: Start) -> Floats:
    """Centre, width, and squares of smear and rc: the squares have a slope at 0, their roots have none."""
    return np.array([start.centre, start.width, 1e-8, 1e-8])


def _start_with_best_filter(problem: _CalibrationProblem, start: Start) -> _Descent:
    """The start behind the analogue filter that explains the readings best: the descent finds none from nothing."""
    vectors = [np.append(_parameters_of_start(start)[:3], rc**2) for rc in _GUESSED_RC]
    start_problem = problem.with_hold(start.hold)
    return min(
        (_Descent(start_problem.solve_powers(vector)[1], vector, start.hold) for vector in vectors),
        key=lambda descent: descent.cost,
    )


def _typical_models(problem: _CalibrationProblem, prior: Prior) -> list[_Descent]:
    """The best of what sensors usually are: a known window behind a filter or none, up to one update late.

    Where a step is hardly longer than what the sensor sees, the error has a valley at every few ms of delay, and one
    power a kind does not tell which is the deepest; and a filter lies far from the window of the same centre.
    """
    refresh = prior.refresh or problem.readings.period
    if problem.readings.width is not None:  # of a counter the window is known, and a coarse grid misses its delay
        if problem.timeline.step_length > _SHORT * max(refresh, problem.readings.period):
            return []
        own = float(np.median(problem.readings.width))
        vectors = [np.array([late * refresh, own, 1e-8, 1e-8]) for late in _USUAL_DELAYS]
        start_problem = problem.with_hold(prior.hold)
        return _distinct([_Descent(start_problem.solve_powers(x)[1], x, prior.hold) for x in vectors])
    if prior.width is not None or problem.timeline.step_length > _SHORT * refresh:
        return []
    few = _CalibrationProblem.of(problem.timeline, problem.readings.first(_USUAL_READINGS)).with_hold(prior.hold)
    chosen, sharp = [], 1e-4
    for rc in (sharp, *_GUESSED_RC, _SLOWEST):
        descents = []
        for width in {prior.stated or refresh, refresh, refresh * _SPOT}:
            for late in _USUAL_DELAYS:
                x = np.array([late * refresh + rc + (width + prior.hold) / 2, width, 1e-8, rc**2])
                descents.append(_Descent(few.solve_powers(x)[1], x, prior.hold))
        chosen += _distinct(descents)[: _SHARP_STARTS if rc == sharp else 1]
    return chosen


_USUAL_READINGS, _USUAL_DELAYS = 300, (0.05, 0.35, 0.7, 1.05)  # delays as shares of the refresh
_SHORT = 12  # updates a step, below which its valleys lie close
_SHARP_STARTS = 4  # without a filter: each window has valleys of its own
_SPOT, _SLOWEST = 1 / 6, 0.03  # of the refresh: one conversion of several; s


COMPARED_KEYS = 24, 72  # kinds and signatures


@dataclass(frozen=True)
class _CalibrationProblem:
    """The first readings of a run, and the penalties of the powers by signature."""

    timeline: Timeline
    readings: Readings
    gain: Floats
    mixing: Any  # (P, D), sparse
    prior: Floats
    penalty: Floats
    theta: float = 0.0
    hold: float = 0.0

    def with_hold(self, hold: float) -> _CalibrationProblem:
        """The same for values that are held for so long, s."""
        return replace(self, hold=hold)

    def with_trust(self, descent: _Descent) -> _CalibrationProblem:
        """The same with readings of filled-in steps trusted as far as they agree with a model."""
        if self.timeline.scatter is None:
            return self
        model = self.with_hold(descent.hold).model(descent.x)
        covered = fully_covered_flags(self.timeline, self.readings, model)
        if covered.sum() < _FEWEST_COMPARED:
            return self
        rows, _ = scaled_rows(self.timeline, self.readings.select(covered), model, ANY_SPREAD)
        trust = np.ones(self.readings.count)
        assert rows.punctual is not None, "scaled rows have it"
        trust[covered] = rows.punctual
        return replace(self, readings=replace(self.readings, trust=trust))

    def model(self, x: Floats) -> SensorModel:
        """The sensor model of some parameters."""
        rc, smear = float(np.sqrt(max(x[3], 0.0))), float(np.sqrt(max(x[2], 0.0)))
        if self.readings.width is not None:
            return SensorModel(float(x[0]) - rc, None, rc, smear)
        return SensorModel(float(x[0] - (x[1] + self.hold) / 2) - rc, float(x[1]), rc, smear, self.hold)

    @classmethod
    def of(cls, timeline: Timeline, part: Readings) -> _CalibrationProblem:
        cut = timeline.until(float(part.stamp[-1]) + 0.3)
        shape = hierarchy(timeline.keys, "signature")
        mean = float(part.watts.mean())
        spread = np.array([_RIDGE.get(int(level), 0.3) for level in shape.level])
        penalty = (_NOISE / spread) ** 2
        return cls(cut, part, np.ones(part.count), sparse.csr_matrix(shape.mixing), shape.prior_mean(mean), penalty)

    def with_gain_and_theta(self, x: Floats) -> _CalibrationProblem:
        """The same with the slow gain, and with the shared error of neighbours, that show at these parameters."""
        watts = self.solve_powers(x)[0]
        fitted = predict_readings(self.timeline, self.readings, self.model(x), watts)
        gain = slow_gain(self.readings.at, self.readings.watts, fitted, self.timeline.step_length)
        residuals = (self.readings.watts - gain * fitted) * self.readings.weight
        return replace(self, gain=gain, theta=neighbour_error_theta(residuals) if self.readings.carry else 0.0)

    def scale(self, x: Floats) -> Floats:
        """Weight of each row (M,); 0 for readings that reach beyond the steps."""
        inside = fully_covered_flags(self.timeline, self.readings, self.model(x))
        weight: Floats = self.readings.weight * inside
        return weight

    def solve_powers(self, x: Floats) -> tuple[Floats, float, Floats, tuple[Floats, Floats]]:
        """Best powers (P,), cost, what is left of the readings (M,), and the rows and normal equations behind them."""
        scale = self.scale(x)
        plain = (design(self.timeline, self.readings, self.model(x)) @ self.mixing).toarray()
        rows = whitened(plain * (scale * self.gain)[:, None], self.theta)
        normal = rows.T @ rows
        normal[np.diag_indices_from(normal)] += self.penalty + _SINGULAR * float(np.diag(normal).max(initial=1e-300))
        error = whitened(self.readings.watts * scale, self.theta) - rows @ self.prior
        moved = np.linalg.solve(normal, rows.T @ error)
        residuals = error - rows @ moved
        cost = float((residuals @ residuals + self.penalty @ moved**2) / max((scale > 0).sum(), 1))
        return self.mixing @ (self.prior + moved), cost, residuals, (rows, normal)

    def row_derivatives(self, x: Floats, watts: Floats, free: Any) -> Floats:
        """Return the derivative of the fitted rows by each free parameter (M, free)."""
        steps = np.diag(_difference_steps(x))[free]
        models = [self.model(x + step) for step in (np.zeros(4), *steps)]
        columns = np.zeros((self.readings.count, len(steps)))
        sharp = self.readings_for_filter
        readings = self.readings if sharp.all() else self.readings.select(sharp)
        base, *moved = predict_for_models(self.timeline, readings, models, watts)
        columns[sharp] = np.column_stack(
            [(other - base) / step.sum() for other, step in zip(moved, steps, strict=True)]
        )
        return whitened(columns * (self.gain * self.scale(x))[:, None], self.theta)

    @cached_property
    def readings_for_filter(self) -> Flags:
        """Readings (M,) that tell how the sensor sees the past: not those of steps that are filled in too roughly."""
        blur, readings = self.timeline.time_sd_at(self.readings.at), self.readings
        if blur is None:
            return np.ones(readings.count, dtype=bool)
        period = readings.period if readings.width is None else float(np.median(readings.width))
        sharp: Flags = blur < _ROUGH * period
        return sharp if sharp.sum() >= _FEWEST_COMPARED else np.ones(readings.count, dtype=bool)

    def with_learnt_noise(self, x: Floats) -> _CalibrationProblem:
        """The same with the noise, and the spread of the powers, that show at these parameters.

        A noise that is taken too large would have slow filters found too fast: they ask for powers that differ more.
        """
        problem = self.with_gain_and_theta(x)
        _, _, _, (rows, normal) = problem.solve_powers(x)
        watts = whitened(self.readings.watts * self.scale(x), problem.theta)
        gram = normal - np.diag(self.penalty)
        shape = hierarchy(self.timeline.keys, "signature")
        own = replace(shape, mixing=np.eye(len(normal)))
        moments = Moments(gram, rows.T @ watts, float(watts @ watts), len(watts), float(self.readings.watts.mean()))
        fit = regress(moments, own, most=ANY_SPREAD)
        return replace(self, penalty=fit.noise / fit.spread**2)

    def uncertainty(self, x: Floats, free: Any) -> tuple[float, float, float]:
        """Standard deviations of centre, width and rc, s, whatever the errors within a step are."""
        problem = self.with_gain_and_theta(x)
        watts, cost, residuals, (rows, normal) = problem.solve_powers(x)
        x = np.append(x[:3], max(x[3], 1e-8))
        slopes = problem.row_derivatives(x, watts, free)
        apart = slopes - rows @ np.linalg.solve(normal, rows.T @ slopes)
        curvature = np.maximum(np.diag(slopes.T @ apart), 1e-12)
        noise = cost * self.readings.count / max(self.readings.count - len(normal), self.readings.count // 3, 1)
        step = self.timeline.step_of(self.readings.at)
        pull = np.array([np.bincount(step, column * residuals) for column in apart.T])
        sd = np.zeros(4)
        sd[free] = np.maximum(np.sqrt(noise / curvature), np.sqrt((pull**2).sum(axis=1)) / curvature)
        rc_sd = sd[3] / (2 * np.sqrt(x[3]))
        most = max(_MOST_SD, 0.1 * float(x[1]))
        return min(sd[0], most), min(sd[1], most), min(rc_sd, most)

    def evidence(self, x: Floats) -> float:
        """Logarithm of how likely the readings are under a model, whatever the powers (up to a constant)."""
        problem, coarse = self.with_gain_and_theta(x), condense(self.timeline, *COMPARED_KEYS)
        readings, scale = self.readings, self.readings.weight * problem.gain
        rows = whitened(design(coarse, readings, self.model(x)).toarray() * scale[:, None], problem.theta)
        watts = whitened(readings.watts * readings.weight, problem.theta)
        moments = Moments(rows.T @ rows, rows.T @ watts, float(watts @ watts), len(watts), float(readings.watts.mean()))
        return log_evidence(moments, regress(moments, hierarchy(coarse.keys, "signature"), most=ANY_SPREAD))


_SINGULAR = (
    1e-13  # of what the readings tell of the best known key: where no noise is left, nothing else tells two apart
)


def _parameter_curvature(slopes: Floats, rows: Floats, normal: Floats) -> Floats:
    """Curvature of the cost in the parameters, with the powers following (free, free)."""
    along = rows.T @ slopes
    curvature: Floats = slopes.T @ slopes - along.T @ np.linalg.solve(normal, along)
    return curvature


def _difference_steps(x: Floats) -> Floats:
    """Finite differences: a share of the width, and squares of 0.1 ms."""
    fine = float(np.clip(x[1] / 50, 2e-5, 1e-4))
    return np.array([fine, fine, 1e-8 + 0.02 * x[2], 1e-8 + 0.02 * x[3]])


def _descend_with_learnt_noise(problem: _CalibrationProblem, x: Floats, free: Any) -> _Descent:
    """Where a descent ends once the noise and the spread of the powers are what they show to be.

    Faster and slower filters that begin when the found one does are tried too: the way to them is long and bent.
    """
    descent = _minimise(problem, x, free, _POLISH_ROUNDS)
    learnt = problem.with_learnt_noise(descent.x)
    descent = _minimise(learnt, descent.x, free, _POLISH_ROUNDS)
    for _ in range(_MOST_FILTER_SCANS):
        rc = float(np.sqrt(max(descent.x[3], 0.0)))
        if rc <= SHORTEST_RC or not free[3]:
            break
        learnt = problem.with_learnt_noise(descent.x).with_gain_and_theta(descent.x)
        own = learnt.solve_powers(descent.x)[1]
        tried = [_with_filter(descent.x, rc * factor, smear) for factor in _FILTERS for smear in (1.0, 0.0)]
        cost, best = min(((learnt.solve_powers(x)[1], x) for x in tried), key=lambda pair: pair[0])
        if cost > own * (1 - _BETTER):
            break
        descent = _minimise(learnt, best, free, _POLISH_ROUNDS)
    return descent


def _refine_by_likelihood(problem: _CalibrationProblem, descent: _Descent, free: Any) -> _Descent:
    """The same with the filter, and then the window, under which the readings are likeliest whatever the powers."""
    descent = _likeliest_filter(problem, descent)
    start = problem.model(descent.x)
    model, best = likeliest_sensor(problem.timeline, problem.readings, start, bool(free[1]), bool(free[3]))
    x = _parameters_of_model(model, problem.readings)
    return _Descent(problem.with_gain_and_theta(x).solve_powers(x)[1], x, descent.hold, best)


def _likeliest_filter(problem: _CalibrationProblem, descent: _Descent) -> _Descent:
    """The same with the time constant under which the readings are likeliest whatever the powers, if it has a filter.

    A descent weighs the best powers alone: those behind a slower filter lie further apart, which the ridge holds
    against it, though many more of them explain the readings. It ends at filters too fast by up to a third.
    """
    rc = float(np.sqrt(max(descent.x[3], 0.0)))
    for _ in range(_MOST_FILTER_SCANS):
        if rc <= SHORTEST_RC:
            return descent
        tried = [_with_filter(descent.x, rc * factor, 1.0) for factor in _LIKELY_FILTERS]
        covered = fully_covered_flags(problem.timeline, problem.readings, problem.model(tried[-1]))
        if covered.sum() < _FEWEST_COMPARED:
            return descent
        same = _CalibrationProblem.of(problem.timeline, problem.readings.select(covered)).with_hold(problem.hold)
        log = [same.evidence(x) for x in tried]
        best = int(np.argmax(log))
        at_end = best in (0, len(log) - 1)
        near = slice(min(max(best - 1, 0), len(log) - 3), None)
        curve = np.polyfit(np.log(_LIKELY_FILTERS)[near][:3], log[near][:3], 2)
        rc *= _LIKELY_FILTERS[best] if at_end else float(np.exp(-curve[1] / (2 * curve[0])))
        if not at_end:
            break
    x = _with_filter(descent.x, rc, 1.0)
    return _Descent(problem.with_gain_and_theta(x).solve_powers(x)[1], x, descent.hold)


_FILTERS_WEIGHED, _MOST_DROPPED = 2, 6
_LIKELY_FILTERS = (0.7, 0.84, 1.0, 1.2, 1.44, 1.73)
_MOST_FILTER_SCANS, _FILTERS, _BETTER = 3, (0.6, 0.75, 0.87, 0.95, 1.05, 1.15, 1.35, 1.7), 1e-3


def _with_filter(x: Floats, rc: float, smear: float) -> Floats:
    """The parameters with another time constant, s, for a window that ends when it did; smear: so much of it stays."""
    return _clip_parameters(np.array([x[0] - np.sqrt(x[3]) + rc, x[1], x[2] * smear**2, rc**2]))


def _minimise(problem: _CalibrationProblem, x: Floats, free: Any, rounds: int) -> _Descent:
    """Damped Gauss-Newton from a start, within bounds."""
    problem = problem.with_gain_and_theta(x)
    watts, cost, residuals, parts = problem.solve_powers(x)
    damping = 1e-3
    for _ in range(rounds):
        slopes = problem.row_derivatives(x, watts, free)
        step = np.zeros(4)
        step[free] = _bounded_step(_parameter_curvature(slopes, *parts), slopes.T @ residuals, x[free], damping)
        new = _clip_parameters(x + step)
        solved = problem.solve_powers(new)
        if solved[1] < cost:
            gained = (cost - solved[1]) / cost
            x, damping = new, damping / 10
            watts, cost, residuals, parts = solved
            if gained < 1e-5:
                break
        else:
            damping = max(damping, 1e-3) * 30
            if damping > 1e4:
                break
    return _Descent(cost, x, problem.hold)


def _bounded_step(curvature: Floats, pull: Floats, x: Floats, damping: float) -> Floats:
    """The Gauss-Newton step; a parameter at 0 that would go below stays there and the others are solved again."""
    at_bound = np.zeros(len(x), dtype=bool)
    step = np.zeros(len(x))
    damped = curvature + np.diag(damping * np.diag(curvature) + 1e-12)
    for _ in range(len(x)):
        move = ~at_bound
        step = np.zeros(len(x))
        step[move] = np.linalg.lstsq(damped[np.ix_(move, move)], pull[move], rcond=None)[0]
        below = move & (x <= 1e-10) & (step < 0)
        if not below.any():
            break
        at_bound |= below
    return step


def _clip_parameters(x: Floats) -> Floats:
    """Widths from 50 us, squares from 0, all bounded."""
    bounded: Floats = np.clip(x, [-1e3, 5e-5, 0, 0], [1e3, _MOST_WIDTH, _MOST_SMEAR**2, _MOST_RC**2])
    return bounded
