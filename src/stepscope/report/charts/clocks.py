"""Clocks and temperatures over the run: what throttles a device shows here first."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.palette import LIGHT
from stepscope.report.charts.style import axis, plot_width

TITLES = {"temperature": "°C", "core_frequency": "core clock, GHz", "frequency": "clock, GHz"}
_COLOURS = [LIGHT[name] for name in ("forward", "backward", "optimizer", "data", "other", "warn", "held-saved")]
_HEIGHT, _MOST_POINTS = 120, 400


def build(watched: pl.DataFrame, width: int) -> Any:
    """A panel a quantity of `watched` (quantity, scope, unit, t_s, value), a line a scope; a null breaks the line."""
    quantities = [name for name in TITLES if name in set(watched["quantity"])]
    rows = [_panel(watched.filter(pl.col("quantity") == name), TITLES[name], plot_width(width)) for name in quantities]
    return alt.vconcat(*rows, spacing=12).resolve_scale(color="independent")


def _panel(rows: pl.DataFrame, title: str, width: int) -> Any:
    every = max(1, len(rows) // rows["scope"].n_unique() // _MOST_POINTS)
    shown = rows.with_columns(
        value=pl.when(pl.col("unit") == "Hz").then(pl.col("value") / 1e9).otherwise("value"),
        name=pl.col("scope").str.replace("^(zone|core):", ""),
        piece=pl.col("value").is_null().cum_sum().over("scope"),
        turn=pl.int_range(pl.len()).over("scope") % every,
    ).filter((pl.col("turn") == 0) & pl.col("value").is_not_null())
    shown = shown.select("t_s", "value", "name", piece=pl.format("{} {}", "name", "piece"))
    names = shown["name"].unique(maintain_order=True).to_list()
    colours = [_COLOURS[at % len(_COLOURS)] for at in range(len(names))]
    dashes = [[1, 0] if at < len(_COLOURS) else [4, 2] for at in range(len(names))]
    scale = alt.Scale(domain=names, range=colours)
    x = alt.X("t_s:Q", axis=axis("time since the first step, s", grid=False, tickCount=8), scale=alt.Scale(nice=False))
    y = alt.Y("value:Q", axis=axis(title, tickCount=3), scale=alt.Scale(zero=False))
    line = alt.Chart(shown).mark_line(strokeWidth=1.4, interpolate="step-after")
    legend = alt.Legend(columns=3 if width < 500 else 6, labelLimit=120)
    dash = alt.StrokeDash("name:N", scale=alt.Scale(domain=names, range=dashes), legend=None)
    drawn = line.encode(
        x=x, y=y, color=alt.Color("name:N", scale=scale, legend=legend), strokeDash=dash, detail="piece:N"
    )
    return drawn.properties(width=width, height=_HEIGHT)
