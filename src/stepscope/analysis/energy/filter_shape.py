"""Uncertainty of a filter behind a source: its time constant, delay and window together, and its curve.

A slower filter that begins earlier looks much the same, so that each parameter alone would seem far better known than
all of them are; and a filter may fall along another curve than an exponential one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepscope.analysis.energy.readings import Readings
from stepscope.analysis.energy.regression import RidgeFit
from stepscope.analysis.energy.sensor_model import (
    SensorModel,
    fully_covered_flags,
    predict_for_models,
    unwhitened,
    whitened,
)
from stepscope.analysis.energy.timeline import Timeline
from stepscope.arrays import Floats

_STEP = 1e-4  # s: finite difference of lag, width and time constant
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

    rows, scale, theta, residuals: of the regression, as `attribution.Rows` has them.
    """
    near = [replace(model, lag=model.lag + _STEP), replace(model, rc=model.rc + _STEP)]
    units = [_STEP, _STEP]
    priors = [_MOST_SD, max(_MOST_SD, _MOST_OF_RC * model.rc)]
    if model.width is not None:
        near.append(replace(model, lag=model.lag - _STEP / 2, width=model.width + _STEP))
        units.append(_STEP)
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
