"""Means over seeds with Student's intervals, kept within what the quantity can be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.analysis.intervals import mean_interval

SHARE = (0.0, 100.0)  # percent of samples
AMOUNT = (0.0, math.inf)  # seconds, joules
ANY = (-math.inf, math.inf)


@dataclass(frozen=True)
class Mean:
    """A mean over seeds with its interval of 95 %; bounds are null with fewer than two seeds."""

    value: float
    low: float | None
    high: float | None

    @property
    def row(self) -> tuple[float | None, float | None, float | None]:
        """For three columns of a table."""
        return self.value, self.low, self.high


def mean_of(values: Sequence[float | None], factor: float = 1.0, possible: tuple[float, float] = AMOUNT) -> Mean | None:
    """Null where one of the seeds has no value: a mean over the others would be of another thing.

    Bounds beyond what is possible (more than 100 % of the images) are put at its end.
    """
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return None
    value, low, high = mean_interval(np.array(known, dtype=np.float64) * factor)
    return Mean(value, *(None if math.isnan(bound) else float(np.clip(bound, *possible)) for bound in (low, high)))


def in_three(mean: Mean | None) -> tuple[float | None, float | None, float | None]:
    """A mean, low and high, or three times "not measured"."""
    return (None, None, None) if mean is None else mean.row


def energy_called(kind: str | None) -> str:
    """What is not measured never has the name of what is."""
    return "energy" if kind in (None, "measured") else f"{kind} energy"


def energy_notes(cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What to know of the energy of these trainings: why there is none, of what it is, and how much was not read."""
    kinds = {cell["energy_kind"] for cell in cells}
    if kinds == {None}:
        yield f"energy was not measured: {cells[0]['energy_note']}"
        return
    if len(kinds) > 1:
        yield "energy is left out: it is not of one kind in all trainings"
        return
    yield f"energy: {next(iter(kinds))}, of {cells[0]['energy_note']}"
    gap = max(cell["energy_gap"] for cell in cells)
    if gap > 0:
        said = "it is counted at the mean power of the rest; above 20 % energy is not known"
        yield f"the sensor left out up to {100 * gap:.2g} % of the time of a training: {said}"
