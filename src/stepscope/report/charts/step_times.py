"""Step time over the run, each step by how it was run, with the median, and the distribution beside it."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.palette import LIGHT
from stepscope.report.charts.style import NARROW, axis, plot_width

KINDS = ("warm-up", "ops recorded", "time only")
_COLOURS = [LIGHT["other"], LIGHT["backward"], LIGHT["forward"]]
_HEIGHT = 240


def build(
    points: pl.DataFrame, bars: pl.DataFrame, median_ms: float | None, top_ms: float, low_ms: float, width: int
) -> Any:
    """Scatter of `points` (step, ms, kind, above, hover) and histogram of `bars` (ms0, ms1, steps, hover).

    Points marked `above` lie over `top_ms` and are drawn as arrows at the upper edge.
    """
    beside = 70 if width <= NARROW else 150
    scale = alt.Scale(domain=[low_ms, top_ms], nice=False, zero=False)
    y = alt.Y("ms:Q", scale=scale, axis=axis("step time, ms"))
    left = _scatter(points, y, width <= NARROW)
    if median_ms is not None:
        level = alt.Chart(pl.DataFrame({"ms": [median_ms]}))
        left = alt.layer(left, level.mark_rule(color=LIGHT["ink"], strokeWidth=1.2).encode(y="ms:Q"))
    plot = left.properties(width=plot_width(width) - beside - 14, height=_HEIGHT)
    return alt.hconcat(plot, _histogram(bars, scale, median_ms).properties(width=beside, height=_HEIGHT), spacing=10)


def _scatter(points: pl.DataFrame, y: alt.Y, narrow: bool) -> Any:
    colour = alt.Color("kind:N", scale=alt.Scale(domain=list(KINDS), range=_COLOURS))
    shape = alt.Shape("kind:N", scale=alt.Scale(domain=list(KINDS), range=["cross", "circle", "diamond"]))
    x = alt.X("step:Q", axis=axis("step", grid=False, tickCount=4 if narrow else 8, format="d"))
    x = x.scale(nice=False, zero=False, padding=6)
    size = 34 if len(points) <= 200 else 16
    inside = alt.Chart(points.filter(~pl.col("above"))).mark_point(filled=True, size=size, opacity=0.8)
    over = alt.Chart(points.filter(pl.col("above"))).mark_point(shape="triangle-up", filled=True, size=46, yOffset=4)
    return alt.layer(
        inside.encode(x=x, y=y, color=colour, shape=shape, description="hover:N"),
        over.encode(x=x, y=y, color=colour, description="hover:N"),
    )


def _histogram(bars: pl.DataFrame, scale: alt.Scale, median_ms: float | None) -> Any:
    y = alt.Y("ms0:Q", scale=scale, axis=axis("", labels=False))
    x = alt.X("steps:Q", axis=axis("steps", grid=False, tickCount=2, tickMinStep=1, format="d"))
    layers = [
        alt.Chart(bars)
        .mark_rect(color=LIGHT["other"], opacity=0.75)
        .encode(y=y, y2="ms1:Q", x=x, x2=alt.datum(0), description="hover:N")
    ]
    if median_ms is not None:
        level = alt.Chart(pl.DataFrame({"ms0": [median_ms]}))
        layers.append(level.mark_rule(color=LIGHT["ink"], strokeWidth=1.2).encode(y="ms0:Q"))
    return alt.layer(*layers)
