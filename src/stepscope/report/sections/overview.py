"""The run at a glance: verdict, what to try next, the headline numbers, and where a step goes by phase."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.report.charts import phases as chart
from stepscope.report.page.parts import Cell, Column, Items, KeyFigure, KeyFigures, Part, Section, Table
from stepscope.report.page.reading import interval, milliseconds, quantity, without_long_words
from stepscope.report.sections._drawing import figure
from stepscope.report.sections._shares import MEANING, share_cell, shares_said
from stepscope.units import NOT_MEASURED, percent

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "Overview"
ORDER = 10
FIGURES = ("phases",)

_HEADLINES = {
    "step_time": "Step time",
    "throughput": "Throughput",
    "energy_per_step": "Energy per step",
    "energy_per_sample": "Energy per sample",
    "mean_power": "Mean power",
    "peak_memory": "Peak memory of the trainer",
    "accelerator_utilisation": "Accelerator utilisation",
    "mean_cpu_utilisation": "CPU utilisation, all cores",
    "process_cpu_utilisation": "Cores kept busy by the trainer",
    "background_cpu_use": "Cores kept busy by other programs",
}
_KINDS = {"": "", "simulated_": " (simulated)", "estimated_": " (estimated)"}
_WHOLE = ("run", "cpu", "process", "system", "total", "device")  # scopes that go without saying
_MEANT = (pl.col("scope") == "children", pl.col("source") != "peak_rss")  # of several rows, the one not so is shown
_UNITS = {"throughput": "samples/s"}


def build(run: Run) -> Section:
    """Verdict, key figures, phases."""
    verdict = run.verdict()
    parts: list[Part] = [KeyFigures(items)] if (items := tuple(_key_figures(run))) else []
    parts += _by_phase(run.phases())
    if verdict.next:
        parts.append(Items(tuple((said[:1].upper() + said[1:], "") for said in verdict.next), heading="What to try"))
    return Section(without_long_words(verdict.sentence), tuple(parts))


def _key_figures(run: Run) -> Iterator[KeyFigure]:
    metrics = run.metrics().filter(pl.col("value").is_not_null())
    for (metric, label), (prefix, kind) in product(_HEADLINES.items(), _KINDS.items()):
        rows = metrics.filter(pl.col("metric") == f"{prefix}{metric}").sort(*_MEANT, maintain_order=True)
        if not rows.is_empty():
            row = rows.row(0, named=True)
            of = "" if row["scope"] in _WHOLE else f", {row['scope'].replace(':', ' ')}"
            yield _key_figure({**row, "metric": metric}, f"{label}{of}{kind}")
    accuracy = (run.meta.get("result") or {}).get("accuracy")
    if isinstance(accuracy, int | float):
        yield KeyFigure("Accuracy on test data", percent(accuracy), note=_data(run))


def _key_figure(row: dict[str, Any], label: str) -> KeyFigure:
    unit = _UNITS.get(row["metric"], row["unit"])
    return KeyFigure(label, quantity(row["value"], unit), interval(row["low"], row["high"], unit), row["note"] or "")


def _data(run: Run) -> str:
    data = (run.meta.get("workload") or {}).get("data")
    return f"{data.get('name')}, {data.get('kind')}" if isinstance(data, dict) else ""


def _by_phase(phases: pl.DataFrame) -> Iterator[Part]:
    """The bar of phases and its numbers; a residual below 0 (threads overlap) is in the table only."""
    if phases.is_empty():
        return
    drawn = phases.filter(pl.col("ns") > 0).with_columns(t1_ms=pl.col("ns").cum_sum() / 1e6)
    drawn = drawn.with_columns(t0_ms=pl.col("t1_ms") - pl.col("ns") / 1e6, hover=_hover())
    caption = "A step by phase: median CPU time of each phase in the recorded steps after warm-up."
    yield figure(
        lambda width: chart.build(drawn.select("phase", "t0_ms", "t1_ms", "hover"), width), caption, FIGURES[0]
    )
    yield _table(phases)


def _hover() -> pl.Expr:
    ms, percents = (pl.col("ns") / 1e6).round(3), (pl.col("share") * 100).round(1)
    return pl.format("{}: {} ms, {} % of the step", "phase", ms, percents)


def _table(phases: pl.DataFrame) -> Table:
    columns = [Column("Phase", numeric=False), Column("ms a step"), Column("95 % interval, ms")]
    columns.append(Column("Share", meaning=MEANING))
    kernels = bool(phases["device_ns"].is_not_null().any())
    if kernels:
        columns.append(Column("Kernels, ms a step"))
    rows = []
    for row in phases.iter_rows(named=True):
        between = f"{milliseconds(row['low_ns'])} to {milliseconds(row['high_ns'])}"
        cells = [
            Cell(row["phase"], row["phase"]),
            Cell(milliseconds(row["ns"]), row["ns"]),
            Cell(NOT_MEASURED if row["low_ns"] is None else between, row["low_ns"]),
            share_cell(row, "ns", bar=False),
        ]
        rows.append((*cells, Cell(milliseconds(row["device_ns"]), row["device_ns"])) if kernels else tuple(cells))
    caption = shares_said(phases.iter_rows(named=True), "ns").strip()
    return Table("phases", tuple(columns), rows, caption, lively=False)
