"""Rows of the regression: what each reading saw of each key, with gains, weights and shared errors in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse  # type: ignore[import-untyped]

from stepscope.analysis.energy.misfit import outlier_weights
from stepscope.analysis.energy.neighbour_errors import neighbour_error_theta, unwhitened, whitened, whitened_gram
from stepscope.analysis.energy.readings import Readings
from stepscope.analysis.energy.regression import ANY_SPREAD, MOST_OF_KINDS, Moments, RidgeFit, regress
from stepscope.analysis.energy.sensor_model import (
    SensorModel,
    design,
    energy_until,
    fully_covered_flags,
    predict_for_models,
    predict_readings,
    slow_gain,
)
from stepscope.analysis.energy.timeline import Timeline, hierarchy
from stepscope.arrays import Floats

FEWEST = 20  # readings; with fewer there is nothing to fit


@dataclass(frozen=True)
class RegressionRows:
    """The regression's matrix (M, P), each row scaled by weight and gain, and the readings scaled alike.

    `theta` is the filter that makes the readings' errors independent (neighbour_errors.py); `spent` how many parameters
    the readings have already decided, as gains of steps; `trust` the part of the weights that strays have less of,
    `punctual` the part by what errors of times make of each reading.
    """

    matrix: Any
    scale: Floats
    watts: Floats
    theta: float
    spent: float = 0.0
    trust: Floats | None = None
    punctual: Floats | None = None

    def moments(self, mean_power: float) -> Moments:
        watts = whitened(self.watts, self.theta)
        cross = np.asarray(self.matrix.T @ unwhitened(watts, self.theta))
        return Moments(
            whitened_gram(self.matrix, self.theta), cross, float(watts @ watts), len(watts) - self.spent, mean_power
        )

    def residuals(self, fit: RidgeFit) -> Floats:
        """Readings less the fit, whitened, as large as they would be had they decided no gains (M,)."""
        grown = float(np.sqrt(len(self.watts) / (len(self.watts) - self.spent)))
        residuals: Floats = whitened(self.watts - self.matrix @ fit.watts, self.theta) * grown
        return residuals


def scaled_rows(
    timeline: Timeline, readings: Readings, model: SensorModel, most: float = MOST_OF_KINDS
) -> tuple[RegressionRows, RidgeFit]:
    """Rows with the gains and the weight of each reading in; and the fit by signature."""
    coarse = hierarchy(timeline.keys, "signature")
    mean = float(readings.watts.mean())
    matrix = design(timeline, readings, model)
    plain = weighted_rows(matrix, readings, np.ones(readings.count), 0.0)
    first = regress(plain.moments(mean), coarse, most=most)
    gain = slow_gain(readings.at, readings.watts * readings.weight, plain.matrix @ first.watts, timeline.step_length)
    residuals = plain.residuals(first)
    theta = neighbour_error_theta(residuals) if readings.carry else 0.0
    of_step, spent = _step_gain(timeline, readings, model, gain * (plain.matrix @ first.watts))
    gain = gain * of_step
    punctual, fit = np.ones(readings.count), first
    for _ in range(_TIME_ROUNDS if _can_tell_time_errors(timeline, readings, model) else 0):
        weighted = weighted_rows(matrix, readings, gain, 0.0, punctual)
        fit, before = regress(weighted.moments(mean), coarse, fit, most), punctual
        punctual = _time_weights(timeline, readings, model, weighted, punctual, fit)
        fitted, exact = plain.matrix @ fit.watts, punctual**2  # inexact readings would blur the gains of exact ones
        settled = bool(np.abs(punctual - before).max() < _SETTLED)
        if not settled:
            gain = of_step * slow_gain(readings.at, plain.watts * exact, fitted * exact, timeline.step_length)
        residuals = (plain.watts - gain * fitted) * punctual
        if settled:
            break
    trust = _row_weights(timeline, readings, model, residuals)
    weight = punctual * trust
    rows = weighted_rows(matrix, readings, gain, theta, weight / weight.mean())
    rows = replace(rows, spent=spent, trust=trust, punctual=punctual)
    return rows, regress(rows.moments(mean), coarse, fit, most)


_TIME_ROUNDS, _SETTLED = 6, 0.02  # of a weight
_TIMED = 3_000  # readings from which the errors of times are learnt
_TIME_SDS = np.geomspace(1e-5, 2e-3, 25)  # s
UNFILTERED = 1e-3  # s: a time constant beside which updates and windows decide
_TIME_STEP = 1e-4  # s: finite difference, about what updates are late by
_TIME_RATIOS = np.concatenate([[0.0], np.geomspace(0.1, 1e4, 21)])
_SEEN_TIMES = 8.0  # natural logarithm: by how much likelier errors of times must be than none
_LEAST_FREE = 0.02
_COARSE = 0.2  # of how far readings spread, a step between their numbers
_OWN_RESIDUALS = 20  # readings for each parameter, from which a residual is hardly smaller than its error


def _can_tell_time_errors(timeline: Timeline, readings: Readings, model: SensorModel) -> bool:
    """Return whether errors of the readings' times can be told from other noise: of windows with times of their own.

    Behind a filter what looks like them is that it falls along another curve, which must show.
    """
    if timeline.scatter is not None:  # by so much times of filled-in steps are off anyway
        return not readings.carry
    return model.rc <= UNFILTERED and not has_coarse_steps(readings) and readings.mix is None and not readings.carry


def has_coarse_steps(readings: Readings) -> bool:
    """Return whether the steps of a sensor's numbers are its noise: what they leave follows the power, not chance."""
    return not readings.resolution or readings.resolution > _COARSE * float(readings.watts.std())


