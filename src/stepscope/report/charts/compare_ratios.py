"""Ratios of several operands to the first, a row a quantity: points with their intervals around the line at 1."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.palette import LIGHT
from stepscope.report.charts.style import axis, plot_width

_COLOURS = [LIGHT[name] for name in ("forward", "backward", "optimizer", "data", "accent", "warn", "muted",
                                     "held-parameter", "held-saved")]  # fmt: skip
_ROW = 15  # px an operand


def build(rows: pl.DataFrame, width: int) -> Any:
    """Points of `rows` (label, letter, ratio, low, high, hover), low and high null where there is no interval."""
    labels = rows["label"].unique(maintain_order=True).to_list()
    letters = rows["letter"].unique(maintain_order=True).to_list()
    y = alt.Y("label:N", sort=labels, axis=axis("", grid=False, labelLimit=170))
    offset = alt.YOffset("letter:N", sort=letters)
    colour = alt.Color("letter:N", sort=letters, scale=alt.Scale(domain=letters, range=_COLOURS[: len(letters)]))
    x = alt.X("ratio:Q", scale=alt.Scale(type="log", nice=True), axis=axis("times A", grid=True, format="~g"))
    one = alt.Chart(pl.DataFrame({"ratio": [1.0]})).mark_rule(color=LIGHT["ink"], strokeWidth=1.2).encode(x="ratio:Q")
    known = alt.Chart(rows.filter(pl.col("low").is_not_null())).mark_rule(strokeWidth=2)
    points = alt.Chart(rows).mark_point(filled=True, size=48, opacity=1)
    layers = [
        one,
        known.encode(x=alt.X("low:Q"), x2="high:Q", y=y, yOffset=offset, color=colour),
        points.encode(x=x, y=y, yOffset=offset, color=colour, description="hover:N"),
    ]
    height = max(len(labels) * (_ROW * len(letters) + 8), 60)
    return alt.layer(*layers).properties(width=plot_width(width, 190), height=height)
