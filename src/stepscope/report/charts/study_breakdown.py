"""The figures of `study breakdown`: time, energy and saved memory by kind of operation, and memory over the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts import memory_dry_step
from stepscope.report.charts.palette import LIGHT
from stepscope.report.charts.style import axis, plot_width

_ROW, _NAMES = 34, 210  # px: a bar, and room for the name of a model
_COLOURS = {
    "convolution": "forward", "batch norm": "backward", "other norms": "held-buffer", "attention": "held-parameter",
    "recurrent": "held-gradient", "matrix product": "held-workspace", "activation": "data", "pooling": "held-saved",
    "loss": "warn", "dropout": "accent", "data": "gap", "code of the layers": "rule",
    "embedding": "ink", "sums and products": "held-temporary",
    "moving and filling": "muted", "optimizer": "optimizer", "other": "held-other", "between operations": "residual",
}  # fmt: skip
_BARS = {
    "time-by-family": ("ms a step", "Time of a step by kind of operation, training and inference."),
    "energy-by-family": ("mJ a step", "Energy of a step by kind of operation, training and inference."),
    "saved-by-family": ("MB", "What is kept for backward at the peak, by the kind of operation that made it."),
}
Chart = Callable[[int], Any]


def charts(frames: Mapping[str, pl.DataFrame]) -> dict[str, tuple[Chart, str]]:
    """The chart and caption of every figure that has numbers."""
    drawn: dict[str, tuple[Chart, str]] = {}
    if "memory-over-step" in frames:
        series = frames["memory-over-step"]
        caption = "Live tensors over the operations of a step, training and inference, from a dry run."
        drawn["memory-over-step"] = (lambda width: memory_dry_step.build_side_by_side(series, width), caption)
    for name, (title, caption) in _BARS.items():
        if name in frames:
            drawn[name] = (_bound(frames[name], title), caption)
    return drawn


def _bound(rows: pl.DataFrame, title: str) -> Chart:
    return lambda width: _bars(rows, title, width)


def _bars(rows: pl.DataFrame, title: str, width: int) -> Any:
    """A stacked bar for each model and kind; the same family has the same colour in all of them."""
    shown = rows.with_columns(bar=pl.format("{}, {}", "model", "kind"))
    names = shown.sort("place")["family"].unique(maintain_order=True).to_list()
    bars = shown["bar"].unique(maintain_order=True).to_list()
    scale = alt.Scale(domain=names, range=[LIGHT[_COLOURS.get(name, "other")] for name in names])
    y = alt.Y("bar:N", sort=bars, axis=axis("", grid=False, labelLimit=_NAMES))
    x = alt.X("value:Q", stack="zero", axis=axis(title, format="~s"))
    colour = alt.Color("family:N", scale=scale, legend=alt.Legend(columns=4))
    chart = alt.Chart(shown).mark_bar(height={"band": 0.7}).encode(x=x, y=y, color=colour, order="place:Q")
    return chart.properties(width=plot_width(width, _NAMES + 20), height=_ROW * len(bars))
