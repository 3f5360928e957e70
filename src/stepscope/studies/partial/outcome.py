"""What the seeds of each setting say together: means with Student's intervals, and which settings nothing beats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.studies.partial.plan import Setting
from stepscope.studies.seed_means import AMOUNT, SHARE, Mean, mean_of

Cell = Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """One setting. Accuracies in %, times in s, energies in J of the whole training, memory in B; null: not known.

    before: accuracy on what was pre-trained, as the training begins and ends.
    """

    setting: Setting
    cells: tuple[Cell, ...]
    accuracy: Mean
    start: Mean
    time_s: Mean
    step_ms: Mean
    energy_j: Mean | None
    before: tuple[Mean, Mean] | None
    flops_forward: float | None
    flops_backward: float | None
    peak_bytes: float | None
    saved_bytes: float | None
    trained_share: float


def outcome(setting: Setting, cells: Sequence[Cell]) -> Outcome:
    """From the cells of a setting, one at least."""

    def at(name: str, place: int = -1) -> Mean | None:
        factor, possible = (1.0, AMOUNT) if name in ("time_s", "energy_j") else (100.0, SHARE)
        return mean_of([cell["curve"][place].get(name) for cell in cells], factor, possible)

    def cost(name: str, join: Callable[[Any], Any] = np.mean) -> float | None:
        values = [cell["cost"][name] for cell in cells]
        return None if any(value is None for value in values) else float(join(values))

    first, end = at("before", 0), at("before")
    return Outcome(
        setting,
        tuple(cells),
        _there(at("accuracy")),
        _there(at("accuracy", 0)),
        _there(at("time_s")),
        _there(mean_of([cell["step_s"] for cell in cells], 1000)),
        at("energy_j"),
        None if first is None or end is None else (first, end),
        cost("flops_forward"),
        cost("flops_backward"),
        cost("peak_bytes", max),
        cost("saved_bytes"),
        float(np.mean([cell["cost"]["trained_share"] for cell in cells])),
    )


def unbeaten(points: Mapping[str, tuple[float, float]]) -> set[str]:
    """Names of the points (cost, gain) for which no other costs no more and gains no less, and is better in one."""
    return {
        name
        for name, (cost, gain) in points.items()
        if not any(
            other_cost <= cost and other_gain >= gain and (other_cost, other_gain) != (cost, gain)
            for other_cost, other_gain in points.values()
        )
    }


def _there(found: Mean | None) -> Mean:
    assert found is not None, "every cell has its accuracies and times"
    return found
