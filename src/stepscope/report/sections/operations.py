"""Time by operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.report.page.parts import Section
from stepscope.report.table import (
    SHARE_MEANING,
    Column,
    Table,
    interval_column,
    number_column,
    share_cell,
    shares_sentence,
    text_column,
)
from stepscope.runfolder import PHASES
from stepscope.units import NOT_MEASURED, count, milliseconds, page_name, plural, si

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
    line, rate = (
        "Line of your code on which it spends the most time",
        "Floating-point operations a second while it runs, where shapes tell them",
    )
    columns = (
        text_column("Operator", "name", page_name),
        *([text_column("Device", "device")] if kinds["device"].n_unique() > 1 else []),
        number_column("Self", "total_ns", milliseconds),
        interval_column("low_ns", "high_ns", milliseconds, missing=NOT_MEASURED),
        Column("Share", meaning=SHARE_MEANING, of=share_cell),
        number_column("Calls", "count", count),
        *(number_column(phase.capitalize(), f"{phase}_ns", milliseconds) for phase in phases),
        text_column("Most at", "source", missing=NOT_MEASURED, meaning=line),
        number_column("FLOP/s", "flops_per_s", lambda flops: si(flops, ""), meaning=rate),
    )
    caption = "Times are ms per step, and calls are per step too. "
    caption += "Self times on the CPU, with framework overhead, add up to the step."
    caption += shares_sentence(kinds.iter_rows(named=True))
    if len(kinds) > _MOST_ROWS:
        remaining_ns = kinds.slice(_MOST_ROWS)["total_ns"].to_numpy().sum()
        caption += (
            f" {len(kinds) - _MOST_ROWS:,} smaller kinds, {milliseconds(remaining_ns)} ms together, are not listed."
        )
    return Table.from_rows("operations", columns, kinds.head(_MOST_ROWS).iter_rows(named=True), caption)
