"""Roofline of the run: the operators bound by arithmetic and those bound by memory bandwidth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.analysis.device.ceilings import ceilings_remedy, roofline, roofs, why_no_ceilings
from stepscope.report.charts import operators as chart
from stepscope.report.page.parts import Figure, Part, Section
from stepscope.report.table import Table, number_column, percent_bar_column, text_column, whole_percent
from stepscope.units import NOT_MEASURED, capitalize_first, milliseconds, number, page_name, percent, si

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "Against the machine"
ORDER = 55
FIGURES = ("roofline",)

_MOST_ROWS = 200
_CAPTION = (
    "Each mark is an operator, its area the share of the step; the dashed roof is what this device was measured to "
    "reach: bytes that no cache holds (slope) and FLOPs (level). Operators whose data a cache holds can lie above the "
    "slope."
)


def build(run: Run) -> Section:
    """A picture and a table of `analysis.roofline`, for the device with most time in them."""
    points = roofline(run)
    if points.is_empty():
        return Section("no operator states both its FLOPs and its bytes")
    device = str(points.group_by("device").agg(pl.col("total_ns").sum()).sort("total_ns")["device"][-1])
    reached = roofs(run)
    drawn = points.filter(pl.col("device") == device).with_columns(
        hover=pl.struct(pl.all()).map_elements(_hover, return_dtype=pl.String),
        label=pl.col("name").str.replace("^aten::", "").str.slice(0, 28),
    )
    edges = reached.filter(pl.col("device") == device)
    picture = Figure(lambda width: chart.build_roofline(drawn, edges, width), _CAPTION, FIGURES[0])
    parts: tuple[Part, ...] = (picture, _table(points), *_attained(run))
    return Section(_opening_sentence(run, edges, device), parts, closed=True)


def _opening_sentence(run: Run, edges: pl.DataFrame, device: str) -> str:
    text = "Operators on the slope are memory-bandwidth bound, those under the level could compute faster."
    if edges.is_empty():
        why = why_no_ceilings(run, device)
        return f"{capitalize_first(why)}, so no roof is drawn: {ceilings_remedy(run, device)}."
    units = {"compute": "FLOP/s", "memory": "B/s"}
    highest = [f"{si(value, units[roof])} by {page_name(who)}" for _, roof, value, who in edges.iter_rows()]
    return f"{text} Measured on {device}: {' and '.join(highest)}."


def _hover(row: dict[str, Any]) -> str:
    return (
        f"{page_name(row['name'])}: {si(row['flops_per_s'], 'FLOP/s')}, {si(row['bytes_per_s'], 'B/s')}, "
        f"{number(row['flop_per_byte'])} FLOP/B, {percent(row['share'])} of the step"
    )


def _attained(run: Run) -> Iterator[Table]:
    """Yield the share of the attainable by operator, where ceilings were measured; the list of layers has theirs."""
    needed = "What this device was measured to need for such calls; no more than they took"
    columns = (
        text_column("Operator", "name", page_name),
        number_column(
            "ms a step", "self_ns", milliseconds, meaning="Of operators with known FLOPs or bytes, and of mere calls"
        ),
        number_column("Attainable, ms", "attainable_ns", milliseconds, meaning=needed),
        percent_bar_column("Share of the attainable", "attained", digits=0),
        number_column("Known", "known", whole_percent, meaning="Share of the row's time that these operators take"),
        text_column("Limit", "limit", missing=NOT_MEASURED),
    )
    rows = run.attained("operator").head(_MOST_ROWS)
    if len(rows):
        caption = (
            "The share of the attainable is low where an operator is far from every ceiling for calls of its size. "
            "100 % is as fast as such calls were measured alone, or faster: not the share of the roof above, which "
            "larger calls reach."
        )
        yield Table.from_rows("attained-operator", columns, rows.iter_rows(named=True), caption, lively=len(rows) > 12)


def _table(points: pl.DataFrame) -> Table:
    per_byte = "Floating-point operations with each byte that goes in"
    of_roof = "Share of the highest rate at so many FLOP/B that was measured"
    columns = (
        text_column("Operator", "name", page_name),
        text_column("Device", "device"),
        number_column("ms a step", "total_ns", milliseconds),
        percent_bar_column("Share", "share"),
        number_column("FLOP/B", "flop_per_byte", number, meaning=per_byte),
        number_column("FLOP/s", "flops_per_s", lambda rate: si(rate, "")),
        number_column("B/s", "bytes_per_s", lambda rate: si(rate, "")),
        number_column("Of the roof", "attained", whole_percent, meaning=of_roof),
        text_column(
            "Bound by",
            "bound_by",
            missing=NOT_MEASURED,
            meaning="Left of the ridge of the roof: memory; right of it: arithmetic",
        ),
    )
    rows = points.head(_MOST_ROWS)
    caption = (
        "Bytes are the tensors that go in, each once: what comes out, and what a kernel reads twice, is not in them."
    )
    return Table.from_rows("roofline", columns, rows.iter_rows(named=True), caption, lively=len(rows) > 12)
