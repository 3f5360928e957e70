"""Ridge regression of readings on keys, with a variance for each level that the data themselves choose."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse  # type: ignore[import-untyped]
from scipy.linalg import lapack  # type: ignore[import-untyped]

from stepscope.analysis.attribution.hierarchy import GAP, KIND, LEARNT, SPREAD, Hierarchy
from stepscope.analysis.attribution.timeline import Ints
from stepscope.analysis.intervals import Floats

_ROUNDS = 40
_SETTLED = 1e-3
_LEAST = 0.01  # of the mean power while something runs: what a spread can be
MOST_OF_KINDS, ANY_SPREAD = 0.3, 1.0  # the most; the second where how the source sees the past is not known yet
_LEAST_BUSY = 0.05
_STILL = 3e-3  # change of a prior's standard deviation in a round, as a share: it no longer moves


@dataclass(frozen=True)
class Moments:
    """Sums over the readings that the regression needs: X'X (P, P), X'y (P,), y'y; their number and mean."""

    gram: Floats
    cross: Floats
    square: float
    count: int
    mean_power: float


@dataclass(frozen=True)
class Fit:
    """Coefficients (D,), their posterior covariance, the noise variance, and the prior's standard deviations (D,)."""

    hierarchy: Hierarchy
    mean: Floats
    covariance: Floats
    noise: float
    spread: Floats

    @property
    def watts(self) -> Floats:
        """Power of each key (P,)."""
        power: Floats = self.hierarchy.mixing @ self.mean
        return power


def regress(moments: Moments, shape: Hierarchy, near: Fit | None = None, most: float = MOST_OF_KINDS) -> Fit:
    """Posterior under learnt variances: MacKay's fixed point (Bayesian interpolation, Neural Computation 4, 1992).

    near: a fit of nearly the same moments, to start from: the variances of the levels that it has are nearly settled.
    most: that kinds can differ by, as a share of the mean power while something runs.
    """
    mixing, level = sparse.csr_matrix(shape.mixing), shape.level
    prior = shape.prior_mean(moments.mean_power)
    spread = SPREAD * moments.mean_power
    normal = np.asarray(mixing.T @ np.asarray(mixing.T @ moments.gram).T)
    cross = mixing.T @ moments.cross - normal @ prior
    centred = moments.square - 2 * prior @ (mixing.T @ moments.cross) + prior @ normal @ prior
    floor = 1e-12 * moments.mean_power**2 + 1e-30
    noise = max(0.3 * (moments.square / moments.count - moments.mean_power**2), 1e-5 * moments.mean_power**2, floor)
    if near is not None:
        noise = max(near.noise, floor)
        spread[near.hierarchy.level] = near.spread
    busy = max(1 - _share_of_gap(moments, shape), _LEAST_BUSY)
    for attempt in range(_ROUNDS):
        sd = spread[level]
        moved, variance = _moved(normal, sd, noise, cross)
        decided = 1 - variance / sd**2
        left = max(moments.count - float(decided.sum()), 0.2 * moments.count)
        before, noise = (noise, spread), max((centred - 2 * moved @ cross + moved @ normal @ moved) / left, floor)
        spread = _learnt(spread, level, moved, decided, moments.mean_power / busy, most)
        if abs(noise / before[0] - 1) < _SETTLED and (attempt > 8 or (near is not None and _still(before[1], spread))):
            break
    sd = spread[level]
    covariance = _posterior(normal, sd, noise)
    mean = prior + covariance @ cross / noise
    return Fit(shape, mean, covariance, noise, sd)


def _still(before: Floats, spread: Floats) -> bool:
    return bool(np.abs(spread / before - 1).max() < _STILL)


def _scaled(normal: Floats, sd: Floats, noise: float) -> Floats:
    """Lower factor of X'X / noise + 1 / sd^2, scaled so that it can always be factored (D, D)."""
    scaled = normal * (sd / noise)
    scaled *= sd[:, None]
    scaled[np.diag_indices_from(scaled)] += 1.0
    factor: Floats = lapack.dpotrf(scaled.T, lower=1, clean=1, overwrite_a=1)[0]
    return factor


def _moved(normal: Floats, sd: Floats, noise: float, cross: Floats) -> tuple[Floats, Floats]:
    """How far the data move the coefficients from their prior means (D,), and their variances (D,)."""
    root, _ = lapack.dtrtri(_scaled(normal, sd, noise), lower=1, overwrite_c=1)
    moved: Floats = sd * ((root @ (sd * cross)) @ root) / noise
    return moved, sd**2 * np.einsum("ij,ij->j", root, root)


def _posterior(normal: Floats, sd: Floats, noise: float) -> Floats:
    """Covariance (D, D): inverse of X'X / noise + 1 / sd^2."""
    inverse, _ = lapack.dpotri(_scaled(normal, sd, noise), lower=1, overwrite_c=1)
    whole = inverse + np.tril(inverse, -1).T
    covariance: Floats = sd[:, None] * whole * sd
    return covariance


def _share_of_gap(moments: Moments, shape: Hierarchy) -> float:
    """Of the readings, by how often each key was seen: 0 to 1."""
    seen = moments.gram.sum(axis=1)
    gap = shape.mixing[:, shape.level == GAP].sum(axis=1) > 0
    return float(seen[gap].sum() / max(float(seen.sum()), 1e-30))


def _learnt(spread: Floats, level: Ints, moved: Floats, decided: Floats, power: float, most: float) -> Floats:
    """Each learnt level's spread that its own coefficients show, within bounds of the power while something runs.

    A few kinds whose places are badly known can show a spread beyond every power that was read: it would let all the
    other rare ones go where the noise takes them.
    """
    new: Floats = spread.copy()
    for which in LEARNT:
        mine = level == which
        if mine.any():
            shown = np.sqrt(float((moved[mine] ** 2).sum()) / max(float(decided[mine].sum()), 1e-3))
            new[which] = np.clip(shown, _LEAST * power, (most if which == KIND else ANY_SPREAD) * power)
    return new
