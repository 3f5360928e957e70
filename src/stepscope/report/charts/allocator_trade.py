"""What each allocator costs: peak of the process against CPU time of a step, with the spread of the repetitions."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.palette import LIGHT
from stepscope.report.charts.style import axis, plot_width


def build(rows: pl.DataFrame, width: int) -> Any:
    """Points of `rows` (allocator, peak_mb, peak_low, peak_high, step_ms, step_low, step_high), named beside."""
    away = alt.Scale(zero=False, padding=30)
    x = alt.X("step_ms:Q", axis=axis("CPU time of a step, ms", grid=False), scale=away)
    y = alt.Y("peak_mb:Q", axis=axis("peak of the process, MB"), scale=away)
    drawn = alt.Chart(rows)
    across = drawn.mark_rule(color=LIGHT["other"]).encode(x="step_low:Q", x2="step_high:Q", y=y)
    upright = drawn.mark_rule(color=LIGHT["other"]).encode(x=x, y="peak_low:Q", y2="peak_high:Q")
    points = drawn.mark_point(filled=True, size=90, color=LIGHT["accent"], opacity=1).encode(x=x, y=y)
    names = drawn.mark_text(align="left", dx=10, dy=-8, fontSize=12, color=LIGHT["ink"])
    return alt.layer(across, upright, points, names.encode(x=x, y=y, text="allocator:N")).properties(
        width=plot_width(width), height=260
    )
