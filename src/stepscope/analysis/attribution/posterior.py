"""How sure the energies are: posterior, sandwich clustered by step, and what the calibration leaves open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse  # type: ignore[import-untyped]

from stepscope.analysis.attribution.calibrate import Calibration
from stepscope.analysis.attribution.design import predicted_each
from stepscope.analysis.attribution.left_out import left_out
from stepscope.analysis.attribution.readings import Readings
from stepscope.analysis.attribution.regression import Fit
from stepscope.analysis.attribution.sensor_model import SensorModel
from stepscope.analysis.attribution.timeline import Ints, Timeline
from stepscope.analysis.attribution.whitening import unwhitened, whitened
from stepscope.analysis.intervals import Floats

MOST_CLUSTERS = 1_000  # longer runs join neighbouring steps
FEWEST_CLUSTERS = 20
_STEP = 1e-4  # s: finite difference in lag, width and rc


def sandwich(fit: Fit, rows: Any, left: Floats, theta: float, step: Ints) -> Floats:
    """Covariance of the coefficients (D, D) whatever the errors within a step are; never below the model's own.

    rows: (M, P), left: the readings less the fit, whitened (M,), step: of each reading (M,), ascending.
    """
    cluster = _clusters(step)
    pull = unwhitened(left_out(fit, rows, left, theta, cluster), theta)
    count = len(pull)
    chooser = sparse.csr_matrix((pull, (cluster, np.arange(count))), shape=(int(cluster.max()) + 1, count))
    scores = (chooser @ sparse.csr_matrix(rows) @ sparse.csr_matrix(fit.hierarchy.mixing)).toarray()
    meat = scores.T @ scores
    own = fit.covariance
    robust = own @ (np.diag(1 / fit.spread**2) + meat / fit.noise**2) @ own
    grown = np.sqrt(np.maximum(1.0, np.diag(own) / np.maximum(np.diag(robust), 1e-30)))
    covariance: Floats = robust * grown[:, None] * grown
    return covariance


def _clusters(step: Ints) -> Ints:
    """Steps as clusters 0..n: neighbours joined where there are very many, runs cut in 20 where there are few."""
    names, place = np.unique(step, return_inverse=True)
    if len(names) < FEWEST_CLUSTERS:
        return np.arange(len(step)) * FEWEST_CLUSTERS // max(len(step), 1)
    joined: Ints = place * min(len(names), MOST_CLUSTERS) // len(names)
    return joined


@dataclass(frozen=True)
class Wobble:
    """How the powers (P,) move if the sensor model is off by one standard deviation, a row each; and without smear."""

    moved: Floats
    without_smear: Floats


def wobble(
    timeline: Timeline, readings: Readings, fit: Fit, rows: Any, scale: Floats, theta: float, found: Calibration
) -> Wobble:
    """First-order effect of the calibration's error on the powers, W."""
    model = found.model
    plain = rows @ fit.watts  # scaled
    pull = fit.hierarchy.mixing @ fit.covariance / fit.noise
    near = [(other, sd / _STEP) for other, sd in _neighbours(model, found) if sd > 0]
    if model.smear:
        near.append((SensorModel(model.lag, model.width, model.rc), 1.0))
    moved = np.zeros((len(near), len(fit.watts)))
    for row, seen in enumerate(predicted_each(timeline, readings, [other for other, _ in near], fit.watts)):
        change = rows.T @ unwhitened(whitened(scale * seen - plain, theta), theta) * near[row][1]
        moved[row] = -(pull @ (fit.hierarchy.mixing.T @ change))
    return Wobble(moved[:-1], moved[-1]) if model.smear else Wobble(moved, np.zeros(len(fit.watts)))


def _neighbours(model: SensorModel, found: Calibration) -> Sequence[tuple[SensorModel, float]]:
    """The model moved by a step in its centre, in its width and in its filter, each about the same centre."""
    lag, width, rc, smear = model.lag, model.width, model.rc, model.smear
    near = [(SensorModel(lag + _STEP, width, rc, smear), found.sd_centre)]
    if width is not None:
        near.append((SensorModel(lag - _STEP / 2, width + _STEP, rc, smear), found.sd_width))
    near.append((SensorModel(lag - _STEP, width, rc + _STEP, smear), found.sd_rc))
    return near
