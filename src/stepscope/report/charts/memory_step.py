"""Live bytes over one step by category, stacked; several steps side by side on one scale.

One step is the first figure of many of its kind in the paper on training for edge devices (2020, figures 2 to 6, there
from massif): training against inference, and models against each other, are the same drawing with several panels.
"""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.palette import HELD, LIGHT
from stepscope.report.charts.style import NARROW, axis, plot_width

_TALL, _LOW = 280, 150  # px, of one panel and of several
_NARROW = 400  # px: fewer numbers have room below


def build(series: pl.DataFrame, width: int, limit_mb: float | None = None) -> Any:
    """Areas of `series` (t_ms, category, mb), in the order of the categories; a dashed rule where a limit is given."""
    return panel(series, plot_width(width), _TALL, "time since the step began, ms", None, limit_mb)


def build_several(series: pl.DataFrame, width: int) -> Any:
    """A panel for each `label` of `series` (label, t_ms, category, mb), below each other; all share the scale of MB."""
    most = series.group_by("label", "t_ms").agg(pl.col("mb").sum())["mb"]
    top = float(most.to_numpy().max()) if len(most) else 1.0
    labels = series["label"].unique(maintain_order=True).to_list()
    panels = []
    for place, label in enumerate(labels):
        title = "time since the step began, ms" if place == len(labels) - 1 else ""
        shown = series.filter(pl.col("label") == label)
        drawn = panel(shown, plot_width(width), _LOW, title, top, names=held_in(series))
        panels.append(drawn.properties(title=alt.Title(label, anchor="start", fontSize=12, color=LIGHT["ink"])))
    return alt.vconcat(*panels, spacing=10).resolve_scale(color="shared")


def held_in(series: pl.DataFrame) -> list[str]:
    """Categories of a table in the order in which they are stacked."""
    return [name for name in HELD if name in set(series["category"])]


def panel(
    series: pl.DataFrame,
    width: int,
    height: int,
    title: str,
    top: float | None,
    limit_mb: float | None = None,
    across: str = "t_ms",
    names: list[str] | None = None,
) -> Any:
    """Stacked areas over the column `across`, named by `title`; panels that share scales share `top` and `names`."""
    names = held_in(series) if names is None else names
    order = {name: place for place, name in enumerate(names)}
    shown = series.with_columns(place=pl.col("category").replace_strict(order, return_dtype=pl.Int64))
    scale = alt.Scale(domainMin=0) if top is None else alt.Scale(domain=[0, top])
    x = alt.X(
        f"{across}:Q", axis=axis(title, grid=False, tickCount=8 if width > _NARROW else 4), scale=alt.Scale(nice=False)
    )
    y = alt.Y("mb:Q", axis=axis("live tensors, MB"), scale=scale, stack="zero")
    colours = alt.Scale(domain=names, range=[HELD[name] for name in names])
    legend = alt.Legend(columns=3 if width <= NARROW else len(names))
    areas = (
        alt.Chart(shown)
        .mark_area(interpolate="step-after", strokeWidth=0)
        .encode(x=x, y=y, color=alt.Color("category:N", scale=colours, legend=legend), order="place:Q")
    )
    if limit_mb is None:
        return areas.properties(width=width, height=height)
    rule = alt.Chart(pl.DataFrame({"mb": [limit_mb]})).mark_rule(
        color=LIGHT["warn"], strokeDash=[5, 4], strokeWidth=1.5
    )
    return alt.layer(areas, rule.encode(y="mb:Q")).properties(width=width, height=height)
