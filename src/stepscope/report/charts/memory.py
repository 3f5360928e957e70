"""Memory over the run: one line a quantity, broken where nothing was read."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.palette import LIGHT
from stepscope.report.charts.style import axis, plot_width

_COLOURS = [LIGHT["forward"], LIGHT["backward"], LIGHT["optimizer"], LIGHT["data"]]


def build(points: pl.DataFrame, width: int) -> Any:
    """Lines of `points` (series, piece, t_s, mb); a new `piece` begins after a gap."""
    names = points["series"].unique(maintain_order=True).to_list()
    colour = alt.Color("series:N", scale=alt.Scale(domain=names, range=_COLOURS[: len(names)]))
    x = alt.X("t_s:Q", axis=axis("time since the first step, s", grid=False, tickCount=6), scale=alt.Scale(nice=False))
    y = alt.Y("mb:Q", axis=axis("memory, MB"), scale=alt.Scale(domainMin=0))
    line = alt.Chart(points).mark_line(strokeWidth=1.6, strokeJoin="round")
    return line.encode(x=x, y=y, color=colour, detail="piece:N").properties(width=plot_width(width), height=220)
