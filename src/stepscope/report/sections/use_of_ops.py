"""What each operation makes of the CPU, the GPU and the memory controller while it runs, with intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.analysis.energy_shown import VERDICTS
from stepscope.report.page.parts import Cell, Column, Section, Table
from stepscope.report.page.reading import interval, quantity
from stepscope.report.page.reading import name as name_
from stepscope.units import NOT_MEASURED, percent

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "Utilisation of operations"
ORDER = 37

_MOST_ROWS = 300
_COLUMNS = (
    Column("Operation", numeric=False),
    Column("Of", numeric=False),
    Column("While it runs"),
    Column("90 % interval"),
    Column("Share", meaning="Of all that was used in the steps"),
    Column("Verdict", numeric=False, meaning="resolved: the interval is within 10 % of the value"),
)


def build(run: Run) -> Section:
    """A row a kind of operation and channel."""
    found = run.utilisation(by="kind")
    known = found.filter(pl.col("mean").is_not_null())
    if known.is_empty():
        why = (
            "no use of CPU, GPU or memory was sampled beside the operations" if found.is_empty() else found["reason"][0]
        )
        return Section(f"Utilisation cannot be told apart by operation: {why}.")
    rows = [_row(row) for row in known.head(_MOST_ROWS).iter_rows(named=True)]
    lede = "Cores that the process kept busy, and shares of GPU and memory controller, while each operation ran."
    return Section(f"{lede} By the same regression as the energy.", (Table("use-of-ops", _COLUMNS, rows),))


def _row(row: dict[str, Any]) -> tuple[Cell, ...]:
    unit = "" if row["unit"] == "1" else row["unit"]
    of = "CPU" if row["quantity"] == "cpu" else f"{row['scope']} {row['quantity'].replace('_', ' ')}"
    verdict = VERDICTS[row["verdict"]]
    hint = row["reason"] if row["reason"] and verdict != "resolved" else ""
    return (
        Cell(name_(row["name"]), name_(row["name"])),
        Cell(of, of),
        Cell(NOT_MEASURED if row["mean"] is None else quantity(row["mean"], unit), row["mean"]),
        Cell(interval(row["low"], row["high"], unit), row["low"]),
        Cell(percent(row["share"]), row["share"], row["share"]),
        Cell(verdict, verdict, hint=hint),
    )
