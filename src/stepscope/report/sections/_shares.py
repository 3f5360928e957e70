"""The share beside a median time: marked where mean and median of the row lie far apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stepscope.analysis.uneven import uneven
from stepscope.report.page.parts import Cell
from stepscope.report.page.reading import milliseconds
from stepscope.units import percent

MEANING = "Of the summed time of the recorded steps; the time beside it is the median of these steps"


def share_cell(row: Mapping[str, Any], median: str = "total_ns", bar: bool = True) -> Cell:
    """The share with its bar; pointing at it tells the mean that it is of."""
    share = row["share"]
    if not uneven(row, median):
        return Cell(percent(share), share, share if bar else None)
    hint = f"mean {milliseconds(row['mean_ns'])} ms a step, median {milliseconds(row[median])} ms"
    return Cell(f"* {percent(share)}", share, share if bar else None, hint)


def shares_said(rows: Iterable[Mapping[str, Any]], median: str = "total_ns") -> str:
    """A sentence for the caption."""
    said = " Times are medians of the recorded steps, shares are of their summed time."
    if any(uneven(row, median) for row in rows):
        said += (
            " * mean and median of the row lie a quarter or more apart, since single steps were far from the others: "
            "pointing at it tells both."
        )
    return said
