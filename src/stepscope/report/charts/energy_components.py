"""Energy of a step by component: the part above idle beside what the device draws anyway."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.palette import LIGHT
from stepscope.report.charts.style import axis, plot_width

_PARTS = {"above idle": LIGHT["forward"], "idle": LIGHT["other"], "idle unknown": LIGHT["data"]}
_ROW = 26  # px


def build(parts: pl.DataFrame, width: int) -> Any:
    """Bars of `parts` (rail, part, joules, hover); part is one of "above idle", "idle" and "idle unknown"."""
    present = [name for name in _PARTS if name in parts["part"].to_list()]
    colours = alt.Scale(domain=present, range=[_PARTS[name] for name in present])
    rails = parts["rail"].unique(maintain_order=True).to_list()
    bars = alt.Chart(parts).mark_bar(height=_ROW - 8)
    bars = bars.encode(
        x=alt.X("joules:Q", axis=axis("energy of a step, J", grid=True)),
        y=alt.Y("rail:N", sort=rails, axis=axis("", grid=False, labelLimit=150)),
        color=alt.Color("part:N", scale=colours),
        order=alt.Order("place:Q"),
        description="hover:N",
    )
    return alt.layer(bars).properties(width=plot_width(width, 180), height=_ROW * len(rails))
