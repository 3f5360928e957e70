"""Memory at the peak by category against batch size (the 2019 paper's figure 9): one panel a model."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.palette import HELD, LIGHT
from stepscope.report.charts.style import axis, plot_width

_HEIGHT = 240  # px


def build(rows: pl.DataFrame, width: int, limit_mb: float | None = None) -> Any:
    """Bars of `rows` (model, batch, category, mb); a batch that did not fit has mb null and is marked."""
    models = rows["model"].unique(maintain_order=True).to_list()
    names = [name for name in HELD if name in set(rows["category"])]
    every = plot_width(width) // max(len(models), 1) - 18
    fit = rows.filter(pl.col("mb").is_not_null())
    tops = fit.group_by("model", "batch").agg(pl.col("mb").sum())["mb"].to_list()
    top = max([*tops, limit_mb or 0.0, 1.0])
    panels = [
        _panel(rows.filter(pl.col("model") == model), names, top, limit_mb, place == 0).properties(
            width=every, height=_HEIGHT, title=alt.Title(model, fontSize=12, color=LIGHT["ink"])
        )
        for place, model in enumerate(models)
    ]
    return alt.hconcat(*panels).resolve_scale(color="shared")


def _panel(rows: pl.DataFrame, names: list[str], top: float, limit_mb: float | None, first: bool) -> Any:
    order = {name: place for place, name in enumerate(names)}
    drawn = rows.filter(pl.col("mb").is_not_null())
    drawn = drawn.with_columns(place=pl.col("category").replace_strict(order, return_dtype=pl.Int64))
    batches = rows["batch"].unique().sort().to_list()
    x = alt.X("batch:O", sort=batches, scale=alt.Scale(domain=batches), axis=axis("batch size", labelAngle=0))
    scale = alt.Scale(domain=[0, top])
    y = alt.Y("mb:Q", scale=scale, axis=axis("memory at the peak, MB" if first else "", labels=first), stack="zero")
    colours = alt.Scale(domain=names, range=[HELD[name] for name in names])
    colour = alt.Color("category:N", scale=colours)
    bars = alt.Chart(drawn).mark_bar().encode(x=x, y=y, color=colour, order="place:Q")
    layers = [bars]
    failed = rows.filter(pl.col("mb").is_null()).select("batch").unique()
    if len(failed):
        marks = alt.Chart(failed).mark_text(
            text="does not fit", angle=270, align="left", color=LIGHT["warn"], fontSize=11
        )
        layers.append(marks.encode(x=x, y=alt.datum(top * 0.02, scale=scale)))
    if limit_mb is not None:
        rule = alt.Chart(pl.DataFrame({"mb": [limit_mb]})).mark_rule(color=LIGHT["warn"], strokeDash=[5, 4])
        layers.append(rule.encode(y=alt.Y("mb:Q", scale=scale)))
    return alt.layer(*layers)
