"""Roofline of the run: the operators bound by arithmetic and those bound by memory bandwidth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.analysis.device.ceilings import WOULD_TELL, roofline, roofs, why_no_ceilings
from stepscope.report.charts import operators as chart
from stepscope.report.page.parts import Cell, Column, Part, Section, Table, figure
from stepscope.report.page.reading import milliseconds, name
from stepscope.units import NOT_MEASURED, amount, number, percent, si

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
    picture = figure(lambda width: chart.build_roofline(drawn, edges, width), _CAPTION, FIGURES[0])
    parts: tuple[Part, ...] = (picture, _table(points), *_attained(run))
    return Section(_lede(run, edges, device), parts, closed=True)


def _lede(run: Run, edges: pl.DataFrame, device: str) -> str:
    said = "Operators on the slope are memory-bandwidth bound, those under the level could compute faster."
    if edges.is_empty():
        why = why_no_ceilings(run, device)
        return f"{why[:1].upper()}{why[1:]}, so no roof is drawn: {WOULD_TELL}."
    units = {"compute": "FLOP/s", "memory": "B/s"}
    highest = [f"{si(value, units[roof])} by {name(who)}" for _, roof, value, who in edges.iter_rows()]
    return f"{said} Measured on {device}: {' and '.join(highest)}."


def _hover(row: dict[str, Any]) -> str:
    return (
        f"{name(row['name'])}: {si(row['flops_per_s'], 'FLOP/s')}, {si(row['bytes_per_s'], 'B/s')}, "
        f"{number(row['flop_per_byte'])} FLOP/B, {percent(row['share'])} of the step"
    )


def _attained(run: Run) -> Iterator[Table]:
    """Yield the share of the attainable by operator, where ceilings were measured; the list of layers has theirs."""
    columns = (
        Column("Operator", numeric=False),
        Column("ms a step", meaning="Of operators with known FLOPs or bytes, and of mere calls"),
        Column(
            "Attainable, ms",
            meaning="What this device was measured to need for such calls; no more than they took",
        ),
        Column("Share of the attainable"),
        Column("Known", meaning="Share of the row's time that these operators take"),
        Column("Limit", numeric=False),
    )
    rows = [
        (
            Cell(name(row["name"]), name(row["name"])),
            Cell(milliseconds(row["self_ns"]), row["self_ns"]),
            Cell(milliseconds(row["attainable_ns"]), row["attainable_ns"]),
            Cell(percent(row["attained"], 0), row["attained"], row["attained"]),
            Cell(percent(row["known"], 0), row["known"]),
            Cell(row["limit"] or NOT_MEASURED, row["limit"]),
        )
        for row in run.attained("operator").head(_MOST_ROWS).iter_rows(named=True)
    ]
    if rows:
        caption = (
            "The share of the attainable is low where an operator is far from every ceiling for calls of its size. "
            "100 % is as fast as such calls were measured alone, or faster: not the share of the roof above, which "
            "larger calls reach."
        )
        yield Table("attained-operator", columns, rows, caption, lively=len(rows) > 12)


def _table(points: pl.DataFrame) -> Table:
    columns = (
        Column("Operator", numeric=False),
        Column("Device", numeric=False),
        Column("ms a step"),
        Column("Share"),
        Column("FLOP/B", meaning="Floating-point operations with each byte that goes in or comes out"),
        Column("FLOP/s"),
        Column("B/s"),
        Column("Of the roof", meaning="Share of the highest rate at so many FLOP/B that was measured"),
        Column("Bound by", numeric=False, meaning="Left of the ridge of the roof: memory; right of it: arithmetic"),
    )
    rows = [
        (
            Cell(name(row["name"]), name(row["name"])),
            Cell(row["device"], row["device"]),
            Cell(milliseconds(row["total_ns"]), row["total_ns"]),
            Cell(percent(row["share"]), row["share"], row["share"]),
            Cell(number(row["flop_per_byte"]), row["flop_per_byte"]),
            Cell(si(row["flops_per_s"], ""), row["flops_per_s"]),
            Cell(amount(row["bytes_per_s"], "B"), row["bytes_per_s"]),
            Cell(percent(row["attained"], 0), row["attained"]),
            Cell(row["waits_for"] or NOT_MEASURED, row["waits_for"]),
        )
        for row in points.head(_MOST_ROWS).iter_rows(named=True)
    ]
    caption = (
        "Bytes are tensors in and out, each once: what a cache saves and what a kernel reads twice is not in them."
    )
    return Table("roofline", columns, rows, caption, lively=len(rows) > 12)
