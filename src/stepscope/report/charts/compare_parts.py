"""The parts of a difference as bars to either side of none, the largest first, each with its interval."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.palette import LIGHT
from stepscope.report.charts.style import NARROW, axis, plot_width

_ROW = 22  # px
_COLOURS = {"more": LIGHT["backward"], "less": LIGHT["forward"], "residual": LIGHT["other"]}


def build(rows: pl.DataFrame, unit: str, width: int) -> Any:
    """Bars of `rows` (name, way, difference, low, high, hover) in this unit; way is more, less or residual."""
    names = rows["name"].to_list()
    label = 130 if width <= NARROW else 260
    y = alt.Y("name:N", sort=names, axis=axis("", grid=False, labelLimit=label))
    ways = [way for way in _COLOURS if way in rows["way"].to_list()]
    scale = alt.Scale(domain=ways, range=[_COLOURS[way] for way in ways])
    x = alt.X("difference:Q", axis=axis(f"difference, {unit}", grid=True))
    bars = alt.Chart(rows).mark_bar(height=_ROW - 8)
    bars = bars.encode(x=x, y=y, color=alt.Color("way:N", scale=scale), description="hover:N")
    known = alt.Chart(rows.filter(pl.col("low").is_not_null())).mark_rule(color=LIGHT["ink"])
    ends = known.encode(x=alt.X("low:Q"), x2="high:Q", y=y)
    return alt.layer(bars, ends).properties(width=plot_width(width, label + 14), height=_ROW * len(names))
