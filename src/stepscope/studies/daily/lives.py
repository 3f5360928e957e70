"""What the seeds of each setting say together: accuracy by day, how it rises, and what a day takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.studies.daily.routine import Setting
from stepscope.studies.seed_means import AMOUNT, ANY, SHARE, Mean, mean_of

Cell = Mapping[str, Any]


@dataclass(frozen=True)
class Lives:
    """One setting. Accuracies in %, slope in points a day, gain in points, of a day: time in s and energy in J.

    day_s and day_j are of the longest day: it is what must fit. day_j is null where energy was not read.
    """

    setting: Setting
    cells: tuple[Cell, ...]
    start: Mean
    end: Mean
    slope: Mean
    gain: Mean
    lowest: Mean
    day_s: Mean
    day_j: Mean | None
    energy_kind: str | None

    def fits(self, seconds: float) -> bool | None:
        """Whether the longest day is trained in so much time; null where the interval spans it or is not known."""
        if self.day_s.low is None or self.day_s.high is None:
            return None
        return True if self.day_s.high <= seconds else False if self.day_s.low > seconds else None


def lives(setting: Setting, cells: Sequence[Cell], days: int) -> Lives:
    """From the cells of a setting, one at least. A seed is what repeats: the days of one hang together."""
    accuracy = 100 * np.array([[day["accuracy"] for day in cell["days"]] for cell in cells])
    slopes = np.polyfit(np.arange(days + 1), accuracy.T, 1)[0]
    kinds = {cell["energy_kind"] for cell in cells}
    return Lives(
        setting,
        tuple(cells),
        _over(accuracy[:, 0], SHARE),
        _over(accuracy[:, -1], SHARE),
        _over(slopes, ANY),
        _over(accuracy[:, -1] - accuracy[:, 0], ANY),
        _over(accuracy.min(axis=1), SHARE),
        _over(np.array([max(day["time_s"] for day in cell["days"][1:]) for cell in cells]), AMOUNT),
        mean_of([_most_joules(cell) for cell in cells]) if len(kinds) == 1 else None,
        next(iter(kinds)) if len(kinds) == 1 else None,
    )


def by_day(found: Lives, name: str, day: int) -> Mean | None:
    """A quantity of a day over the seeds: accuracy in %, time_s, energy_j; null where it is not known."""
    values = [cell["days"][day][name] for cell in found.cells]
    return mean_of(values, 100, SHARE) if name == "accuracy" else mean_of(values)


def _most_joules(cell: Cell) -> float | None:
    values = [day["energy_j"] for day in cell["days"][1:]]
    return None if any(value is None for value in values) else max(values)


def _over(values: np.ndarray[Any, Any], possible: tuple[float, float]) -> Mean:
    found = mean_of([float(value) for value in values], possible=possible)
    assert found is not None, "every cell has its accuracies and times"
    return found
