"""The layers of several runs side by side: time, joules and live bytes of each layer in each run, a column a run.

A difference to the first run is said only where chance cannot explain it in a table of so many layers and runs: all CIs
of a table are widened until they hold together (Bonferroni), and those of two values combined as errors that know
nothing of each other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepscope.analysis.estimate import Estimate, interval_factor, mean_of_repeats
from stepscope.analysis.run import Run

QUANTITIES = {"time": "total_ns", "energy": "joules", "memory": "live_bytes"}
_BOUNDS = {"time": ("low_ns", "high_ns"), "energy": ("joules_low", "joules_high")}


@dataclass(frozen=True)
class LayerValue:
    """A quantity of a layer on one side with its 95 % CI: ns, J or B a step. Of repeats, their mean.

    difference: to the first side, "larger", "smaller" or "none seen"; null of the first itself, and where it cannot be
    judged. Bytes are counted, not sampled: they have no CI, and differ where they are not the same.
    """

    value: float
    low: float | None = None
    high: float | None = None
    runs: int = 1
    difference: str | None = None


@dataclass(frozen=True)
class LayerRow:
    """One layer: a value for each side, null where the side has no such layer, or did not measure it.

    type: its types, where sides differ with " / " between them.
    """

    layer: str
    type: str
    values: tuple[LayerValue | None, ...]

    @property
    def most(self) -> float:
        """Return the largest value of any side."""
        return max((value.value for value in self.values if value is not None), default=0.0)


def layers_of_sides(
    sides: Sequence[Sequence[Run]], quantity: str = "time", judged: Collection[int] | None = None
) -> list[LayerRow]:
    """Return the layers of all sides, those with the largest value first; none where no side measured the quantity.

    quantity: "time" (self time a step, as it runs without the profiler), "energy" or "memory" (live at the peak).
    judged: numbers of the sides that are put against the first; default: all.
    """
    tables = [[{row["layer"]: row for row in run.layers().iter_rows(named=True)} for run in side] for side in sides]
    types: dict[str, list[str]] = {}
    for layer, row in (entry for side in tables for table in side for entry in table.items()):
        types.setdefault(layer, []).append(row["type"] or "")
    rows = [
        LayerRow(layer, " / ".join(dict.fromkeys(kinds)), tuple(_value(side, layer, quantity) for side in tables))
        for layer, kinds in types.items()
    ]
    indices = range(1, len(sides)) if judged is None else judged
    rows = _with_differences([row for row in rows if row.most > 0], indices, quantity not in _BOUNDS)
    return sorted(rows, key=lambda row: (-row.most, row.layer))


def _with_differences(rows: Sequence[LayerRow], judged: Collection[int], counted: bool) -> list[LayerRow]:
    pairs = sum(row.values[0] is not None and row.values[side] is not None for row in rows for side in judged)
    return [
        replace(row, values=tuple(
            replace(value, difference=_difference(row.values[0], value, pairs, counted))
            if value is not None and side in judged else value
            for side, value in enumerate(row.values)
        ))
        for row in rows
    ]  # fmt: skip


def _difference(first: LayerValue | None, other: LayerValue, pairs: int, counted: bool) -> str | None:
    """Return what a value is beside the first's, among so many pairs; None where one has no CI and was not counted."""
    if first is None or (first.low is None) != (other.low is None):
        return None
    change = other.value - first.value
    side = "larger" if change > 0 else "smaller"
    if first.low is None or first.high is None or other.low is None or other.high is None:
        if not counted or (change and first.runs + other.runs > 2):
            return None
        return side if change else "none seen"
    both = [
        Estimate(value.value, value.low, value.high).widened(interval_factor(value.runs, pairs))
        for value in (first, other)
    ]
    apart = both[1] - both[0]
    return "none seen" if (apart.low or 0.0) <= 0 <= (apart.high or 0.0) else side


def _value(repeats: Sequence[Mapping[str, Mapping[str, Any]]], layer: str, quantity: str) -> LayerValue | None:
    column = QUANTITIES[quantity]
    stated = [table[layer] for table in repeats if layer in table and table[layer][column] is not None]
    if not stated or len(stated) < len(repeats):  # a mean over some repeats would be of another thing
        return None
    bounds = _BOUNDS.get(quantity)
    of_runs = [Estimate(row[column], *(row[end] for end in bounds or ())) for row in stated]
    return LayerValue(*mean_of_repeats(of_runs).row, runs=len(stated))
