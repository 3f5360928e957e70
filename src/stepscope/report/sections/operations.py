"""Time by operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.report.page.parts import SHARE_MEANING, Cell, Column, Section, Table, share_cell, shares_sentence
from stepscope.report.page.reading import count, milliseconds, name
from stepscope.runfolder import PHASES
from stepscope.units import plural, si

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "Operators"
ORDER = 50

_MOST_ROWS = 1_200


def build(run: Run) -> Section:
    """Table of `run.operators()`."""
    kinds = run.operators()
    if kinds.is_empty():
        return Section("")
    phases = [phase for phase in PHASES if float(kinds[f"{phase}_ns"].fill_null(0).sum()) > 0]
    lede = f"{plural(len(kinds) - 1, 'operator')} by self time, without the operators they call."
    return Section(lede, (_table(kinds, phases),), closed=True)


def _table(kinds: pl.DataFrame, phases: list[str]) -> Table:
    several = kinds["device"].n_unique() > 1
    columns = [Column("Operator", numeric=False), *([Column("Device", numeric=False)] if several else [])]
    columns += [Column("Self"), Column("95 % CI"), Column("Share", meaning=SHARE_MEANING), Column("Calls")]
    columns += [Column(f"{phase.capitalize()}") for phase in phases]
    columns.append(Column("Most at", numeric=False, meaning="Line of your code on which it spends the most time"))
    columns.append(Column("FLOP/s", meaning="Floating-point operations a second while it runs, where shapes tell them"))
    rows = [_row(row, phases, several) for row in kinds.head(_MOST_ROWS).iter_rows(named=True)]
    caption = "Times are ms per step, and calls are per step too. "
    caption += "Self times on the CPU, with framework overhead, add up to the step."
    caption += shares_sentence(kinds.iter_rows(named=True))
    if len(kinds) > _MOST_ROWS:
        rest = kinds.slice(_MOST_ROWS)["total_ns"].to_numpy().sum()
        caption += f" {len(kinds) - _MOST_ROWS:,} smaller kinds, {milliseconds(rest)} ms together, are not listed."
    return Table("operations", tuple(columns), rows, caption)


def _row(row: dict[str, Any], phases: list[str], several: bool) -> tuple[Cell, ...]:
    between = "-" if row["low_ns"] is None else f"[{milliseconds(row['low_ns'])}, {milliseconds(row['high_ns'])}]"
    return (
        Cell(name(row["name"]), name(row["name"])),
        *((Cell(row["device"] or "", row["device"]),) if several else ()),
        Cell(milliseconds(row["total_ns"]), row["total_ns"]),
        Cell(between, row["low_ns"]),
        share_cell(row),
        Cell(count(row["count"]), row["count"]),
        *(Cell(milliseconds(row[f"{phase}_ns"]), row[f"{phase}_ns"]) for phase in phases),
        Cell(row["source"] or "-", row["source"]),
        Cell(si(row["flops_per_s"], ""), row["flops_per_s"]),
    )
