"""Utilisation of CPU, GPU and memory controller while each operator runs, with CIs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.report.page.parts import Section
from stepscope.report.table import Cell, Column, Table, percent_bar_column, text_column, verdict_column
from stepscope.units import amount, interval, page_name

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "Use by operator"
ORDER = 37

_MOST_ROWS = 300
_COLUMNS = (
    text_column("Operator", "name", page_name),
    Column(
        "Of",
        False,
        of=lambda row: "CPU" if row["quantity"] == "cpu" else f"{row['scope']} {row['quantity'].replace('_', ' ')}",
    ),
    Column("While it runs", of=lambda row: Cell(amount(row["mean"], row["unit"]), row["mean"])),
    Column("95 % CI", of=lambda row: Cell(interval(row["low"], row["high"], row["unit"]), row["low"])),
    percent_bar_column("Share", "share", meaning="Of all that was used in the steps"),
    verdict_column(),
)


def build(run: Run) -> Section:
    """A row an operator and channel."""
    utilisation = run.utilisation(by="kind")
    ordered = utilisation.filter(pl.col("mean").is_not_null())
    ordered = ordered.sort(
        pl.col("verdict") == "not identifiable", maintain_order=True
    )  # what cannot be told has no place
    if ordered.is_empty():
        why = (
            "no use of CPU, GPU or memory was sampled beside the operators"
            if utilisation.is_empty()
            else utilisation["reason"][0]
        )
        return Section(why if run.channels else "")
    lede = "CPU utilisation of the process in cores, and shares of GPU and memory controller, while each operator ran."
    parts = (Table.from_rows("use-of-ops", _COLUMNS, ordered.head(_MOST_ROWS).iter_rows(named=True)),)
    return Section(f"{lede} By the same regression as the energy.", parts, closed=True)
