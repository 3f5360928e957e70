"""Live bytes over the ops of a step that was never run: one training, or models against each other.

Side by side: training against inference, a row a model, as the figures 2 to 6 of the 2020 paper on training for edge
devices (there from massif). What runs across is the number of the op, because a dry run takes no time.
"""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.memory_step import held_in, panel
from stepscope.report.charts.palette import LIGHT
from stepscope.report.charts.style import plot_width

_TALL, _LOW = 280, 150  # px, of one panel and of several
_BETWEEN = 24  # px, for the axis of a further column
_ACROSS = "op of the step"


def build(series: pl.DataFrame, width: int, limit_mb: float | None = None) -> Any:
    """Areas of `series` (op, category, mb); a dashed rule where a limit is given."""
    return panel(series, plot_width(width), _TALL, _ACROSS, None, limit_mb, "op")


def build_side_by_side(series: pl.DataFrame, width: int) -> Any:
    """Panels of `series` (model, kind, op, category, mb): a row a model, a column a kind, one scale of MB for all."""
    most = series.group_by("model", "kind", "op").agg(pl.col("mb").sum())["mb"]
    top = float(most.to_numpy().max()) if len(most) else 1.0
    models, kinds = (series[name].unique(maintain_order=True).to_list() for name in ("model", "kind"))
    each = plot_width(width) // len(kinds) - _BETWEEN
    rows = []
    for model in models:
        last = model == models[-1]
        panels = []
        for kind in kinds:
            shown = series.filter((pl.col("model") == model) & (pl.col("kind") == kind))
            title = alt.Title(f"{model}, {kind}", anchor="start", fontSize=12, color=LIGHT["ink"])
            drawn = panel(shown, each, _LOW, _ACROSS if last else "", top, None, "op", held_in(series))
            panels.append(drawn.properties(title=title))
        rows.append(alt.hconcat(*panels, spacing=12))
    return alt.vconcat(*rows, spacing=10).resolve_scale(color="shared")
