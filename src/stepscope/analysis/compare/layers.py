"""The layers of several runs side by side: time, joules and live bytes of each layer in each run, a column a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.estimate import mean_interval, null_if_nan
from stepscope.analysis.run import Run

QUANTITIES = {"time": "total_ns", "energy": "joules", "memory": "live_bytes"}
_BOUNDS = {"time": ("low_ns", "high_ns"), "energy": ("joules_low", "joules_high")}


@dataclass(frozen=True)
class LayerValue:
    """A quantity of a layer on one side with its 95 % CI: ns, J or B a step. Of repeats, their mean."""

    value: float
    low: float | None = None
    high: float | None = None


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


def layers_of_sides(sides: Sequence[Sequence[Run]], quantity: str = "time") -> list[LayerRow]:
    """Return the layers of all sides, those with the largest value first; none where no side measured the quantity.

    quantity: "time" (self time a step, as it runs without the profiler), "energy" or "memory" (live at the peak).
    """
    tables = [[run.layers() for run in side] for side in sides]
    types: dict[str, list[str]] = {}
    for table in (table for side in tables for table in side):
        for layer, kind in table.select("layer", "type").iter_rows():
            types.setdefault(layer, []).append(kind or "")
    rows = [
        LayerRow(layer, " / ".join(dict.fromkeys(kinds)), tuple(_value(side, layer, quantity) for side in tables))
        for layer, kinds in types.items()
    ]
    return sorted((row for row in rows if row.most > 0), key=lambda row: (-row.most, row.layer))


def _value(repeats: Sequence[pl.DataFrame], layer: str, quantity: str) -> LayerValue | None:
    column = QUANTITIES[quantity]
    found = [table.filter(pl.col("layer") == layer).row(0, named=True) for table in repeats if _has(table, layer)]
    known = [row for row in found if row[column] is not None]
    if not known or len(known) < len(repeats):  # a mean over some repeats would be of another thing
        return None
    if len(known) == 1:
        low, high = (known[0][name] for name in _BOUNDS.get(quantity, ())) if quantity in _BOUNDS else (None, None)
        return LayerValue(float(known[0][column]), low, high)
    value, low, high = mean_interval(np.array([row[column] for row in known], dtype=np.float64))
    return LayerValue(float(value), null_if_nan(max(low, 0.0) if not math.isnan(low) else low), null_if_nan(high))


def _has(table: pl.DataFrame, layer: str) -> bool:
    return layer in table["layer"]
