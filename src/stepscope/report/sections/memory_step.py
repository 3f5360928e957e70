"""Memory over the step: who holds it, instant by instant and at the peak."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import polars as pl

from stepscope.analysis.memory.events import Peak, allocated_by_op, categories_over_step, live_by_module
from stepscope.analysis.summary import COMPUTED, PEAK, process_parts, reserved_bytes
from stepscope.report.charts import memory as chart
from stepscope.report.page.parts import Facts, Figure, KeyFigure, KeyFigures, More, Note, Part, Section
from stepscope.report.table import Cell, Column, Row, Table, number_column, text_column
from stepscope.report.terminal_report import allocation_site
from stepscope.units import amount, capitalize_first, category_label, number, percent

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "Memory"
ORDER = 38
FIGURES = ("memory-step", "memory-by-module")

_MOST_TENSORS = 60


def build(run: Run) -> Section:
    """Live tensors over the step of the peak, its categories, the peak by module, and the largest tensors."""
    peak = run.peak()
    if peak is None:
        if run.framework != "torch":
            return Section(f"allocations are not recorded with {run.framework}")
        return Section("no step's allocations were recorded; --record-memory all records them")
    series = categories_over_step(run.allocations, peak.step).select(
        "category", t_ms=pl.col("t") / 1e6, mb=pl.col("bytes") / 1e6
    )
    modules = live_by_module(peak.tensors)
    drawn = series.filter(pl.col("category").is_in(_non_empty_series(series)))
    chart_of_step = Figure(
        lambda width: chart.build_step_memory(drawn, width),
        f"Step {peak.step}, of the steps whose allocations were recorded the one with the highest peak. Areas add "
        "up to all live tensors.",
        FIGURES[0],
    )
    more: list[Part] = [
        KeyFigures(tuple(_key_figures(run, peak))),
        Figure(
            lambda width: chart.build_treemap(modules, width),
            "The peak: area is bytes. The largest of a layer has its name, those beside it their category.",
            FIGURES[1],
        ),
        _tensors(peak),
        _ops(run),
        *_process(run),
    ]
    if peak.residual_bytes:
        more.append(Note(f"{percent(peak.residual_share, 2)} of the peak is unattributed."))
    holds = More("Who holds it: categories, layers, tensors, operators", tuple(more))
    parts: tuple[Part, ...] = (holds,) if peak.computed else (chart_of_step, holds)
    return Section(_opening_sentence(peak), parts, closed=True)


def _opening_sentence(peak: Peak) -> str:
    where = f", reached by {allocation_site(peak.op, peak.module)}" if peak.op else ""
    if peak.computed:
        return f"{amount(peak.bytes, 'B')} of tensors are live at the peak{where}. {capitalize_first(COMPUTED)}."
    return f"{amount(peak.bytes, 'B')} of tensors are live at the peak of step {peak.step}{where}."


def _non_empty_series(series: pl.DataFrame) -> list[str]:
    most = series.group_by("category").agg(pl.col("mb").max())
    return most.filter(pl.col("mb") > 0)["category"].to_list()


def _key_figures(run: Run, peak: Peak) -> Iterator[KeyFigure]:
    yield KeyFigure("Live at the peak", amount(peak.bytes, "B"), note=f"on {peak.device}")
    for name, size, share in peak.categories.iter_rows():
        yield KeyFigure(capitalize_first(category_label(name)), amount(size, "B"), note=percent(share))
    reserved = reserved_bytes(run).get(peak.device)
    if reserved is not None:
        cpu = peak.device == "cpu"
        note = "at least; also Python's and torch's own blocks" if cpu else "the most of the profiled steps"
        yield KeyFigure("Reserved by the allocator", amount(reserved, "B"), note=note)


def _tensors(peak: Peak) -> Table:
    def size(row: Row) -> Cell:
        return Cell(amount(row["bytes"], "B"), row["bytes"], row["bytes"] / peak.bytes)

    columns = (
        Column("Layer", False, of=lambda row: _name(row["module"])),
        Column("Category", False, of=lambda row: Cell(category_label(row["category"]), row["category"])),
        text_column("Shape", "shape", meaning="where it is known"),
        text_column("Allocated by", "op", missing="before the step"),
        Column("Size", of=size),
    )
    rows = peak.tensors.head(_MOST_TENSORS).iter_rows(named=True)
    return Table.from_rows("tensors-at-the-peak", columns, rows, "The largest tensors that are live at the peak.")


def _ops(run: Run) -> Table:
    columns = (
        text_column("Operator", "op"),
        number_column("Allocations", "allocations", number, meaning="a step"),
        number_column("Allocated", "bytes", "B", meaning="a step; most of it is free again soon"),
        number_column("Live at peak", "at_peak", "B"),
    )
    rows = allocated_by_op(run.allocations).iter_rows(named=True)
    return Table.from_rows("memory-by-operation", columns, rows, "What operators allocate.")


def _process(run: Run) -> Iterator[Part]:
    """The process's peak taken apart, where an empty process was measured on this device."""
    parts = process_parts(run)
    if len(parts):
        named = {part: f"{amount(size, 'B')} ({source})" for part, size, source in parts.iter_rows()}
        whole = named.pop(PEAK)
        yield Facts((*named.items(), (PEAK, whole)))


def _name(module: str | None) -> Cell:
    return Cell("outside any layer" if module is None else module or "(the model)", module)
