"""Effect of a calibration's error on the powers that were fitted with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepscope.analysis.energy.calibration import Calibration
from stepscope.analysis.energy.readings import Readings
from stepscope.analysis.energy.regression import RidgeFit
from stepscope.analysis.energy.sensor_model import SHORTEST_RC, SensorModel, predict_for_models, unwhitened, whitened
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
    plain = rows @ fit.watts  # scaled
    pull = fit.hierarchy.mixing @ fit.covariance / fit.noise
    near = [(other, sd / _MODEL_STEP) for other, sd in _neighbouring_models(model, calibration) if sd > 0]
    if model.smear:
        near.append((replace(model, smear=0.0), 1.0))
    moved = np.zeros((len(near), len(fit.watts)))
    for row, prediction in enumerate(predict_for_models(timeline, readings, [other for other, _ in near], fit.watts)):
        change = rows.T @ unwhitened(whitened(scale * prediction - plain, theta), theta) * near[row][1]
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
