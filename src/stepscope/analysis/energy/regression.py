"""Ridge regression of readings on keys, and how sure its energies are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import sparse  # type: ignore[import-untyped]
from scipy.linalg import lapack  # type: ignore[import-untyped]

from stepscope.analysis.energy.neighbour_errors import unwhitened, whitened
from stepscope.analysis.energy.readings import Readings
from stepscope.analysis.energy.timeline import GAP, KIND, LEARNT, PLACE, SIGNATURE, SPREAD, Hierarchy, Timeline
from stepscope.arrays import Floats, Ints

_ROUNDS = 40
_SETTLED = 1e-3
# Of the mean power while something runs: what a spread can be. Readings that say nothing of how kinds differ would let
# it shrink to 0, and every kind would be given the mean with an interval that the prior alone had made.
_LEAST = {KIND: 0.25, SIGNATURE: 0.05, PLACE: 0.02}
MOST_OF_KINDS, ANY_SPREAD = 0.5, 1.0  # the most; the second where how the source sees the past is not known yet
_LEAST_BUSY = 0.05
_LEAST_MEAN = 1e-3  # of the root of the mean square
_STILL = 3e-3  # change of a prior's standard deviation in a round, as a share: it no longer moves


@dataclass(frozen=True)
class Moments:
    """Sums over the readings that the regression needs: X'X (P, P), X'y (P,), y'y; their number and mean."""

    gram: Floats
    cross: Floats
    square: float
    count: float  # less what was decided by them before
    mean_power: float

    @property
    def positive_mean_power(self) -> float:
        """Return the mean power, W, and a little where that is not above 0."""
        return max(self.mean_power, _LEAST_MEAN * float(np.sqrt(self.square / max(self.count, 1))), 1e-15)


@dataclass(frozen=True)
class RidgeFit:
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


def regress(moments: Moments, shape: Hierarchy, near: RidgeFit | None = None, most: float = MOST_OF_KINDS) -> RidgeFit:
    """Posterior under learnt variances: MacKay's fixed point (Bayesian interpolation, Neural Computation 4, 1992).

    near: a fit of nearly the same moments, to start from: the variances of the levels that it has are nearly settled.
    most: that kinds can differ by, as a share of the mean power while something runs.
    """
    mixing, level = sparse.csr_matrix(shape.mixing), shape.level
    prior = shape.prior_mean(moments.positive_mean_power)
    spread = SPREAD * moments.positive_mean_power
    normal = np.asarray(mixing.T @ np.asarray(mixing.T @ moments.gram).T)
    cross = mixing.T @ moments.cross - normal @ prior
    centred = moments.square - 2 * prior @ (mixing.T @ moments.cross) + prior @ normal @ prior
    floor = 1e-12 * moments.positive_mean_power**2 + 1e-30
    noise = max(
        0.3 * (moments.square / moments.count - moments.mean_power**2), 1e-5 * moments.positive_mean_power**2, floor
    )
    if near is not None:
        noise = max(near.noise, floor)
        spread[near.hierarchy.level] = near.spread
    busy = max(1 - _share_of_gap(moments, shape), _LEAST_BUSY)
    for attempt in range(_ROUNDS):
        sd = spread[level]
        moved, variance = _moved_by_data(normal, sd, noise, cross)
        decided = 1 - variance / sd**2
        freedom = max(moments.count - float(decided.sum()), 0.2 * moments.count)
        before, noise = (noise, spread), max((centred - 2 * moved @ cross + moved @ normal @ moved) / freedom, floor)
        spread = _updated_prior_sd(spread, level, moved, decided, moments.positive_mean_power / busy, most)
        if abs(noise / before[0] - 1) < _SETTLED and (
            attempt > 8 or (near is not None and np.abs(spread / before[1] - 1).max() < _STILL)
        ):
            break
    sd = spread[level]
    covariance = _posterior(normal, sd, noise)
    mean = prior + covariance @ cross / noise
    return RidgeFit(shape, mean, covariance, noise, sd)


def _precision_factor(normal: Floats, sd: Floats, noise: float) -> Floats:
    """Lower factor of X'X / noise + 1 / sd^2, scaled so that it can always be factored (D, D)."""
    scaled = normal * (sd / noise)
    scaled *= sd[:, None]
    scaled[np.diag_indices_from(scaled)] += 1.0
    factor: Floats = lapack.dpotrf(scaled.T, lower=1, clean=1, overwrite_a=1)[0]
    return factor