def _time_weights(
    timeline: Timeline, readings: Readings, model: SensorModel, rows: RegressionRows, punctual: Floats, fit: RidgeFit
) -> Floats:
    """Weight of each reading (M,), mean 1, by what an error of its time makes of it; 1 where none shows.

    An update that comes a little late is off by the difference of the powers at both ends of its window: nothing where
    these are alike. Weighted alike, the readings that are exact would count as little as those that are not.
    """
    if timeline.scatter is None:
        by_time = _variance_by_time(timeline, readings, model, fit.watts, model.smear or _TIME_STEP)
    else:
        by_time = _variance_by_blur(timeline, readings, model, fit.watts)
    squared = ((rows.watts - rows.matrix @ fit.watts) / punctual) ** 2 / _residual_shares(rows, fit)
    less = 1.0 + _TIME_RATIOS[:, None] * by_time / max(float(by_time.mean()), 1e-30)
    likely = -0.5 * (np.log(less).sum(axis=1) + len(squared) * np.log((squared / less).mean(axis=1)))
    best = int(np.argmax(likely))
    if likely[best] < likely[0] + _SEEN_TIMES:
        return np.ones(len(squared))
    weight = 1.0 / np.sqrt(less[best])
    return np.asarray(weight / weight.mean())


def _variance_by_time(timeline: Timeline, readings: Readings, model: SensorModel, watts: Floats, sd: float) -> Floats:
    """Variance of each reading (M,), W^2, were its time off by an error of this standard deviation, s."""
    off, share = np.array(model.nodes).T
    models = [replace(model, lag=model.lag + by, smear=0.0) for by in (off * sd).tolist()]
    predicted = np.array(predict_for_models(timeline, readings, models, watts))
    return np.asarray(share @ (predicted - share @ predicted) ** 2 * readings.weight**2)


def _variance_by_blur(timeline: Timeline, readings: Readings, model: SensorModel, watts: Floats) -> Floats:
    """Variance of each reading (M,), W^2, by the times of filled-in steps: of what was used until its window's ends.

    Were operators earlier or later, so much of other power would be inside: what differs from the window's mean.
    """
    end, width = model.windows(readings)
    mean = predict_readings(timeline, replace(readings, mix=None), model, watts)
    off, share = np.array(model.nodes).T
    variance = np.zeros(len(end))
    for edge in (end, end - width):
        blur = timeline.time_sd_at(edge)
        if blur is None:
            continue
        moved = off[:, None] * blur
        used = moved * (watts[timeline.keys.gap] - mean)
        for number, lane in enumerate(timeline.lanes):
            extra = (watts - watts[timeline.keys.gap] * (number == 0))[lane.key]
            used += energy_until(lane, extra, (edge + moved).ravel()).reshape(moved.shape)
        variance += share @ (used - share @ used) ** 2
    variance /= (width + model.hold + model.rc) ** 2
    if readings.mix is not None:
        variance = readings.mix.power(2) @ variance
    return np.asarray(variance * readings.weight**2)


def noise_over_blur(timeline: Timeline, readings: Readings, model: SensorModel) -> float:
    """Return the variance of readings in profiled steps over what the times of operators leave unsure of the others.

    0 where there are too few of either.
    """
    readings = readings.select(fully_covered_flags(timeline, readings, model))
    recorded = timeline.recorded[timeline.step_of(readings.at)]
    profiled, others = readings.select(recorded), readings.select(~recorded)
    if min(profiled.count, others.count) < FEWEST:
        return 0.0
    fit = scaled_rows(timeline, profiled, model, ANY_SPREAD)[1]
    blur = float(_variance_by_blur(timeline, others, model, fit.watts).mean())
    return fit.noise / max(blur, 1e-30)


