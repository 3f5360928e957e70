"""Effect of a calibration's error on the powers that were fitted with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepscope.analysis.energy.calibration import Calibration
from stepscope.analysis.energy.neighbour_errors import unwhitened, whitened
from stepscope.analysis.energy.readings import Readings
from stepscope.analysis.energy.regression import RidgeFit
from stepscope.analysis.energy.scaled_rows import RegressionRows
from stepscope.analysis.energy.sensor_model import (
    SHORTEST_RC,
    SensorModel,
    fully_covered_flags,
    predict_for_models,
    predict_readings,
)
from stepscope.analysis.energy.timeline import Timeline
from stepscope.arrays import Floats

_MODEL_STEP = 1e-4  # s: finite difference in lag, width and rc


@dataclass(frozen=True)
class CalibrationErrorEffect:
    """Changes of the powers (P,) if the sensor model is off by one standard deviation.

    A row each, the last without smear.
    """

    moved: Floats
    without_smear: Floats


def calibration_error_effect(
    timeline: Timeline,
    readings: Readings,
    fit: RidgeFit,
    rows: Any,
    scale: Floats,
    theta: float,
    calibration: Calibration,
) -> CalibrationErrorEffect:
    """First-order effect of the calibration's error on the powers, W."""
    model = calibration.model
    pull = fit.hierarchy.mixing @ fit.covariance / fit.noise
    near = [(other, sd / _MODEL_STEP) for other, sd in _neighbouring_models(model, calibration) if sd > 0]
    if model.smear:
        near.append((replace(model, smear=0.0), 1.0))
    moved = np.zeros((len(near), len(fit.watts)))
    own, *others = predict_for_models(timeline, readings, [model, *(other for other, _ in near)], fit.watts)
    for row, other in enumerate(others):
        change = rows.T @ unwhitened(whitened(scale * (other - own), theta), theta) * near[row][1]
        moved[row] = -(pull @ (fit.hierarchy.mixing.T @ change))
    return (
        CalibrationErrorEffect(moved[:-1], moved[-1])
        if model.smear
        else CalibrationErrorEffect(moved, np.zeros(len(fit.watts)))
    )


def _neighbouring_models(model: SensorModel, calibration: Calibration) -> Sequence[tuple[SensorModel, float]]:
    """The model moved by a step in its centre, in its width and in its filter, each about the same centre."""
    lag, width = model.lag, model.width
    near = [(replace(model, lag=lag + _MODEL_STEP), calibration.sd_centre)]
    if width is not None:
        near.append((replace(model, lag=lag - _MODEL_STEP / 2, width=width + _MODEL_STEP), calibration.sd_width))
    # A filter that was not found changes little until it is slow: no slope at 0 tells by how much.
    slower = _MODEL_STEP if model.rc > SHORTEST_RC else max(calibration.sd_rc, SHORTEST_RC)
    near.append((replace(model, lag=lag - slower, rc=model.rc + slower), calibration.sd_rc * _MODEL_STEP / slower))
    return near


# Errors of rounding are not by chance: what repeats in every step is rounded alike in every step, and what all of them
# make of a power, or of the window that is found, is not averaged out by more of them.

_DRAWS = 24
_ROUNDED = 0.25  # of what the fit leaves, from which rounding is more than a small part of it


def rounding_error_effect(
    timeline: Timeline,
    readings: Readings,
    fit: RidgeFit,
    rows: Any,
    scale: Floats,
    residuals: Floats,
    calibration: Calibration,
    stated: float,
) -> Floats:
    """Changes of the powers (E, P), W, whose squares add up, by the steps that a gauge's numbers have.

    Powers up to half a step beside the fitted ones are taken in turn, their readings rounded, and the powers and the
    sensor model fitted to the rounding errors. stated: the step, W, 0 where it is not.
    """
    step, left = max(stated, readings.resolution), float(np.mean(residuals**2))
    if not readings.is_gauge or step**2 / 12 < _ROUNDED * left:
        return np.zeros((0, len(fit.watts)))
    model, mixing = calibration.model, fit.hierarchy.mixing
    near = [(other, sd) for other, sd in _neighbouring_models(model, calibration) if sd > 0]
    own, *others = predict_for_models(timeline, readings, [model, *(other for other, _ in near)], fit.watts)
    slopes = np.column_stack([(other - own) / _MODEL_STEP * scale for other in others] or [np.zeros((len(own), 0))])
    pulled = -(fit.covariance @ (mixing.T @ (rows.T @ slopes))) / fit.noise
    apart = slopes + np.asarray(rows @ (mixing @ pulled))
    weight = apart.T @ slopes / fit.noise + np.eye(len(others)) / _MOST_SD**2
    kind = timeline.keys.kind
    drawn = np.random.default_rng(0).uniform(-0.5, 0.5, (int(kind.max()) + 1, _DRAWS))[kind] * step
    watts = np.asarray(rows @ (fit.watts[:, None] + drawn)) / np.where(scale > 0, scale, 1.0)[:, None]
    dithered = np.exp(-2 * np.pi**2 * max(left - step**2 / 12, 0.0) / step**2)  # by noise before the rounding
    errors = (np.rint(watts / step) * step - watts) * scale[:, None] * dithered
    off = np.linalg.solve(weight, apart.T @ errors / fit.noise)
    moved = mixing @ (fit.covariance @ (mixing.T @ np.asarray(rows.T @ errors)) / fit.noise + pulled @ off)
    # What independent errors of that size would do is in the fit's own covariance.
    pull = mixing @ fit.covariance @ mixing.T / fit.noise
    by_chance = float(np.mean(errors**2)) * np.einsum("ij,ij->j", pull, (rows.T @ rows) @ pull) @ timeline.seconds**2
    beyond = 1 - by_chance / max(float(np.mean(moved**2, axis=1) @ timeline.seconds**2), 1e-30)
    return np.asarray(moved.T * np.sqrt(max(beyond, 0.0) / _DRAWS))


