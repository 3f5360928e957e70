"""Profiling overhead of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.report.page.parts import KeyFigure, KeyFigures, Note, Part, Section
from stepscope.units import amount, interval_of_value

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "Overhead"
ORDER = 80

_LABELS = {
    "recorded_step_overhead": "A profiled step takes longer by",
    "recorded_step_overhead_share": "The same, as a share of a step that is only timed",
    "run_overhead_share": "The whole run took longer by",
    "sampler_cpu_share": "The sampling process used, of one core",
}


def build(run: Run) -> Section:
    """Every row of `run.overhead()`; what could not be compared is said in words."""
    rows = run.overhead()
    measured = rows.filter(pl.col("value").is_not_null())
    figures = tuple(
        KeyFigure(
            _LABELS.get(row["metric"], row["metric"].replace("_", " ")),
            amount(row["value"], row["unit"]) if row["value"] > 0 else "too small to tell",
            interval_of_value(row["value"], row["low"], row["high"], row["unit"]),
            row["note"] or "",
        )
        for row in measured.iter_rows(named=True)
    )
    reasons = rows.filter(pl.col("value").is_null())["note"].unique(maintain_order=True)
    parts: list[Part] = [KeyFigures(figures)] if figures else []
    parts += [Note(f"Not known: {reason}.") for reason in reasons if reason]
    lede = "Overhead of the profiler in this run, from its profiled and unprofiled steps."
    return Section(lede, tuple(parts), closed=True)
