"""Rows of the regression: what each reading saw of each key, with slow gain, weights and shared errors in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse  # type: ignore[import-untyped]

from stepscope.analysis.energy.misfit import trust
from stepscope.analysis.energy.readings import Readings
from stepscope.analysis.energy.regression import MOST_OF_KINDS, Fit, Moments, regress
from stepscope.analysis.energy.sensor_model import (
    SensorModel,
    design,
    shared_error,
    slow_gain,
    unwhitened,
    whitened,
    whitened_gram,
)
from stepscope.analysis.energy.timeline import Timeline, hierarchy
from stepscope.arrays import Floats

FEWEST = 20  # readings; with fewer there is nothing to fit


@dataclass(frozen=True)
class Rows:
    """The regression's matrix (M, P), each row scaled by weight and slow gain, and the readings scaled alike.

    `theta` is the filter that makes the readings' errors independent (sensor_model.py).
    """

    matrix: Any
    scale: Floats
    watts: Floats
    theta: float

    def moments(self, mean_power: float) -> Moments:
        seen = whitened(self.watts, self.theta)
        cross = np.asarray(self.matrix.T @ unwhitened(seen, self.theta))
        return Moments(whitened_gram(self.matrix, self.theta), cross, float(seen @ seen), len(seen), mean_power)

    def left(self, fit: Fit) -> Floats:
        """Readings less the fit, whitened (M,)."""
        return whitened(self.watts - self.matrix @ fit.watts, self.theta)


def scaled_rows(
    timeline: Timeline, readings: Readings, model: SensorModel, most: float = MOST_OF_KINDS
) -> tuple[Rows, Fit]:
    """Rows with the slow gain and the weight of each reading in; and the fit by signature."""
    coarse = hierarchy(timeline.keys, "signature")
    mean = float(readings.watts.mean())
    matrix = design(timeline, readings, model)
    plain = weighted_rows(matrix, readings, np.ones(readings.count), 0.0)
    first = regress(plain.moments(mean), coarse, most=most)
    gain = slow_gain(readings.at, readings.watts * readings.weight, plain.matrix @ first.watts, timeline.step_length)
    left = plain.left(first)
    theta = shared_error(left) if readings.carry else 0.0
    rows = weighted_rows(matrix, readings, gain, theta, _row_weights(timeline, readings, model, left))
    return rows, regress(rows.moments(mean), coarse, first, most)


def _row_weights(timeline: Timeline, readings: Readings, model: SensorModel, left: Floats) -> Floats:
    """Weight of each reading (M,), mean 1: what was seen of filled-in steps agrees less well with them."""
    at = readings.at - model.lag
    recorded = timeline.recorded[timeline.step_of(at)]
    moves = float((readings.watts * readings.weight).std())
    own = np.ones(readings.count) if readings.carry else trust(left, timeline.kind_of(at), moves)
    if recorded.all() or recorded.sum() < FEWEST or (~recorded).sum() < FEWEST:
        return np.asarray(own / own.mean())
    ratio = float(np.sqrt(left[recorded].var() / max(float(left[~recorded].var()), 1e-30)))
    weight = own * np.where(recorded, 1.0, min(ratio, 1.0))
    return np.asarray(weight / weight.mean())


def weighted_rows(matrix: Any, readings: Readings, gain: Floats, theta: float, trust: Floats | None = None) -> Rows:
    weight = readings.weight if trust is None else readings.weight * trust
    scale = weight * gain
    return Rows(sparse.diags(scale) @ matrix, scale, readings.watts * weight, theta)


