"""Roofline: the rate that each kind of operation reaches against the operations it does with a byte."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.palette import LIGHT
from stepscope.report.charts.style import NARROW, axis, plot_width

_HEIGHT, _NAMED = 300, 6
_GROUPS = [
    LIGHT[name]
    for name in ("forward", "backward", "optimizer", "data", "held-saved", "held-workspace", "held-parameter", "other")
]


def build(points: pl.DataFrame, roofs: pl.DataFrame, width: int) -> Any:
    """Marks of `points` (label, flop_per_byte, flops_per_s, share, hover) below `roofs` (roof, value) of one device.

    A column `group` of the points, where there is one, gives them their colours.
    """
    left, right = (10 ** f(points["flop_per_byte"].log10().to_numpy()) for f in (_floor, _ceiling))
    low, high = (10 ** f(points["flops_per_s"].log10().to_numpy()) for f in (_floor, _ceiling))
    x = alt.X(
        "flop_per_byte:Q",
        scale=alt.Scale(type="log", domain=[left, right], nice=False),
        axis=axis("floating-point operations with a byte, FLOP/B", values=_decades(left, right), format="~g"),
    )
    y = alt.Y(
        "flops_per_s:Q",
        scale=alt.Scale(type="log", domain=[low, high * 1.5], nice=False),
        axis=axis("FLOP/s", values=_decades(low, high), format=".0s"),
    )
    layers = [_roofs(roofs, left, right, x, y)] if not roofs.is_empty() else []
    size = alt.Size("share:Q", scale=alt.Scale(type="sqrt", domain=[0, 1], range=[20, 1400]), legend=None)
    marks = alt.Chart(points).mark_circle(color=LIGHT["forward"], opacity=0.75, clip=False)
    groups = alt.Color("group:N", scale=alt.Scale(range=_GROUPS), legend=alt.Legend(columns=4))
    coloured = {"color": groups} if "group" in points.columns else {}
    layers.append(marks.encode(x=x, y=y, size=size, description="hover:N", **coloured))
    named = points.sort("share", descending=True).head(3 if width <= NARROW else _NAMED).sort("flop_per_byte")
    for turn, dy in enumerate((-18, 20)):  # neighbours say their names above and below
        texts = alt.Chart(named.gather_every(2, turn)).mark_text(dy=dy, fontSize=11, color=LIGHT["ink"])
        layers.append(texts.encode(x=x, y=y, text="label:N"))
    return alt.layer(*layers).properties(width=plot_width(width, 76), height=_HEIGHT)


def _roofs(roofs: pl.DataFrame, left: float, right: float, x: alt.X, y: alt.Y) -> Any:
    """The slope of the highest byte rate, up to the level of the highest operation rate."""
    known = dict(roofs.select("roof", "value").iter_rows())
    ridge = min(max(known["compute"] / known["memory"], left), right)
    corners = [(left, left * known["memory"]), (ridge, min(ridge * known["memory"], known["compute"]))]
    corners.append((right, min(right * known["memory"], known["compute"])))
    frame = pl.DataFrame(corners, schema=["flop_per_byte", "flops_per_s"], orient="row")
    line = alt.Chart(frame).mark_line(color=LIGHT["muted"], strokeDash=[5, 3], strokeWidth=1.3, clip=True)
    return line.encode(x=x, y=y)


def _decades(low: float, high: float) -> list[float]:
    return [10.0**power for power in range(round(math.log10(low)), round(math.log10(high)) + 1)]


def _floor(exponents: Any) -> int:
    return int((exponents.min() - 0.2) // 1)


def _ceiling(exponents: Any) -> int:
    return int(-(-(exponents.max() + 0.2) // 1))
