"""The figures of studies that train one workload in several settings: a panel a quantity, and the loss by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.palette import LIGHT
from stepscope.report.charts.style import axis, plot_width

_HEIGHT, _BESIDE, _COLUMNS, _ROW = 170, 60, 3, 24
_COLOURS = [
    LIGHT[name]
    for name in ("forward", "backward", "optimizer", "data", "held-saved", "held-workspace", "held-parameter", "other")
]
_NAMES = 150  # px beside bars, for the names of settings
Chart = Callable[[int], Any]


def charts(frames: Mapping[str, pl.DataFrame]) -> dict[str, tuple[Chart, str]]:
    """The chart and caption of every figure that has numbers."""
    drawn: dict[str, tuple[Chart, str]] = {}
    if "by-setting" in frames:
        rows = frames["by-setting"]
        caption = "What each setting costs; bars and rules are intervals of 95 %."
        drawn["by-setting"] = (lambda width: _panels(rows, width), caption)
    if "loss-by-step" in frames:
        curves = frames["loss-by-step"]
        drawn["loss-by-step"] = (lambda width: _loss(curves, width), "Loss, the mean of ten steps; first repeat.")
    return drawn


def _panels(rows: pl.DataFrame, width: int) -> Any:
    numeric = rows["at"].null_count() == 0 and rows["at"].n_unique() > 1
    quantities = rows["quantity"].unique(maintain_order=True).to_list()
    columns = _COLUMNS if numeric else 1
    each = plot_width(width) // columns - _BESIDE if numeric else plot_width(width, _NAMES + _BESIDE)
    draw = _line if numeric else _bars
    panels = [draw(rows.filter(pl.col("quantity") == name), name, each) for name in quantities]
    return alt.concat(*panels, columns=columns)


def _line(rows: pl.DataFrame, name: str, width: int) -> Any:
    ticks = axis(rows["label"][0].rpartition(" ")[0], values=rows["at"].unique().sort().to_list(), grid=False)
    x = alt.X("at:Q", scale=alt.Scale(type="log", base=2, nice=False), axis=ticks)
    y = alt.Y("value:Q", scale=alt.Scale(zero=True), axis=axis(name, format="~g"))
    line = alt.Chart(rows).mark_line(point=True, strokeWidth=2, color=LIGHT["forward"]).encode(x=x, y=y)
    rule = alt.Chart(rows).mark_rule(strokeWidth=1.4, opacity=0.6, color=LIGHT["forward"])
    return alt.layer(line, rule.encode(x=x, y="low:Q", y2="high:Q")).properties(width=width, height=_HEIGHT)


def _bars(rows: pl.DataFrame, name: str, width: int) -> Any:
    y = alt.Y("label:N", sort=rows["label"].to_list(), axis=axis("", grid=False, labelLimit=_NAMES))
    x = alt.X("value:Q", scale=alt.Scale(zero=True), axis=axis(name, format="~g"))
    bars = alt.Chart(rows).mark_bar(color=LIGHT["forward"], height={"band": 0.6}).encode(x=x, y=y)
    rule = alt.Chart(rows).mark_rule(strokeWidth=1.6, color=LIGHT["ink"]).encode(x="low:Q", x2="high:Q", y=y)
    return alt.layer(bars, rule).properties(width=width, height=_ROW * len(rows))


def _loss(rows: pl.DataFrame, width: int) -> Any:
    colour = alt.Color("label:N", scale=alt.Scale(range=_COLOURS), legend=alt.Legend(columns=4))
    x = alt.X("step:Q", axis=axis("step", grid=False))
    y = alt.Y("loss:Q", scale=alt.Scale(zero=False), axis=axis("loss"))
    line = alt.Chart(rows).mark_line(strokeWidth=1.8).encode(x=x, y=y, color=colour)
    return line.properties(width=plot_width(width), height=_HEIGHT + 70)
