"""Utilisation of every core over consecutive steps (the 2019 paper's figure 3): one row a core."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.palette import LIGHT
from stepscope.report.charts.style import axis, plot_width

_TALLEST, _LOWEST, _ALL_ROWS = 64, 16, 620  # px


def build(windows: pl.DataFrame, boundaries: pl.DataFrame, width: int) -> Any:
    """Rows of `windows` (core, label, t0_ms, t1_ms, percent, hover); `boundaries` (t_ms) are starts of steps."""
    cores = windows.select("core", "label").unique(maintain_order=True).rows()
    height = max(_LOWEST, min(_TALLEST, _ALL_ROWS // max(len(cores), 1)))
    end = float(windows.select(pl.col("t1_ms").max()).item())
    time = alt.Scale(domain=[0, end], nice=False)
    rows = []
    for place, (core, label) in enumerate(cores):
        last = place == len(cores) - 1
        shown = windows.filter(pl.col("core") == core)
        rows.append(_row(shown, boundaries, label, time, last).properties(width=plot_width(width, 106), height=height))
    return alt.vconcat(*rows, spacing=8)


def _row(shown: pl.DataFrame, boundaries: pl.DataFrame, label: str, time: alt.Scale, last: bool) -> Any:
    ticks = axis("time since the first step shown, ms", grid=False, tickCount=8) if last else None
    x = alt.X("t0_ms:Q", scale=time, axis=ticks)
    settings = {"titleAngle": 0, "titleAlign": "right", "titleX": -50, "titleY": 14, "values": [0, 50, 100]}
    y = alt.Y("percent:Q", scale=alt.Scale(domain=[0, 100]), axis=axis(label, labelExpr=_LABELS, **settings))
    read = alt.Chart(shown.filter(pl.col("percent").is_not_null()))
    bars = read.mark_rect(color=LIGHT["forward"], stroke=LIGHT["forward"], strokeWidth=0.6, clip=True).encode(
        x=x, x2="t1_ms:Q", y=y, y2=alt.datum(0), description="hover:N"
    )
    gap = alt.Chart(shown.filter(pl.col("percent").is_null()))
    gaps = gap.mark_rect(color=LIGHT["gap"], clip=True).encode(
        x=x, x2="t1_ms:Q", y=alt.datum(0), y2=alt.datum(100), description="hover:N"
    )
    edges = alt.Chart(boundaries).mark_rule(color=LIGHT["ink"], strokeDash=[2, 3], opacity=0.55)
    return alt.layer(gaps, bars, edges.encode(x=alt.X("t_ms:Q", scale=time)))


_LABELS = "datum.value == 50 ? '' : datum.value + ' %'"
