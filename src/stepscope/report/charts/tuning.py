"""The figures of `stepscope tune`: the gain of every change with its CI, and the losses of the final check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.style import LIGHT, axis, plot_width

_ROW, _NAME_WIDTH, _LOSS_HEIGHT = 22, 190, 170
_COLOURS = {"helps": "optimizer", "checked at the end": "forward", "no certain gain": "other"}
Chart = Callable[[int], Any]


def tuning_charts(frames: Mapping[str, pl.DataFrame]) -> dict[str, tuple[Chart, str]]:
    """The chart and caption of every figure that has numbers."""
    drawn: dict[str, tuple[Chart, str]] = {}
    if "gains" in frames:
        gains = frames["gains"]
        caption = "Less time a step than as is, with the 95 % CI; left of the line a change is slower."
        drawn["gains"] = (lambda width: _forest(gains, width), caption)
    if "losses" in frames:
        losses = frames["losses"]
        drawn["losses"] = (lambda width: _losses(losses, width), "Loss as is and with the best configuration.")
    return drawn


def _forest(rows: pl.DataFrame, width: int) -> Any:
    order, kinds = rows["change"].to_list(), list(_COLOURS)
    colours = alt.Scale(domain=kinds, range=[LIGHT[_COLOURS[kind]] for kind in kinds])
    y = alt.Y("change:N", sort=order, axis=axis("", grid=False, labelLimit=_NAME_WIDTH, minExtent=_NAME_WIDTH))
    # A change that is many times slower would leave no room for the others.
    scale = alt.Scale(domain=[max(-60.0, _least(rows)), max(5.0, _most(rows))], clamp=True)
    x = axis("gain, %", format=".0f")
    colour = alt.Color("kind:N", scale=colours)
    points = alt.Chart(rows).mark_point(filled=True, size=70).encode(
        x=alt.X("gain:Q", scale=scale, axis=x), y=y, color=colour
    )  # fmt: skip
    rules = alt.Chart(rows).mark_rule(strokeWidth=2).encode(
        x=alt.X("low:Q", scale=scale, axis=x), x2="high:Q", y=y, color=colour
    )  # fmt: skip
    zero = (
        alt.Chart(pl.DataFrame({"at": [0.0]}))
        .mark_rule(color=LIGHT["ink"])
        .encode(x=alt.X("at:Q", scale=scale, axis=x))
    )
    return alt.layer(zero, rules, points).properties(width=plot_width(width, _NAME_WIDTH + 40), height=_ROW * len(rows))


def _least(rows: pl.DataFrame) -> float:
    return min([-5.0, *(float(value) for value in (*rows["low"], *rows["gain"]) if value is not None)])


def _most(rows: pl.DataFrame) -> float:
    return min(100.0, max([5.0, *(float(value) for value in (*rows["high"], *rows["gain"]) if value is not None)]))


def _losses(rows: pl.DataFrame, width: int) -> Any:
    names = rows["configuration"].unique(maintain_order=True).to_list()
    colours = alt.Scale(domain=names, range=[LIGHT["forward"], LIGHT["backward"]])
    line = alt.Chart(rows).mark_line(strokeWidth=2).encode(
        x=alt.X("step:Q", axis=axis("step")), y=alt.Y("loss:Q", scale=alt.Scale(zero=False), axis=axis("loss")),
        color=alt.Color("configuration:N", scale=colours), strokeDash=alt.StrokeDash("configuration:N", legend=None),
    )  # fmt: skip
    return line.properties(width=plot_width(width), height=_LOSS_HEIGHT)
