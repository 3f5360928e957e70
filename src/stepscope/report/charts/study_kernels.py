"""The figures of `study kernels`: a roofline, and time for a useful FLOP along each axis of the sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts import roofline
from stepscope.report.charts.palette import LIGHT
from stepscope.report.charts.style import axis, plot_width
from stepscope.units import number, percent

_HEIGHT, _BESIDE, _COLUMNS = 190, 44, 3
_COLOURS = [
    LIGHT[name]
    for name in (
        "forward", "backward", "optimizer", "data", "held-saved", "held-workspace", "held-parameter", "held-gradient",
        "held-temporary", "other",
    )
]  # fmt: skip
_ACROSS = {
    "kernel": "side of the kernel", "batch": "batch size", "channels": "channels or features",
    "size": "side of the image, or length", "parameters": "parameters",
}  # fmt: skip
Chart = Callable[[int], Any]


def charts(frames: Mapping[str, pl.DataFrame]) -> dict[str, tuple[Chart, str]]:
    """The chart and caption of every figure that has numbers."""
    drawn: dict[str, tuple[Chart, str]] = {}
    if "roofline" in frames:
        points = _said(frames["roofline"])
        caption = "What each kernel reaches below the ceilings of this run; area: its part of the time."
        drawn["roofline"] = (lambda width: roofline.build(points, frames["roofs"], width), caption)
    if "axes" in frames:
        axes = frames["axes"]
        for op in axes["op"].unique(maintain_order=True):
            rows = axes.filter(pl.col("op") == op)
            caption = f"{op}: time for one useful FLOP along each axis, the others at their centre."
            drawn[f"time-per-flop-{op}"] = (_bound(rows), caption)
    return drawn


def _bound(rows: pl.DataFrame) -> Chart:
    return lambda width: _lines(rows, width)


def _said(points: pl.DataFrame) -> pl.DataFrame:
    hover = [
        f"{row['name']}: {number(row['flops_per_s'] / 1e9)} GFLOP/s, {number(row['bytes_per_s'] / 1e9)} GB/s, "
        f"{percent(row['share'])} of the time"
        for row in points.iter_rows(named=True)
    ]
    return points.with_columns(label=pl.lit(""), group=pl.col("op"), hover=pl.Series(hover))


def _lines(rows: pl.DataFrame, width: int) -> Any:
    """A panel an axis; on each axis the line with the most points."""
    axes = rows["axis"].unique(maintain_order=True).to_list()
    columns = min(len(axes), _COLUMNS)
    each = plot_width(width) // columns - _BESIDE
    panels = [_panel(_longest(rows.filter(pl.col("axis") == name)), name, each) for name in axes]
    return alt.concat(*panels, columns=columns).resolve_scale(color="shared")


def _longest(rows: pl.DataFrame) -> pl.DataFrame:
    """One line for each part of each source; an optimizer has one for each rule, which is its part here."""
    if rows["op"][0] == "optimizer":
        return rows.with_columns(series=pl.col("beside").str.replace("rule ", ""))
    counts = rows.group_by("source", "beside", maintain_order=True).agg(pl.col("at").n_unique().alias("points"))
    kept = counts.sort("points", descending=True, maintain_order=True).unique(
        "source", keep="first", maintain_order=True
    )
    shown = rows.join(kept.select("source", "beside"), on=["source", "beside"], maintain_order="left")
    several = shown["source"].n_unique() > 1
    series = pl.format("{}, {}", "source", "part") if several else pl.col("part")
    return shown.with_columns(series=series)


def _panel(rows: pl.DataFrame, name: str, width: int) -> Any:
    ticks = rows["at"].unique().sort().to_list()
    shown = axis(_ACROSS.get(name, name), values=ticks, grid=False, format="~s")
    x = alt.X("at:Q", scale=alt.Scale(type="log", nice=False), axis=shown)
    scale = alt.Scale(type="log")
    y = alt.Y("ps_per_flop:Q", scale=scale, axis=axis("ps for a useful FLOP", format="~s"))
    colour = alt.Color("series:N", scale=alt.Scale(range=_COLOURS), legend=alt.Legend(columns=4))
    line = alt.Chart(rows).mark_line(point=True, strokeWidth=1.8).encode(x=x, y=y, color=colour)
    return line.properties(width=width, height=_HEIGHT)
