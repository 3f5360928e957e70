"""When a loss has reached a target: where the mean of its last steps has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.analysis.intervals import Floats

WINDOW = 10  # steps: the loss of one batch alone says little


def smoothed(losses: Sequence[float]) -> Floats:
    """Mean of each step's loss and those of the WINDOW - 1 before it; the first has WINDOW steps behind it."""
    values = np.asarray(losses, dtype=np.float64)
    if len(values) < WINDOW:
        return np.empty(0)
    return np.convolve(values, np.full(WINDOW, 1 / WINDOW), mode="valid")


def steps_to(losses: Sequence[float], target: float) -> int | None:
    """Steps until the smoothed loss is at the target or below; null where it never is."""
    reached = np.flatnonzero(smoothed(losses) <= target)
    return int(reached[0]) + WINDOW if len(reached) else None


def least(losses: Sequence[float]) -> float | None:
    """The lowest smoothed loss; null where there are too few steps, or where it is no number."""
    found = smoothed(losses)
    found = found[np.isfinite(found)]
    return float(found.min()) if len(found) else None
