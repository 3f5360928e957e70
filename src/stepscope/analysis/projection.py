"""From some measured steps to the sum over many: a total with an interval, honest about drift that was not seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special  # type: ignore[import-untyped]

from stepscope.analysis.change_points import Change, change_points
from stepscope.analysis.intervals import CONFIDENCE, Floats

BLOCK = 20  # steps whose mean is one observation
_TAUS = np.geomspace(50, 20_000, 24)  # steps: time constants of warming up that are tried
_Z = float(special.ndtri((1 + CONFIDENCE) / 2))


@dataclass(frozen=True)
class Projection:
    """The sum over `steps` steps, its 95 % interval, and how it was reached."""

    steps: int
    measured: int
    total: float
    low: float
    high: float
    method: str
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class _Blocks:
    centre: Floats  # step numbers
    mean: Floats
    error: Floats  # standard errors of the means
    count: Floats


def project(at: Floats, values: Floats, steps: int, unseen: float) -> Projection:
    """Sum over steps 0 .. steps - 1 from the values measured at the steps `at` (n,), in order; without NaN.

    Between measured blocks the level is interpolated, after the last it stays (or goes on warming up, where that is
    what the blocks show). `unseen` is the drift that may come where nobody measured, as a share of the level: it
    widens the interval in proportion to the steps that lie after the last measured one.
    """
    blocks = _blocks(at, values)
    measured = float(values.sum())
    changes = tuple(change_points(values)) if len(values) >= 2 * BLOCK else ()
    curve, method = _level(blocks, at, steps, changes)
    rest = np.ones(steps, dtype=bool)
    rest[at[at < steps].astype(int)] = False
    total = float(values[at < steps].sum() + curve[rest].sum())
    half = _Z * np.sqrt(_variance(blocks, steps, int(rest.sum()))) + _beyond(at, steps, unseen) * abs(total)
    return Projection(steps, len(values), total, max(total - half, min(measured, total)), total + half, method, changes)


def _blocks(at: Floats, values: Floats) -> _Blocks:
    """Means of up to BLOCK neighbouring steps; a hole in the numbers ends a block."""
    cuts = np.flatnonzero(np.diff(at) > BLOCK) + 1
    parts = [
        piece
        for run in np.split(np.arange(len(at)), cuts)
        for piece in np.array_split(run, max(1, len(run) // BLOCK))
        if len(piece)
    ]
    spread = float(np.median([values[p].std(ddof=1) for p in parts if len(p) > 1] or [0.0]))
    return _Blocks(
        np.array([at[p].mean() for p in parts]),
        np.array([values[p].mean() for p in parts]),
        np.array([max(_error(values[p]), spread / np.sqrt(len(p))) for p in parts]),
        np.array([float(len(p)) for p in parts]),
    )


def _error(values: Floats) -> float:
    """Standard error of a mean of steps that resemble their neighbours."""
    if len(values) < 3:
        return 0.0
    away = values - values.mean()
    power = float((away**2).sum())
    likeness = float((away[1:] * away[:-1]).sum() / power) if power else 0.0
    inflated = (1 + max(likeness, 0.0)) / (1 - min(max(likeness, 0.0), 0.9))
    return float(np.sqrt(power / (len(values) - 1) / len(values) * inflated))


def _level(blocks: _Blocks, at: Floats, steps: int, changes: tuple[Change, ...]) -> tuple[Floats, str]:
    """The expected value at every step, and in words how."""
    grid = np.arange(steps, dtype=np.float64)
    last_change = float(at[min(changes[-1].step, len(at) - 1)]) if changes else -1.0
    recent = blocks.centre >= last_change
    if not recent.any():
        recent = blocks.centre >= blocks.centre[-1]
    curve = np.interp(grid, blocks.centre, blocks.mean)
    beyond = grid > blocks.centre[-1]
    warming = _warming(blocks) if not changes else None
    if warming is not None:
        settled, rise, tau = warming
        curve[beyond] = settled + rise * np.exp(-grid[beyond] / tau)
        return curve, "level of the measured blocks, warming up as they show"
    spread_out = bool((np.diff(blocks.centre) > 2 * BLOCK).any())
    near = recent & (blocks.centre >= blocks.centre[-1] - (steps - blocks.centre[-1])) if spread_out else recent
    weights = blocks.count[near]
    curve[beyond] = float((blocks.mean[near] * weights).sum() / weights.sum())
    return curve, "level of the measured blocks" + (" after the last change" if changes else "")


def _warming(blocks: _Blocks) -> tuple[float, float, float] | None:
    """(settled level, rise, time constant in steps) where an exponential explains the blocks far better."""
    if len(blocks.mean) < 5:
        return None
    weights = 1 / np.maximum(blocks.error, 1e-12)
    flat = np.average(blocks.mean, weights=weights**2)
    best = float((((blocks.mean - flat) * weights) ** 2).sum()) - 12.0  # two parameters more must earn their keep
    found = None
    for tau in _TAUS[2 * (blocks.centre[-1] - blocks.centre[0]) + 50 > _TAUS]:
        design = np.stack([np.ones_like(blocks.centre), np.exp(-blocks.centre / tau)], axis=1)
        solved = np.linalg.lstsq(design * weights[:, None], blocks.mean * weights, rcond=None)[0]
        left = float((((blocks.mean - design @ solved) * weights) ** 2).sum())
        if left < best and abs(solved[1]) < abs(solved[0]):
            best, found = left, (float(solved[0]), float(solved[1]), float(tau))
    return found


def _variance(blocks: _Blocks, steps: int, unmeasured: int) -> float:
    """Of the sum over the unmeasured steps: errors of the block means, and wandering between and after them."""
    shares = blocks.count / blocks.count.sum()
    sampling = unmeasured**2 * float(((shares * blocks.error) ** 2).sum())
    apart = np.diff(blocks.centre)
    wander = 0.0
    if len(apart):
        excess = np.diff(blocks.mean) ** 2 - blocks.error[1:] ** 2 - blocks.error[:-1] ** 2
        wander = max(0.0, float((excess / apart).mean()))
    after = max(0.0, steps - float(blocks.centre[-1]))
    return sampling + wander * (float((apart**3).sum()) / 12 + after**3 / 3)


def _beyond(at: Floats, steps: int, unseen: float) -> float:
    """The share of the total that unseen drift may move."""
    return unseen * max(0.0, steps - 1 - float(at[-1])) / max(steps, 1)
