"""Rows of the regression: what each reading saw of each key, with gains, weights and shared errors in."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    """The regression's matrix (M, P), each row scaled by weight and gain, and the readings scaled alike.

    `theta` is the filter that makes the readings' errors independent (sensor_model.py); `spent` how many parameters
    the readings have already decided, as gains of steps.
    """

    matrix: Any
    scale: Floats
    watts: Floats
    theta: float
    spent: float = 0.0

    def moments(self, mean_power: float) -> Moments:
        seen = whitened(self.watts, self.theta)
        cross = np.asarray(self.matrix.T @ unwhitened(seen, self.theta))
        return Moments(
            whitened_gram(self.matrix, self.theta), cross, float(seen @ seen), len(seen) - self.spent, mean_power
        )

    def left(self, fit: Fit) -> Floats:
        """Readings less the fit, whitened, as large as they would be had they decided no gains (M,)."""
        grown = float(np.sqrt(len(self.watts) / (len(self.watts) - self.spent)))
        left: Floats = whitened(self.watts - self.matrix @ fit.watts, self.theta) * grown
        return left


def scaled_rows(
    timeline: Timeline, readings: Readings, model: SensorModel, most: float = MOST_OF_KINDS
) -> tuple[Rows, Fit]:
    """Rows with the gains and the weight of each reading in; and the fit by signature."""
    coarse = hierarchy(timeline.keys, "signature")
    mean = float(readings.watts.mean())
    matrix = design(timeline, readings, model)
    plain = weighted_rows(matrix, readings, np.ones(readings.count), 0.0)
    first = regress(plain.moments(mean), coarse, most=most)
    gain = slow_gain(readings.at, readings.watts * readings.weight, plain.matrix @ first.watts, timeline.step_length)
    left = plain.left(first)
    theta = shared_error(left) if readings.carry else 0.0
    of_step, spent = _step_gain(timeline, readings, model, gain * (plain.matrix @ first.watts))
    rows = weighted_rows(matrix, readings, gain * of_step, theta, _row_weights(timeline, readings, model, left))
    rows = replace(rows, spent=spent)
    return rows, regress(rows.moments(mean), coarse, first, most)


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
    seen, size = readings.watts * readings.weight, np.maximum(np.bincount(place, fitted**2), 1e-30)
    off = np.bincount(place, fitted * (seen - fitted)) / size
    left = seen - fitted * (1 + off[place])
    chance = float(left @ left) / (readings.count - len(names)) / size
    off -= np.average(off, weights=size)
    spread = max(float(np.average(off**2 - chance, weights=size)), 0.0)
    shown = spread / np.maximum(spread + chance, 1e-30)
    return np.clip(1 + shown * off, 1 / _MOST_GAIN, _MOST_GAIN)[place], float(shown.sum())


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
