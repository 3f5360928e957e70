"""Step time over a long run: the middle and the range of steps next to each other."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.palette import LIGHT
from stepscope.report.charts.style import axis, plot_width


def build(bands: pl.DataFrame, top_ms: float, low_ms: float, width: int) -> Any:
    """Line and band of `bands` (step, low_ms, middle_ms, high_ms, hover), one row for several steps."""
    y = alt.Y("low_ms:Q", scale=alt.Scale(domain=[low_ms, top_ms], nice=False), axis=axis("step time, ms"))
    x = alt.X("step:Q", axis=axis("step", grid=False, tickCount=6, format="d"), scale=alt.Scale(nice=False, zero=False))
    chart = alt.Chart(bands)
    band = chart.mark_area(color=LIGHT["forward"], opacity=0.22, clip=True).encode(x=x, y=y, y2="high_ms:Q")
    line = chart.mark_line(color=LIGHT["forward"], strokeWidth=1.6, clip=True).encode(x=x, y="middle_ms:Q")
    return alt.layer(band, line).properties(width=plot_width(width), height=240)
