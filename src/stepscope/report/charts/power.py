"""Power of each rail over time: a row a rail, its gaps tinted."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.palette import LIGHT
from stepscope.report.charts.style import axis, plot_width

_TALLEST, _LOWEST, _ALL_ROWS = 84, 36, 620  # px


def build(windows: pl.DataFrame, width: int) -> Any:
    """Rows of `windows` (rail, t0_s, t1_s, watts, estimated, hover); null watts are gaps."""
    rails = windows["rail"].unique(maintain_order=True).to_list()
    height = max(_LOWEST, min(_TALLEST, _ALL_ROWS // max(len(rails), 1)))
    time = alt.Scale(domain=[0, float(windows.select(pl.col("t1_s").max()).item())], nice=False)
    rows = []
    for place, rail in enumerate(rails):
        shown = windows.filter(pl.col("rail") == rail)
        rows.append(_row(shown, rail, time, place == len(rails) - 1, plot_width(width, 76), height))
    return alt.vconcat(*rows, spacing=10)


def _row(shown: pl.DataFrame, rail: str, time: alt.Scale, last: bool, width: int, height: int) -> Any:
    ticks = axis("time since the first step, s", grid=False, tickCount=8) if last else None
    x = alt.X("t0_s:Q", scale=time, axis=ticks)
    read = shown.filter(pl.col("watts").is_not_null())
    top = float(read["watts"].to_numpy().max()) if len(read) else 1.0
    y = alt.Y("watts:Q", scale=alt.Scale(domain=[0, (top or 1.0) * 1.05], nice=False), axis=axis("W", tickCount=3))
    colour = LIGHT["data"] if bool(shown["estimated"].any()) else LIGHT["forward"]
    bars = alt.Chart(read).mark_rect(color=colour, stroke=colour, strokeWidth=0.6, clip=True)
    bars = bars.encode(x=x, x2="t1_s:Q", y=y, y2=alt.datum(0), description="hover:N")
    gaps = alt.Chart(shown.filter(pl.col("watts").is_null())).mark_rect(color=LIGHT["gap"], clip=True)
    gaps = gaps.encode(x=x, x2="t1_s:Q", y=alt.value(0), y2=alt.value(height), description="hover:N")
    title = alt.TitleParams(
        rail, anchor="start", frame="group", fontSize=12, fontWeight="normal", color=LIGHT["ink"], offset=2
    )
    return alt.layer(gaps, bars).properties(width=width, height=height, title=title)