def _moved_by_data(normal: Floats, sd: Floats, noise: float, cross: Floats) -> tuple[Floats, Floats]:
    """Return how far the data move the coefficients from their prior means (D,), and their variances (D,)."""
    root, _ = lapack.dtrtri(_precision_factor(normal, sd, noise), lower=1, overwrite_c=1)
    moved: Floats = sd * ((root @ (sd * cross)) @ root) / noise
    return moved, sd**2 * np.einsum("ij,ij->j", root, root)


def _posterior(normal: Floats, sd: Floats, noise: float) -> Floats:
    """Covariance (D, D): inverse of X'X / noise + 1 / sd^2."""
    inverse, _ = lapack.dpotri(_precision_factor(normal, sd, noise), lower=1, overwrite_c=1)
    whole = inverse + np.tril(inverse, -1).T
    covariance: Floats = sd[:, None] * whole * sd
    return covariance


def log_evidence(moments: Moments, fit: RidgeFit) -> float:
    """Logarithm of how likely the readings are under a fit's variances, whatever the powers; up to a constant."""
    shape = fit.hierarchy
    mixing = sparse.csr_matrix(shape.mixing)
    prior = shape.prior_mean(moments.positive_mean_power)
    normal = np.asarray(mixing.T @ np.asarray(mixing.T @ moments.gram).T)
    cross = mixing.T @ moments.cross
    moved = fit.mean - prior
    squared_error = moments.square - 2 * fit.mean @ cross + fit.mean @ normal @ fit.mean
    factor = np.diag(_precision_factor(normal, fit.spread, fit.noise))
    misfit = squared_error / fit.noise + float((moved**2 / fit.spread**2).sum())
    return float(-0.5 * (moments.count * np.log(fit.noise) + misfit) - np.log(np.abs(factor)).sum())


def _share_of_gap(moments: Moments, shape: Hierarchy) -> float:
    """Of the readings, by how often each key was seen: 0 to 1."""
    weight = moments.gram.sum(axis=1)
    gap = shape.mixing[:, shape.level == GAP].sum(axis=1) > 0
    return float(weight[gap].sum() / max(float(weight.sum()), 1e-30))


def _updated_prior_sd(spread: Floats, level: Ints, moved: Floats, decided: Floats, power: float, most: float) -> Floats:
    """Each learnt level's spread that its own coefficients show, within bounds of the power while something runs.

    A few kinds whose places are badly known can show a spread beyond every power that was read: it would let all the
    other rare ones go where the noise takes them.
    """
    new: Floats = spread.copy()
    for which in LEARNT:
        mine = level == which
        if mine.any():
            learnt_sd = np.sqrt(float((moved[mine] ** 2).sum()) / max(float(decided[mine].sum()), 1e-3))
            least, top = _LEAST[which] * power, (most if which == KIND else ANY_SPREAD) * power
            new[which] = np.clip(learnt_sd, least, max(top, least))
    return new


MOST_CLUSTERS = 1_000  # longer runs join neighbouring steps
FEWEST_CLUSTERS = 20


def sandwich(fit: RidgeFit, rows: Any, residuals: Floats, theta: float, step: Ints) -> Floats:
    """Covariance of the coefficients (D, D) whatever the errors within a step are; never below the model's own.

    rows: (M, P), residuals: the readings less the fit, whitened (M,), step: of each reading (M,), ascending.
    """
    cluster = _clusters(step)
    pull = unwhitened(leave_block_out(fit, rows, residuals, theta, cluster), theta)
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


# A key that ran long in a few steps alone (a stall, a bucket of long sequences) is decided by the few readings that saw
# it. The fit goes through them, so their residuals say nothing of how wrong it is; those of a fit without them do. That
# is the jackknife over groups of neighbouring readings, whose errors are alike (CR3 of Bell and McCaffrey, "Bias
# reduction in standard errors for linear regression with multi-stage samples", Survey Methodology 28, 2002).