def update_time_sd(timeline: Timeline, readings: Readings, model: SensorModel) -> float:
    """Return the standard deviation of the times at which a gauge's updates came, about its clock, s.

    Its readings are then off by more the more the powers at both ends of a window differ, and tell the powers of the
    blurred window, not of the sharp one. The model's own smear where no such error shows.
    """
    readings = readings.first(_TIMED)
    if not readings.is_gauge or model.hold or not _can_tell_time_errors(timeline, readings, model):
        return model.smear
    readings = readings.select(fully_covered_flags(timeline, readings, replace(model, smear=float(_TIME_SDS[-1]))))
    if readings.count < FEWEST:
        return model.smear
    for _ in range(2):
        rows, fit = scaled_rows(timeline, readings, model, ANY_SPREAD)
        error = (rows.watts - rows.matrix @ fit.watts) / np.where(rows.scale > 0, rows.scale, 1.0)
        squared = error**2 / _residual_shares(rows, fit)
        by_time = np.array([_variance_by_time(timeline, readings, model, fit.watts, sd) for sd in _TIME_SDS])
        other = np.quantile(squared, _OTHER_NOISE)[:, None, None]
        less = np.concatenate([np.zeros((1, len(squared))), by_time]) + other
        likely = -0.5 * (np.log(less) + squared / less).sum(axis=2)
        alone = -0.5 * len(squared) * (np.log(max(float(squared.mean()), 1e-30)) + 1)
        best = int(np.argmax(likely.max(axis=0)))
        if best == 0 or likely[:, best].max() < alone + _SEEN_TIMES:
            return model.smear
        model = replace(model, smear=float(_TIME_SDS[best - 1]))
    return model.smear


_OTHER_NOISE = (0.01, 0.03, 0.1, 0.25, 0.5, 0.75)  # quantiles of the squared errors that other noise may have


def _residual_shares(rows: RegressionRows, fit: RidgeFit) -> Floats:
    """Share of each reading's error that is left of it in its residual (M,): the rest went into the powers."""
    if len(rows.watts) > _OWN_RESIDUALS * len(fit.mean):
        return np.ones(len(rows.watts))
    mixed = np.asarray(rows.matrix @ fit.hierarchy.mixing)
    free: Floats = np.maximum(1.0 - np.einsum("ij,ij->i", mixed @ fit.covariance, mixed) / fit.noise, _LEAST_FREE)
    return free


_LONG = 0.5  # of a step: what sees more of the past tells nothing of single steps
_FEWEST_A_STEP, _FEWEST_STEPS = 4, 12
_MOST_GAIN = 2.0


def _step_gain(timeline: Timeline, readings: Readings, model: SensorModel, fitted: Floats) -> tuple[Floats, float]:
    """Power of each reading's step over the mean step's (M,), and how many such gains the readings decide.

    Clocks, heat and what else runs differ from step to step, and change all that runs in it alike: half of what a fit
    leaves can be that. It is a random effect, shrunk by what chance alone would make of it.
    """
    _, width = model.windows(readings)
    back = (float(np.median(width)) + model.hold) / 2 + model.rc
    nothing = np.ones(readings.count), 0.0
    if readings.mix is not None or 2 * back > _LONG * timeline.step_length:
        return nothing
    names, place = np.unique(timeline.step_of(readings.at - model.lag - back), return_inverse=True)
    if len(names) < _FEWEST_STEPS or readings.count < _FEWEST_A_STEP * len(names):
        return nothing
    place = place.reshape(-1)
    target, size = readings.watts * readings.weight, np.maximum(np.bincount(place, fitted**2), 1e-30)
    off = np.bincount(place, fitted * (target - fitted)) / size
    residuals = target - fitted * (1 + off[place])
    chance = float(residuals @ residuals) / (readings.count - len(names)) / size
    off -= np.average(off, weights=size)
    spread = max(float(np.average(off**2 - chance, weights=size)), 0.0)
    trust = spread / np.maximum(spread + chance, 1e-30)
    return np.clip(1 + trust * off, 1 / _MOST_GAIN, _MOST_GAIN)[place], float(trust.sum())


def _row_weights(timeline: Timeline, readings: Readings, model: SensorModel, residuals: Floats) -> Floats:
    """Weight of each reading (M,), mean 1: what was seen of filled-in steps agrees less well with them."""
    at = readings.at - model.lag
    recorded = timeline.recorded[timeline.step_of(at)]
    moves = float((readings.watts * readings.weight).std())
    own = np.ones(readings.count) if readings.carry else outlier_weights(residuals, timeline.step_kind_at(at), moves)
    if recorded.all() or recorded.sum() < FEWEST or (~recorded).sum() < FEWEST:
        return np.asarray(own / own.mean())
    ratio = float(np.sqrt(residuals[recorded].var() / max(float(residuals[~recorded].var()), 1e-30)))
    weight = own * np.where(recorded, 1.0, min(ratio, 1.0))
    return np.asarray(weight / weight.mean())


def weighted_rows(
    matrix: Any, readings: Readings, gain: Floats, theta: float, trust: Floats | None = None
) -> RegressionRows:
    weight = readings.weight if trust is None else readings.weight * trust
    scale = weight * gain
    return RegressionRows(sparse.diags(scale) @ matrix, scale, readings.watts * weight, theta)
