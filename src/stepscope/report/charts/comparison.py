"""Charts of comparisons: ratios to the first, the parts of a difference, and a suite's numbers against batch size."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.style import LIGHT, NARROW, axis, plot_width

_SIDE_COLOURS = [LIGHT[name] for name in ("forward", "backward", "optimizer", "data", "accent", "warn", "muted",
                                     "held-parameter", "held-saved")]  # fmt: skip
_SIDE_ROW = 15  # px an operand


def build_ratios(rows: pl.DataFrame, width: int) -> Any:
    """Points of `rows` (label, letter, ratio, low, high, hover), low and high null where there is no interval."""
    labels = rows["label"].unique(maintain_order=True).to_list()
    letters = rows["letter"].unique(maintain_order=True).to_list()
    y = alt.Y("label:N", sort=labels, axis=axis("", grid=False, labelLimit=170))
    offset = alt.YOffset("letter:N", sort=letters)
    colour = alt.Color("letter:N", sort=letters, scale=alt.Scale(domain=letters, range=_SIDE_COLOURS[: len(letters)]))
    x = alt.X("ratio:Q", scale=alt.Scale(type="log", nice=True), axis=axis("times A", grid=True, format="~g"))
    one = alt.Chart(pl.DataFrame({"ratio": [1.0]})).mark_rule(color=LIGHT["ink"], strokeWidth=1.2).encode(x="ratio:Q")
    known = alt.Chart(rows.filter(pl.col("low").is_not_null())).mark_rule(strokeWidth=2)
    points = alt.Chart(rows).mark_point(filled=True, size=48, opacity=1)
    layers = [
        one,
        known.encode(x=alt.X("low:Q"), x2="high:Q", y=y, yOffset=offset, color=colour),
        points.encode(x=x, y=y, yOffset=offset, color=colour, description="hover:N"),
    ]
    height = max(len(labels) * (_SIDE_ROW * len(letters) + 8), 60)
    return alt.layer(*layers).properties(width=plot_width(width, 190), height=height)


_PART_ROW = 22  # px
_WAY_COLOURS = {"more": LIGHT["backward"], "less": LIGHT["forward"], "residual": LIGHT["other"]}


def build_parts(rows: pl.DataFrame, unit: str, width: int) -> Any:
    """Bars of `rows` (name, way, difference, low, high, hover) in this unit; way is more, less or residual."""
    names = rows["name"].to_list()
    label = 130 if width <= NARROW else 260
    y = alt.Y("name:N", sort=names, axis=axis("", grid=False, labelLimit=label))
    ways = [way for way in _WAY_COLOURS if way in rows["way"].to_list()]
    scale = alt.Scale(domain=ways, range=[_WAY_COLOURS[way] for way in ways])
    x = alt.X("difference:Q", axis=axis(f"difference, {unit}", grid=True))
    bars = alt.Chart(rows).mark_bar(height=_PART_ROW - 8)
    bars = bars.encode(x=x, y=y, color=alt.Color("way:N", scale=scale), description="hover:N")
    known = alt.Chart(rows.filter(pl.col("low").is_not_null())).mark_rule(color=LIGHT["ink"])
    ends = known.encode(x=alt.X("low:Q"), x2="high:Q", y=y)
    return alt.layer(bars, ends).properties(width=plot_width(width, label + 14), height=_PART_ROW * len(names))


_HEIGHT = 280
_LINE_COLOURS = [LIGHT[name] for name in ("forward", "backward", "optimizer", "data", "warn", "muted", "held-parameter",
                                     "held-saved", "held-workspace", "held-gradient")]  # fmt: skip


def build_batches(points: pl.DataFrame, title: str, width: int) -> Any:
    """Lines of `points` (line, batch, value, low, high, hover) on logarithmic scales; title carries the unit."""
    lines = points["line"].unique(maintain_order=True).to_list()
    palette = [_LINE_COLOURS[place % len(_LINE_COLOURS)] for place in range(len(lines))]
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