def template_error_effect(
    timeline: Timeline, readings: Readings, fit: RidgeFit, rows: RegressionRows, model: SensorModel
) -> Floats:
    """Changes of the powers (D, P), W, whose squares add up, by what is unsure of where a typical step has its pieces.

    It is off in all unprofiled steps alike, so that no number of readings averages it out.
    """
    unsure = timeline.scatter
    if unsure is None:
        return np.zeros((0, len(fit.watts)))
    sharp = replace(timeline, scatter=None)
    own = predict_readings(sharp, readings, model, fit.watts)
    pull = fit.hierarchy.mixing @ fit.covariance / fit.noise
    moved = np.zeros((len(unsure.shifts), len(fit.watts)))
    for draw, row in enumerate(moved):
        other = replace(sharp, lanes=tuple(unsure.moved_lane(lane, draw) for lane in timeline.lanes))
        change = rows.scale * (predict_readings(other, readings, model, fit.watts) - own)
        row[:] = pull @ (
            fit.hierarchy.mixing.T @ (rows.matrix.T @ unwhitened(whitened(change, rows.theta), rows.theta))
        )
    errors: Floats = moved / np.sqrt(len(moved))
    return errors


# A filter's time constant, delay and window are unsure together: a slower filter that begins earlier looks much the
# same, so that each parameter alone would seem far better known than all of them are; and a filter may fall along
# another curve than an exponential one.

_MIXED = 0.25, 4.0  # of the found time constant: a faster and a slower filter, of which a share may be mixed in
_MOST_SHARE = 0.3  # of each of the two, before any reading
_MOST_OF_RC, _MOST_SD = 0.25, 2e-3  # of the time constant, and of lag and width, s: before any reading
_LEAST_OF_OWN = 1e-9  # of a variance: what rounding can leave of it
_SIGMAS = 3.5  # of the shares together, from which the curve is another


@dataclass(frozen=True)
class FilterShape:
    """Changes of the powers (E, P), W, whose squares add up; and by how many standard deviations the curve is off."""

    moved: Floats
    sigmas: float

    @property
    def contradicted(self) -> bool:
        """Return whether the readings contradict an exponential filter."""
        return self.sigmas > _SIGMAS


def filter_shape(
    timeline: Timeline,
    readings: Readings,
    fit: RidgeFit,
    rows: Any,
    scale: Floats,
    theta: float,
    residuals: Floats,
    model: SensorModel,
) -> FilterShape:
    """First-order effect on the powers of all that is not known of a filter, and a test of its curve.

    rows, scale, theta, residuals: of the regression, as `RegressionRows` has them.
    """
    near = [replace(model, lag=model.lag + _MODEL_STEP), replace(model, rc=model.rc + _MODEL_STEP)]
    units = [_MODEL_STEP, _MODEL_STEP]
    priors = [_MOST_SD, max(_MOST_SD, _MOST_OF_RC * model.rc)]
    if model.width is not None:
        near.append(replace(model, lag=model.lag - _MODEL_STEP / 2, width=model.width + _MODEL_STEP))
        units.append(_MODEL_STEP)
        priors.append(max(_MOST_SD, 0.1 * model.width))
    near += [replace(model, rc=factor * model.rc) for factor in _MIXED]
    units += [1.0] * len(_MIXED)
    priors += [_MOST_SHARE] * len(_MIXED)
    base, *others = predict_for_models(timeline, readings, [model, *near], fit.watts)
    slopes = np.column_stack([(other - base) / unit for other, unit in zip(others, units, strict=True)])
    slopes[~fully_covered_flags(timeline, readings, near[-1]), -1] = 0.0  # the slow one sees what was before the steps
    slopes = whitened(slopes * scale[:, None], theta)
    mixing = fit.hierarchy.mixing
    along = mixing.T @ (rows.T @ unwhitened(slopes, theta))
    pulled = -(fit.covariance @ along) / fit.noise
    apart = slopes + whitened(np.asarray(rows @ (mixing @ pulled)), theta)
    # In units of what is thought possible before any reading, which is then 1: no direction is left without an end.
    units_of = np.diag(np.asarray(priors))
    eigenvalues, axes = np.linalg.eigh(units_of @ (apart.T @ slopes + slopes.T @ apart) @ units_of / (2 * fit.noise))
    inverse = units_of @ (axes / (1.0 + np.maximum(eigenvalues, 0.0))) @ axes.T @ units_of
    step = timeline.step_of(readings.at - model.lag)
    pull = np.array([np.bincount(step, column * residuals) for column in apart.T]) / fit.noise
    robust = inverse @ (pull @ pull.T + np.diag(1.0 / np.square(priors))) @ inverse
    own = np.diag(inverse)
    grown = np.sqrt(np.maximum(1.0, own / np.maximum(np.diag(robust), _LEAST_OF_OWN * own)))
    spread = robust * grown[:, None] * grown
    off = inverse @ (apart.T @ residuals) / fit.noise
    curve = slice(-len(_MIXED), None)
    sigmas = float(np.sqrt(off[curve] @ np.linalg.solve(spread[curve, curve], off[curve])))
    share, axes = np.linalg.eigh(spread)
    beyond = max(1.0 - len(_MIXED) / max(sigmas**2, 1e-12), 0.0) ** 0.5  # of chance
    other_curve = inverse[:, curve] @ np.linalg.solve(inverse[curve, curve], beyond * off[curve])[:, None]
    ways = np.hstack([axes * np.sqrt(np.maximum(share, 0.0)), other_curve])
    return FilterShape(ways.T @ (mixing @ pulled).T, sigmas)
