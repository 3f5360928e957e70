"""Where a series of steps changes its level: throttling, drift, a neighbour that wakes up. Two-sided CUSUM."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.analysis.intervals import Floats

BLOCK = 5  # steps whose median is one observation: single stalls do not count
REFERENCE = 60  # blocks that say what is normal
_FEWEST = 12  # blocks from which on it is worth asking
_SLACK, _ALARM, _CLIP = 1.0, 8.0, 3.0  # standard deviations: what is tolerated, what raises, what one block can add
_SMALLEST = 0.005  # of the level: smaller changes are of no use to anybody


@dataclass(frozen=True)
class Change:
    """A change of level: the first step of the new level, the step at which it was noticed, and the two levels."""

    step: int
    noticed: int
    before: float
    after: float

    @property
    def ratio(self) -> float:
        """New level over old."""
        return self.after / self.before if self.before else float("nan")


def change_points(values: Floats) -> list[Change]:
    """Changes of the level of a per-step quantity, in order; (n,) without NaN. E. S. Page, Biometrika 41, 1954.

    A change of three standard deviations or more is noticed after some 20 steps; quiet steps raise fewer than one
    alarm in 100,000. Fewer than 60 steps are not judged.
    """
    blocks = np.median(values[: len(values) // BLOCK * BLOCK].reshape(-1, BLOCK), axis=1)
    changes: list[Change] = []
    start = 0
    while len(blocks) - start > _FEWEST:
        found = _first(blocks[start:])
        if found is None:
            break
        first, noticed = start + found[0], start + found[1]
        after = float(np.median(blocks[first : noticed + _FEWEST]))
        before = float(np.median(blocks[start:first]))
        changes.append(Change(first * BLOCK, (noticed + 1) * BLOCK, before, after))
        start = first
    return changes


def _first(blocks: Floats) -> tuple[int, int] | None:
    """(first block of the new level, block at which the alarm was raised) of the first change."""
    reference = min(REFERENCE, max(_FEWEST, len(blocks) // 2))
    level, spread = _normal(blocks[:reference], reference)
    sums, since = [0.0, 0.0], [reference, reference]
    for place in range(reference, len(blocks)):
        z = float(np.clip((blocks[place] - level) / spread, -_CLIP, _CLIP))
        for side, signed in enumerate((z, -z)):
            sums[side] = max(0.0, sums[side] + signed - _SLACK)
            if sums[side] == 0.0:
                since[side] = place + 1
            elif sums[side] > _ALARM:
                return since[side], place
    return None


def _normal(blocks: Floats, count: int) -> tuple[float, float]:
    """Level and spread of quiet blocks; a spread from few of them is widened for not being known well."""
    level = float(np.median(blocks))
    spread = 1.4826 * float(np.median(np.abs(blocks - level)))
    return level, max(spread * (1 + 2.5 / np.sqrt(count)), _SMALLEST * abs(level), 1e-12)