_BLOCK_READINGS = 32  # readings that are excluded together: a stall is shorter than so many
_DECIDING = 0.02  # coefficients that a block decides, below which leaving it out moves nothing
_LEAST_MISSED = (
    1e-3  # of what the fit would miss without a block is left with it, at the least: rounding could make it 0
)


def leave_block_out(fit: RidgeFit, rows: Any, residuals: Floats, theta: float, cluster: Ints) -> Floats:
    """Readings less a fit without the block that each is in (M,).

    rows: (M, P) sparse, residuals: whitened (M,), cluster: of each reading (M,), ascending; no block spans two.
    """
    mixing = sparse.csr_matrix(fit.hierarchy.mixing)
    hat = np.asarray(mixing @ np.asarray(mixing @ fit.covariance).T) / fit.noise
    matrix = sparse.csr_matrix(rows)
    matrix.sum_duplicates()
    most = np.asarray(abs(matrix) @ np.sqrt(np.maximum(np.diag(hat), 0.0))) ** 2 / (1 - theta) ** 2
    alone: Floats = residuals.copy()
    for begin, end in _block_ranges(cluster):
        if float(most[begin:end].sum()) > _DECIDING:
            alone[begin:end] = _residuals_without(matrix, hat, residuals[begin:end], theta, begin)
    return alone


def _block_ranges(cluster: Ints) -> Iterator[tuple[int, int]]:
    edges = np.append(np.flatnonzero(np.diff(cluster, prepend=cluster[:1] - 1)), len(cluster)).tolist()
    for first, last in pairwise(edges):
        for begin in range(first, last, _BLOCK_READINGS):
            yield begin, min(begin + _BLOCK_READINGS, last)


def _residuals_without(matrix: Any, hat: Floats, residuals: Floats, theta: float, begin: int) -> Floats:
    """(I - H)^-1 of the block times its residuals, H being its part of the hat matrix.

    A factorisation says whether any direction is decided by the block alone; only then are all of them looked at.
    """
    starts = matrix.indptr[begin : begin + len(residuals) + 1]
    entries, row = slice(starts[0], starts[-1]), np.repeat(np.arange(len(residuals)), np.diff(starts))
    place = np.zeros(len(hat), dtype=np.int64)
    place[matrix.indices[entries]] = 1
    keys = np.flatnonzero(place)  # a block sees a few of them
    place[keys] = np.arange(len(keys))
    dense = np.zeros((len(residuals), len(keys)))
    dense[row, place[matrix.indices[entries]]] = matrix.data[entries]
    own = whitened(whitened(dense @ (dense @ hat[np.ix_(keys, keys)]).T, theta).T, theta)
    missed = np.eye(len(residuals)) - (own + own.T) / 2
    least = _LEAST_MISSED * np.eye(len(residuals))
    alone: Floats
    if lapack.dpotrf(missed - least)[1] == 0:
        alone = lapack.dposv(missed, residuals)[1]
        return alone
    share, axes = np.linalg.eigh(missed)
    alone = axes @ ((axes.T @ residuals) / np.maximum(share, _LEAST_MISSED))
    return alone


FULL_TIME = 0.9  # share of the time seen from which the total is taken as exact
_TOTAL_ERROR = 5e-4  # of the total: rounding, ends of the run


@dataclass(frozen=True)
class MeasuredTotal:
    """Energy over the steps, J, its standard deviation, and the share of the time that the source looked at."""

    joules: float
    sd: float
    coverage: float


def measured_total(readings: Readings, width: Floats, weight: Floats, seconds: float) -> MeasuredTotal:
    """Mean power times the length of the steps; a source that looks at a part of the time has not seen all of it.

    width: (M,) of each reading's window, weight: (M,) of each reading.
    """
    distance = np.diff(readings.at)
    period = float(np.median(distance)) if len(distance) else seconds
    if readings.is_gauge and len(distance):
        # What was read twice counts once in a fit; where power rests that is common, and the mean would be of the rest.
        near = np.minimum(distance, 3 * period)
        weight = weight * (np.append(near, near[-1:]) + np.append(near[:1], near))
    mean = float(np.average(readings.watts, weights=weight))
    # Windows that repeat or leave some out at random see no more than all of them laid end to end.
    coverage = min(1.0, float(width.sum()) / seconds, float(np.median(width)) / period if period > 0 else 0.0)
    lost = float(np.maximum(distance - 3 * period, 0).sum()) / seconds if len(distance) else 0.0
    coverage *= max(1.0 - lost, 0.0)
    spread = float(np.std(readings.watts)) / np.sqrt(max(readings.count, 1)) * seconds
    variance = spread**2 * (1 - coverage) + (_TOTAL_ERROR * mean * seconds) ** 2
    return MeasuredTotal(mean * seconds, float(np.sqrt(variance)), coverage)


