"""The figures of `study partial`: accuracy against what it cost, over time, and what freezing saves in a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.palette import HELD, LIGHT
from stepscope.report.charts.style import axis, plot_width

_HEIGHT = 300
_COLOURS = [
    *(LIGHT[name] for name in ("forward", "backward", "optimizer", "data", "other")),
    *(HELD[name] for name in ("saved", "parameter", "gradient", "workspace", "buffer", "temporary", "input")),
    LIGHT["ink"], LIGHT["muted"], LIGHT["accent"], LIGHT["warn"],
]  # fmt: skip
Chart = Callable[[int], Any]


def charts(frames: Mapping[str, pl.DataFrame]) -> dict[str, tuple[Chart, str]]:
    """The chart and caption of every figure that has numbers."""
    return {name: (_bound(draw, frames), caption) for name, (draw, caption) in _DRAWN.items() if name in frames}


def _bound(draw: Callable[[Mapping[str, pl.DataFrame], int], Any], frames: Mapping[str, pl.DataFrame]) -> Chart:
    return lambda width: draw(frames, width)


def _against_cost(frames: Mapping[str, pl.DataFrame], width: int) -> Any:
    """A panel a cost; the ways that nothing beats are named and joined by a line."""
    rows = frames["accuracy-and-cost"]
    panels = rows["cost"].unique(maintain_order=True).to_list()
    each = plot_width(width) // len(panels) - 24
    names = rows["way"].unique(maintain_order=True).to_list()
    colour, scale = _coloured(names), _gains(rows)
    drawn = [
        _panel(rows.filter(cost=name), colour, scale, place == 0).properties(width=each, height=_HEIGHT)
        for place, name in enumerate(panels)
    ]
    return alt.hconcat(*drawn)


def _coloured(names: list[str]) -> alt.Color:
    scale = alt.Scale(domain=names, range=_COLOURS)
    return alt.Color("way:N", sort=names, scale=scale, legend=alt.Legend(columns=6))


def _gains(rows: pl.DataFrame) -> alt.Scale:
    """One scale of accuracy for all panels."""
    known = [value for name in ("percent", "low", "high") for value in rows[name].drop_nulls().to_list()]
    return alt.Scale(domain=[max(0.0, min(known) - 2), min(100.0, max(known) + 4)], nice=False)


def _panel(rows: pl.DataFrame, colour: alt.Color, scale: alt.Scale, first: bool) -> Any:
    x = alt.X("value:Q", scale=alt.Scale(zero=True, nice=True), axis=axis(rows["cost"][0], format="~s", tickCount=4))
    y = alt.Y("percent:Q", scale=scale, axis=axis("accuracy, %" if first else ""))
    best = rows.filter("unbeaten").sort("value")
    up, along = rows.drop_nulls("low"), rows.drop_nulls("value_low")
    tooltip = ["way:N", "value:Q", "percent:Q", "low:Q", "high:Q"]
    ring = alt.Chart(best).mark_point(size=150, color=LIGHT["ink"], opacity=0.7)
    name = alt.Chart(best).mark_text(align="right", dx=-8, dy=-9, fontSize=10.5, color=LIGHT["ink"])
    layers = [
        alt.Chart(best).mark_line(color=LIGHT["muted"], opacity=0.5, interpolate="step-after").encode(x=x, y=y),
        alt.Chart(up).mark_rule(opacity=0.5).encode(x=x, y="low:Q", y2="high:Q", color=colour),
        alt.Chart(along).mark_rule(opacity=0.5).encode(x="value_low:Q", x2="value_high:Q", y=y, color=colour),
        alt.Chart(rows).mark_circle(size=75, opacity=1).encode(x=x, y=y, color=colour, tooltip=tooltip),
        ring.encode(x=x, y=y),
        name.encode(x=x, y=y, text="way:N"),
    ]
    return alt.layer(*layers)


def _over(cost: str) -> Callable[[Mapping[str, pl.DataFrame], int], Any]:
    def draw(frames: Mapping[str, pl.DataFrame], width: int) -> Any:
        rows = frames[f"accuracy-over-{cost}"]
        names = rows["way"].unique(maintain_order=True).to_list()
        colour = _coloured(names)
        x = alt.X("cost:Q", axis=axis(rows["title"][0], format="~s"))
        y = alt.Y("percent:Q", axis=axis("accuracy, %"))
        line = alt.Chart(rows).mark_line(strokeWidth=2).encode(x=x, y=y, color=colour, order="step:Q")
        bars = alt.Chart(_ends(rows)).mark_rule(opacity=0.7).encode(x=x, y="low:Q", y2="high:Q", color=colour)
        return alt.layer(line, bars).properties(width=plot_width(width), height=_HEIGHT)

    return draw


def _ends(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("step") == pl.col("step").max().over("way")).drop_nulls("low")


def _savings(frames: Mapping[str, pl.DataFrame], width: int) -> Any:
    rows = frames["savings"]
    kinds = rows["what"].unique(maintain_order=True).to_list()
    ways = rows["way"].unique(maintain_order=True).to_list()
    each = (plot_width(width, 150)) // len(kinds) - 14
    drawn = []
    for place, kind in enumerate(kinds):
        part = rows.filter(what=kind)
        y = alt.Y("way:N", sort=ways, axis=axis("", labels=place == 0))
        bars = alt.Chart(part).mark_bar(color=LIGHT["forward"], height={"band": 0.62})
        x = alt.X("percent:Q", axis=axis("% of training all", tickCount=3))
        whole = (
            alt.Chart(pl.DataFrame({"x": [100.0]})).mark_rule(color=LIGHT["muted"], strokeDash=[3, 3]).encode(x="x:Q")
        )
        title = alt.TitleParams(kind, fontSize=12, fontWeight="normal", color=LIGHT["ink"])
        panel = alt.layer(bars.encode(x=x, y=y, tooltip=["way:N", "percent:Q"]), whole)
        drawn.append(panel.properties(width=each, height=22 * len(ways), title=title))
    return alt.hconcat(*drawn)


_DRAWN: dict[str, tuple[Callable[[Mapping[str, pl.DataFrame], int], Any], str]] = {
    "accuracy-and-cost": (
        _against_cost,
        "Accuracy against what it cost. Ringed and named: no other way is as accurate for less. Bars: 95 % over seeds.",
    ),
    "accuracy-over-time": (
        _over("time"),
        "Accuracy over training time, means over seeds; bars: 95 % over seeds at the end.",
    ),
    "accuracy-over-energy": (
        _over("energy"),
        "Accuracy over energy, means over seeds; bars: 95 % over seeds at the end.",
    ),
    "savings": (
        _savings,
        "What a step costs in % of a step that trains all: where a bar reaches 100, nothing is saved.",
    ),
}
