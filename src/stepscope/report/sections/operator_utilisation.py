"""Utilisation of CPU, GPU and memory controller while each operator runs, with CIs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.analysis.summary import VERDICT_LABELS
from stepscope.report.page.parts import Cell, Column, Section, Table
from stepscope.report.page.reading import name as name_
from stepscope.units import amount, interval, percent

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "Use by operator"
ORDER = 37

_MOST_ROWS = 300
_COLUMNS = (
    Column("Operator", numeric=False),
    Column("Of", numeric=False),
    Column("While it runs"),
    Column("95 % CI"),
    Column("Share", meaning="Of all that was used in the steps"),
    Column("Verdict", numeric=False, meaning="within 10 %: half of the 99 % CI is at most 10 % of its lower end"),
)


def build(run: Run) -> Section:
    """A row an operator and channel."""
    found = run.utilisation(by="kind")
    known = found.filter(pl.col("mean").is_not_null())
    known = known.sort(pl.col("verdict") == "not identifiable", maintain_order=True)  # what cannot be told has no place
    if known.is_empty():
        why = (
            "no use of CPU, GPU or memory was sampled beside the operators" if found.is_empty() else found["reason"][0]
        )
        return Section(why if run.channels else "")
    rows = [_row(row) for row in known.head(_MOST_ROWS).iter_rows(named=True)]
    lede = "CPU utilisation of the process in cores, and shares of GPU and memory controller, while each operator ran."
    parts = (Table("use-of-ops", _COLUMNS, rows),)
    return Section(f"{lede} By the same regression as the energy.", parts, closed=True)


def _row(row: dict[str, Any]) -> tuple[Cell, ...]:
    of = "CPU" if row["quantity"] == "cpu" else f"{row['scope']} {row['quantity'].replace('_', ' ')}"
    verdict = VERDICT_LABELS[row["verdict"]]
    hint = row["reason"] if row["reason"] and row["verdict"] != "resolved" else ""
    return (
        Cell(name_(row["name"]), name_(row["name"])),
        Cell(of, of),
        Cell(amount(row["mean"], row["unit"]), row["mean"]),
        Cell(interval(row["low"], row["high"], row["unit"]), row["low"]),
        Cell(percent(row["share"]), row["share"], row["share"]),
        Cell(verdict, verdict, hint=hint),
    )
