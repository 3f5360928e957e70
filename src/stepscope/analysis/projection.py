"""The trend of a series, and from it a sum or a level that was not measured, with its 95 % CI.

A series is a level, and on it: a drift with a time constant (warm-up, leakage, a linear slow-down), one lasting change
(a throttle), and a wandering (a clock that toggles, an evaluation every so often). None of their sizes and time
constants is known; each combination is a Gaussian model, and the readings say how likely it is. The result is the
mixture of what all models expect, so that a drift which the readings cannot yet tell from none widens the CI.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from scipy import special  # type: ignore[import-untyped]

from stepscope.analysis.estimate import CONFIDENCE
from stepscope.arrays import Floats, Ints
from stepscope.errors import RunError

BLOCK_STEPS = 20  # steps whose mean is one observation
_MOST_BLOCKS = 64
_LEVEL_SD = 3.0  # of the level, in units of the typical value: it is for the readings to say
_DRIFTS = ((0.02, 0.35), (0.1, 0.35), (0.4, 0.3))  # sd of the drift over the whole series, and how likely each is
_DRIFT_CHANCE, _TIME_CONSTANTS, _LINEAR, _LINEAR_CHANCE = 0.15, 12, 3, 0.4  # the longest constants: all but linear
_CHANGE_CHANCE, _TOGGLE_CHANCE, _CHANGE_SD = 0.1, 0.2, 0.3
_OUTLIER, _MOST_OUTLIERS = 5.0, 0.25  # robust standard deviations; of a block, above which they are no outliers
_STALL, _STALLS = 0.5, 0.5  # of a step, and how many such stalls are added to those seen: few steps may show none
_WANDERS = ((0.0, 0.58), (0.003, 0.2), (0.01, 0.1), (0.03, 0.05), (0.1, 0.04), (0.3, 0.03))  # sd, and its chance
_WANDER_STEPS = (20.0, 80.0, 320.0, 1280.0)  # over which the wandering forgets
_NEGLIGIBLE = 1e-4  # of the posterior
_SHOWN = 17 / 3  # times more likely with a drift than without: the readings show it (of the chance 0.15 they make 0.5)
_WARMS_CHANCE = 0.9  # of a drift of a level: what begins to work warms up
_FEW_BLOCKS, _SMALLEST_BLOCK = 5, 3  # of a level: few readings make short blocks, else they show no drift
_ROUNDED = 2  # steps in which readings come, that the CI of a level has at least on either side


@dataclass(frozen=True)
class Projection:
    """A sum over `steps` steps or a level at its end, the 95 % CI, and in words what the readings show."""

    steps: int
    measured: int
    total: float
    low: float
    high: float
    method: str


@dataclass(frozen=True)
class _Blocks:
    spans: Floats  # (n, 2) first step and end of each
    mean: Floats  # (n,)
    noise: float  # variance of one step around its neighbours, with what their likeness adds
    count: Floats  # (n,) steps measured in each


@dataclass(frozen=True)
class _Targets:
    """What is to be predicted: a weighted sum of the mean level within spans of steps, and its own noise."""

    spans: Floats  # (m, 2)
    weights: Floats  # (m,)
    noise: float  # variance


def project_sum(at: Floats, values: Floats, steps: int) -> Projection:
    """Predict the sum over the steps 0 .. steps - 1 from the values measured at the steps `at` (n,), ascending.

    values: (n,) without NaN, of any unit. What was measured enters as it is.
    """
    measured = float(values[at < steps].sum())
    parts = _block_indices(at)
    stalls = _stall_excesses(values, parts)
    blocks = _blocks(at, values - stalls, parts)
    targets = _unmeasured(blocks, at, steps)
    remaining = float(targets.weights.sum())
    if remaining == 0 or not values.any():
        return Projection(steps, len(values), measured, measured, measured, "measured")
    spread = (float(((stalls - stalls.mean()) ** 2).sum()) + _STALLS * (_STALL * np.median(values)) ** 2) / len(values)
    targets = replace(targets, noise=targets.noise + spread * (remaining + remaining**2 / len(values)))
    measured += remaining * float(stalls.mean())
    expected, low, high, method = _predict(blocks, targets, float(max(steps, at[-1] + 1)))
    floor = min(0.0, float(values.min())) * remaining
    return Projection(
        steps, len(values), measured + expected, measured + max(low, floor), measured + high, method
    )  # fmt: skip


def project_level(at: Floats, values: Floats, end: float) -> Projection:
    """Predict the level that a series has at `end`, on the scale of `at` (n,): ascending, a reading about every 1.

    A drift is taken as likely: what the readings cannot yet tell from a level that stays widens the CI.
    """
    length = min(max(len(at) // _FEW_BLOCKS, _SMALLEST_BLOCK), BLOCK_STEPS)
    blocks = _blocks(at, values, _block_indices(at, length), length)
    last = max(end, float(at[-1]) + 1.0)
    targets = _Targets(np.array([[last - 1.0, last]]), np.ones(1), 0.0)
    expected, low, high, method = _predict(blocks, targets, last, _WARMS_CHANCE)
    apart = np.diff(np.unique(values))
    half = _ROUNDED * float(apart.min()) if len(apart) else 0.0
    return Projection(round(last), len(values), expected, min(low, expected - half), max(high, expected + half), method)


def _block_indices(at: Floats, length: int = BLOCK_STEPS) -> list[Ints]:
    """Places of neighbouring steps that make a block each; a hole in the numbers ends one, where there are few."""
    size = max(length, -(-len(at) // _MOST_BLOCKS))
    cuts = np.flatnonzero(np.diff(at) > BLOCK_STEPS) + 1
    pieces = [
        piece
        for run in np.split(np.arange(len(at)), cuts)
        for piece in np.array_split(run, max(1, round(len(run) / size)))
    ]
    together = -(-len(pieces) // _MOST_BLOCKS)
    return [np.concatenate(pieces[first : first + together]) for first in range(0, len(pieces), together)]


def _stall_excesses(values: Floats, parts: Sequence[Ints]) -> Floats:
    """Return by how much single steps stick out of their blocks (n,), 0 for most: they say nothing of the trend."""
    away = np.concatenate([values[part] - np.median(values[part]) for part in parts])
    edge = _OUTLIER * 1.4826 * float(np.median(np.abs(away)))
    beyond = away - np.clip(away, -edge, edge)
    for part in parts:
        if np.count_nonzero(beyond[part]) > _MOST_OUTLIERS * len(part):
            beyond[part] = 0.0
    return np.asarray(beyond)


def _blocks(at: Floats, values: Floats, parts: Sequence[Ints], length: int = BLOCK_STEPS) -> _Blocks:
    return _Blocks(
        np.array([[at[part[0]], at[part[-1]] + 1] for part in parts], dtype=np.float64),
        np.array([values[part].mean() for part in parts]),
        _noise([values[part] for part in parts], length),
        np.array([float(len(part)) for part in parts]),
    )


def _noise(parts: Sequence[Floats], length: int) -> float:
    """Variance of a step around its block, inflated by how much a step resembles the one before it."""
    away = [part - part.mean() for part in parts if len(part) > 2]
    free = sum(len(part) - 1 for part in away)
    power = sum(float((part**2).sum()) for part in away)
    if not power:
        return 0.0
    alike = sum(float((part[1:] * part[:-1]).sum()) for part in away)
    likeness = min(max(alike / power + 1 / length, 0.0), 0.9)  # the block's own mean hides some of it
    return power / free * (1 + likeness) / (1 - likeness)


def _unmeasured(blocks: _Blocks, at: Floats, steps: int) -> _Targets:
    """The steps that nobody measured: those within a block, and the stretches between and after the blocks."""
    begin, end = blocks.spans[:, 0], np.minimum(blocks.spans[:, 1], steps)
    within = np.maximum(end - begin, 0) - [((at >= b) & (at < e)).sum() for b, e in zip(begin, end, strict=True)]
    edges = np.concatenate([[0.0], np.column_stack([begin, blocks.spans[:, 1]]).ravel(), [float(steps)]])
    between = np.minimum(edges.reshape(-1, 2), steps)
    spans = np.concatenate([blocks.spans, between])
    weights = np.concatenate([within, between[:, 1] - between[:, 0]])
    is_weighted = weights > 0
    return _Targets(spans[is_weighted], weights[is_weighted], float(weights.sum()) * blocks.noise)


@dataclass(frozen=True)
class _Terms:
    """Regressors of a series: at the blocks and, summed with their weights, at the target; sd and chance of each."""

    at_blocks: Floats  # (k, n)
    at_target: Floats  # (k,)
    sd: Floats  # (k,)
    chance: Floats  # (k,)
    unsure: Floats  # (k,) variance of the target's regressor: between which steps a change lies, not at which


def _predict(
    blocks: _Blocks, targets: _Targets, horizon: float, drifts_chance: float = _DRIFT_CHANCE
) -> tuple[float, float, float, str]:
    """(median, low, high) of the target, and in words what the readings show."""
    scale = float(np.median(np.abs(blocks.mean))) or 1.0
    observed = blocks.mean / scale - 1.0
    noise = blocks.noise / scale / scale  # whose square may be 0
    drifts, changes = _drift_terms(blocks, targets, horizon, drifts_chance), _change_terms(blocks, targets)
    parts = []
    for spread, forgets, chance in _random_walk_settings():
        parts.append(
            _posteriors_by_drift_and_change(
                blocks, targets, observed, noise, (spread, forgets, chance), drifts, changes
            )
        )
    evidence, mean, variance = (np.stack([part[k] for part in parts]) for k in range(3))
    if not np.isfinite(evidence.max()):
        raise RunError(
            "what this run measured is beyond what can be extrapolated", "stepscope report says what is damaged"
        )
    weight = np.exp(evidence - evidence.max())
    weight /= weight.sum()
    variance = variance + targets.noise / scale / scale
    is_relevant = weight > _NEGLIGIBLE * weight.max()
    share = float(targets.weights.sum())
    median, low, high = (
        scale * (share + _quantile(weight[is_relevant], mean[is_relevant], np.sqrt(variance[is_relevant]), p))
        for p in (0.5, (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
    )
    return median, low, high, _describe_posterior(weight, drifts_chance)


def _random_walk_settings() -> list[tuple[float, float, float]]:
    """(sd, steps over which it forgets, log of the chance) of each wandering that is tried."""
    (none, chance), *others = _WANDERS
    share = 1 / len(_WANDER_STEPS)
    tried = [(sd, steps, float(np.log(p * share))) for sd, p in others for steps in _WANDER_STEPS]
    return [(none, 1.0, float(np.log(chance))), *tried]


def _drift_terms(blocks: _Blocks, targets: _Targets, horizon: float, chance: float) -> _Terms:
    """No drift, and approaches to a settled level with each time constant; the longest are as good as linear."""
    constants = np.geomspace(30.0, 4 * max(horizon, 30.0), _TIME_CONSTANTS)

    def shape(spans: Floats) -> Floats:  # (k, m): mean of 1 - exp(-t / tau) within each span, 1 at the end
        begin, end = spans[:, 0] / constants[:, None], spans[:, 1] / constants[:, None]
        decay = 1 - (np.exp(-begin) - np.exp(-end)) / np.maximum(end - begin, 1e-12)
        return np.asarray(decay / (1 - np.exp(-horizon / constants[:, None])))

    block_shape, target_shape = shape(blocks.spans), shape(targets.spans) @ targets.weights
    sds = np.array([sd for sd, _ in _DRIFTS])
    settles = _TIME_CONSTANTS - _LINEAR
    shares = np.repeat([(1 - _LINEAR_CHANCE) / settles, _LINEAR_CHANCE / _LINEAR], [settles, _LINEAR])
    chances = chance * np.outer([of_size for _, of_size in _DRIFTS], shares).ravel()
    return _Terms(
        np.concatenate([np.zeros((1, block_shape.shape[1])), np.tile(block_shape, (len(sds), 1))]),
        np.concatenate([[0.0], np.tile(target_shape, len(sds))]),
        np.concatenate([[0.0], np.repeat(sds, _TIME_CONSTANTS)]),
        np.concatenate([[1 - chance], chances]),
        np.zeros(1 + len(sds) * _TIME_CONSTANTS),
    )


def _change_terms(blocks: _Blocks, targets: _Targets) -> _Terms:
    """No change, a lasting change between each two blocks, and two levels that take turns for ever."""
    places = [(before[1], after[0]) for before, after in pairwise(blocks.spans)]
    block_terms, target_terms, unsure = [np.zeros(len(blocks.mean))], [0.0], [0.0]
    for before, after in places:
        block_terms.append((blocks.spans[:, 0] >= after).astype(np.float64))
        where = (before + after) / 2
        begin, end = targets.spans[:, 0], targets.spans[:, 1]
        share = np.clip((end - where) / np.maximum(end - begin, 1e-12), 0, 1)
        target_terms.append(float(share @ targets.weights))
        unsure.append((after - before) ** 2 / 12)
    chance = [1.0] + [_CHANGE_CHANCE / max(len(places), 1)] * len(places)
    if len(places) > 1:
        high = _upper_level(blocks.mean)
        switches, count = int(np.abs(np.diff(high)).sum()), float(len(high))
        informative = min(2.0 * (switches + 1), count)  # blocks that say something of their own
        a, b = informative * high.mean() + 1, informative * (1 - high.mean()) + 1
        remaining = float(targets.weights.sum())
        block_terms.append(high)
        target_terms.append(remaining * a / (a + b))
        unsure.append(remaining**2 * a * b / ((a + b) ** 2 * (a + b + 1)))
        chance.append(_TOGGLE_CHANCE / 2 * float(special.beta(switches + 1, count - switches)))
    sd = np.full(len(block_terms), _CHANGE_SD)
    sd[0] = 0.0
    return _Terms(np.array(block_terms), np.array(target_terms), sd, np.array(chance), np.array(unsure))


def _upper_level(means: Floats) -> Floats:
    """1 for the blocks of the upper of two levels, 0 for the others: the split that leaves least within them."""
    order = np.sort(means)
    count = np.arange(1, len(order))
    below = np.cumsum(order)[:-1]
    between = below**2 / count + (order.sum() - below) ** 2 / (len(order) - count)
    return np.asarray(means >= order[int(np.argmax(between)) + 1], dtype=np.float64)


def _posteriors_by_drift_and_change(
    blocks: _Blocks,
    targets: _Targets,
    observed: Floats,
    noise: float,
    wandering: tuple[float, float, float],
    drifts: _Terms,
    changes: _Terms,
) -> tuple[Floats, Floats, Floats]:
    """(log evidence, mean, variance) of the target under each pair of a drift and a change, (drifts, changes) each."""
    sd, forgets, log_chance = wandering
    kernel = np.diag(noise / blocks.count + 1e-10)
    toward, own = np.zeros(len(observed)), 0.0
    if sd:
        kernel += sd**2 * _mean_kernel(blocks.spans, blocks.spans, forgets)
        toward = sd**2 * _mean_kernel(blocks.spans, targets.spans, forgets) @ targets.weights
        own = sd**2 * float(targets.weights @ _mean_kernel(targets.spans, targets.spans, forgets) @ targets.weights)
    root = np.linalg.cholesky(kernel)
    k, c = len(drifts.sd), len(changes.sd)
    columns = np.vstack([observed, toward, np.ones(len(observed)), drifts.at_blocks, changes.at_blocks])
    white = np.linalg.solve(root, columns.T)
    gram = white.T @ white
    level, drift, change = 2, np.arange(3, 3 + k), np.arange(3 + k, 3 + k + c)
    # Regressors of every pair, scaled by their sd, so that the prior of each coefficient is N(0, 1): (k, c, 3, 3).
    a, b = drifts.sd[:, None], changes.sd[None, :]
    inner = np.zeros((k, c, 3, 3))
    inner[..., 0, 0] = _LEVEL_SD**2 * gram[level, level]
    inner[..., 1, 1] = a**2 * gram[drift, drift][:, None]
    inner[..., 2, 2] = b**2 * gram[change, change][None, :]
    inner[..., 0, 1] = inner[..., 1, 0] = _LEVEL_SD * a * gram[level, drift][:, None]
    inner[..., 0, 2] = inner[..., 2, 0] = _LEVEL_SD * b * gram[level, change][None, :]
    inner[..., 1, 2] = inner[..., 2, 1] = a * b * gram[np.ix_(drift, change)]
    inner += np.eye(3)
    onto_y, onto_t, target_sums = (np.zeros((k, c, 3)) for _ in range(3))
    for into, row in ((onto_y, 0), (onto_t, 1)):
        into[..., 0] = _LEVEL_SD * gram[row, level]
        into[..., 1] = a * gram[row, drift][:, None]
        into[..., 2] = b * gram[row, change][None, :]
    target_sums[..., 0] = _LEVEL_SD * targets.weights.sum()
    target_sums[..., 1] = a * drifts.at_target[:, None]
    target_sums[..., 2] = b * changes.at_target[None, :]
    inverse = np.linalg.inv(inner)
    coefficients = np.einsum("kcij,kcj->kci", inverse, onto_y)
    beyond = target_sums - onto_t  # what the regressors add to the target beside what the wandering passes on
    mean = gram[0, 1] + np.einsum("kci,kci->kc", beyond, coefficients)
    variance = own - gram[1, 1] + np.einsum("kci,kcij,kcj->kc", beyond, inverse, beyond)
    size = coefficients[..., 2] ** 2 + inverse[..., 2, 2]
    variance = np.maximum(variance, 0.0) + b**2 * size * changes.unsure[None, :]
    misfit = gram[0, 0] - np.einsum("kci,kci->kc", onto_y, coefficients)
    volume = 2 * np.log(np.diag(root)).sum() + np.linalg.slogdet(inner)[1]
    prior = np.log(drifts.chance)[:, None] + np.log(changes.chance)[None, :] + log_chance
    return prior - 0.5 * (misfit + volume), mean, variance


def _mean_kernel(spans: Floats, other_spans: Floats, forgets: float) -> Floats:
    """Mean of exp(-|x - y| / forgets) over x in each of the spans (n, 2) and y in each of the others (m, 2): (n, m)."""

    def twice_integrated(away: Floats) -> Floats:
        distance = np.abs(away) / forgets
        return np.asarray(forgets**2 * (np.exp(-distance) + distance))

    a, b, c, d = spans[:, :1], spans[:, 1:], other_spans[:, 0], other_spans[:, 1]
    whole = twice_integrated(b - c) - twice_integrated(b - d) - twice_integrated(a - c) + twice_integrated(a - d)
    return np.asarray(whole / ((b - a) * (d - c)))


def _quantile(weight: Floats, mean: Floats, sd: Floats, share: float) -> float:
    """The value below which so large a share of a mixture of normals lies."""
    reach = 10 * sd + 1e-15
    low, high = float((mean - reach).min()), float((mean + reach).max())
    for _ in range(80):
        middle = (low + high) / 2
        below = float(weight @ special.ndtr((middle - mean) / np.maximum(sd, 1e-15))) / float(weight.sum())
        low, high = (middle, high) if below < share else (low, middle)
    return (low + high) / 2


def _describe_posterior(weight: Floats, drifts_chance: float) -> str:
    """Return what the readings show, of the posterior (wanderings, drifts, changes)."""
    with_drift, without = weight[:, 1:, :].sum() / drifts_chance, weight[:, 0, :].sum() / (1 - drifts_chance)
    phrases = ["from the level of the measured steps"]
    if weight[:, :, 1:].sum() > 0.5:
        phrases.append("after their last change")
    if with_drift > _SHOWN * without:
        phrases.append("drifting on at the same rate")
    large = np.array([spread >= 0.03 for spread, _, _ in _random_walk_settings()])
    if weight[large].sum() > 0.5:
        phrases.append("with their variation")
    return phrases[0] + (" " + ", ".join(phrases[1:]) if phrases[1:] else "")
