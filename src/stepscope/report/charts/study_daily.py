"""The figures of `study daily`: accuracy, time and energy by day, a panel a batch size, a line a replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.palette import LIGHT
from stepscope.report.charts.style import axis, plot_width

_HEIGHT = 240
_REPLAYS = {"none": LIGHT["forward"], "reservoir": LIGHT["backward"], "all": LIGHT["optimizer"]}
Chart = Callable[[int], Any]
_DRAWN = {  # whether the axis begins with 0, and the caption
    "accuracy-by-day": (
        False,
        "Accuracy each evening by what is played again of older images; mean over seeds and its interval of 95 %.",
    ),
    "time-by-day": (True, "Training time of each day; mean over seeds and its interval of 95 %."),
    "energy-by-day": (True, "Energy of each day's training; mean over seeds and its interval of 95 %."),
}


def charts(frames: Mapping[str, pl.DataFrame]) -> dict[str, tuple[Chart, str]]:
    """The chart and caption of every figure that has numbers."""
    return {name: (_bound(frames[name], zero), caption) for name, (zero, caption) in _DRAWN.items() if name in frames}


def _bound(rows: pl.DataFrame, zero: bool) -> Chart:
    return lambda width: _panels(rows, rows["title"][0], zero, width)


def _panels(rows: pl.DataFrame, title: str, zero: bool, width: int) -> Any:
    """All panels have the same scale, so that batch sizes can be compared."""
    batches = rows["batch"].unique(maintain_order=True).to_list()
    columns = min(len(batches), 3)
    each = plot_width(width) // columns - 26
    scale = alt.Scale(zero=zero, domain=_domain(rows, zero), nice=True)
    drawn = [
        _panel(rows.filter(batch=batch), scale, title if place % columns == 0 else "").properties(
            width=each, height=_HEIGHT, title=_title(f"batch {batch}")
        )
        for place, batch in enumerate(batches)
    ]
    return alt.concat(*drawn, columns=columns)


def _domain(rows: pl.DataFrame, zero: bool) -> list[float]:
    known = [value for name in ("value", "low", "high") for value in rows[name].drop_nulls().to_list()]
    return [0.0 if zero else min(known), max(known)]


def _panel(rows: pl.DataFrame, scale: alt.Scale, title: str) -> Any:
    colour = alt.Color("replay:N", scale=alt.Scale(domain=list(_REPLAYS), range=list(_REPLAYS.values())))
    x = alt.X("day:Q", axis=axis("day", grid=False, tickMinStep=1, format="d"))
    y = alt.Y("value:Q", scale=scale, axis=axis(title))
    band = alt.Chart(rows.drop_nulls("low")).mark_area(opacity=0.14)
    line = alt.Chart(rows).mark_line(point=True, strokeWidth=2)
    tooltip = ["replay:N", "day:Q", "value:Q", "low:Q", "high:Q"]
    return alt.layer(
        band.encode(x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q", color=colour),
        line.encode(x=x, y=y, color=colour, tooltip=tooltip),
    )


def _title(text: str) -> alt.TitleParams:
    return alt.TitleParams(text, fontSize=12, fontWeight="normal", color=LIGHT["ink"])