def adjust_to_total(joules: Floats, covariance: Floats, total: MeasuredTotal) -> tuple[Floats, Floats]:
    """Energies (P,) and covariance after the total was observed (a Kalman update), and after none can be below 0.

    What a source that looks all the time still leaves open, under 0.1 %, is handed out in proportion.
    """
    along = covariance.sum(axis=1)
    gain = along / (along.sum() + total.sd**2)
    closed = covariance - np.outer(gain, along)
    updated = remove_negative_energies(joules + gain * (total.joules - joules.sum()), closed)
    if total.coverage > FULL_TIME and updated.sum() > 0:
        updated = updated * (total.joules / updated.sum())
    return updated, closed


def remove_negative_energies(joules: Floats, covariance: Floats) -> Floats:
    """Energies (P,) given that those below 0 are 0: what they lacked is taken from those that had it.

    To set them to 0 alone would leave it with the others, and their sum too large.
    """
    at_zero = np.zeros(len(joules), dtype=bool)
    moved = joules
    for _ in range(_MOST_HELD):
        below = (moved < 0) & ~at_zero
        if not below.any():
            break
        at_zero |= below
        among = covariance[np.ix_(at_zero, at_zero)]
        among[np.diag_indices_from(among)] += _SINGULAR * among.max(initial=1e-30)
        moved = joules - covariance[:, at_zero] @ np.linalg.solve(among, joules[at_zero])
    return np.maximum(np.where(at_zero, 0.0, moved), 0.0)


_SINGULAR = 1e-9  # of the largest variance: what two energies that err together are still told apart by
_MOST_HELD = 20  # rounds, each of which holds those that the one before has moved below 0


WIDE = 0.004  # s: a stretch of the step without a sample that hides ops
BY_CHANCE = 1e-3  # a stretch that is less likely than this among random phases is a lock


@dataclass(frozen=True)
class SamplePhaseCheck:
    """The longest stretch of the step in which no sample ends, s; `locked`: not by chance; `wide`: it hides ops."""

    unsampled: float
    wide: bool
    locked: bool

    @property
    def sentence(self) -> str:
        """Return what is wrong and what to do; empty where nothing is."""
        if not self.wide:
            return ""
        stretch = f"no sample falls into {self.unsampled * 1e3:.1f} ms of the step"
        if self.locked:
            return f"the sampler is locked to the step: {stretch}; dither the period or change it by a few percent"
        return f"too few samples: {stretch}; train more steps"

    @property
    def locked_by_source(self) -> str:
        """The same where it is the source's own clock that keeps step: other read times change nothing."""
        return (
            f"the sensor's updates keep step with the training: none falls into {self.unsampled * 1e3:.1f} ms of the "
            "step; change the step's length (the batch size) by a few percent"
        )


def check_sample_phase(timeline: Timeline, readings: Readings, lag: float) -> SamplePhaseCheck:
    """Return the place in the step where each window ends. A stretch counts from 4 ms, or a typical op where that is
    longer.
    """
    t = readings.at - lag
    step = timeline.step_of(t)
    begin, length = timeline.step_t0[step], timeline.step_t1[step] - timeline.step_t0[step]
    inside = (t >= begin) & (t < begin + length)
    phase = np.sort((t - begin)[inside] / length[inside])
    if len(phase) == 0:
        return SamplePhaseCheck(timeline.step_length, wide=True, locked=False)
    empty = float(np.diff(np.append(phase, phase[0] + 1)).max())
    unsampled = empty * timeline.step_length
    limit = max(WIDE, float(np.nanmedian(timeline.piece_seconds)))
    by_chance = len(phase) * np.exp(-len(phase) * empty)  # of the longest of so many random gaps
    wide = unsampled > limit
    return SamplePhaseCheck(unsampled, wide, bool(wide and by_chance < BY_CHANCE))
