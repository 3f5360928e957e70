"""A number of a sweep against the batch size, a line a workload, with the interval of each point."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.palette import LIGHT
from stepscope.report.charts.style import axis, plot_width

_HEIGHT = 280
_COLOURS = [LIGHT[name] for name in ("forward", "backward", "optimizer", "data", "warn", "muted", "held-parameter",
                                     "held-saved", "held-workspace", "held-gradient")]  # fmt: skip


def build(points: pl.DataFrame, title: str, width: int) -> Any:
    """Lines of `points` (line, batch, value, low, high, hover) on logarithmic scales; title carries the unit."""
    lines = points["line"].unique(maintain_order=True).to_list()
    palette = [_COLOURS[place % len(_COLOURS)] for place in range(len(lines))]
    colour = alt.Color("line:N", sort=lines, scale=alt.Scale(domain=lines, range=palette), legend=alt.Legend(columns=4))
    batches = sorted(points["batch"].unique().to_list())
    x = alt.X("batch:Q", scale=alt.Scale(type="log", base=2), axis=axis("batch size", grid=False, values=batches))
    y = alt.Y("value:Q", scale=alt.Scale(type="log", nice=False, padding=12), axis=axis(title, grid=True))
    chart = alt.Chart(points)
    spread = alt.Chart(points.filter(pl.col("low").is_not_null() & (pl.col("low") > 0))).mark_rule(strokeWidth=2)
    layers = [
        chart.mark_line(strokeWidth=1.6).encode(x=x, y=y, color=colour),
        spread.encode(x=x, y="low:Q", y2="high:Q", color=colour),
        chart.mark_point(filled=True, size=42, opacity=1).encode(x=x, y=y, color=colour, description="hover:N"),
    ]
    return alt.layer(*layers).properties(width=plot_width(width), height=_HEIGHT)
