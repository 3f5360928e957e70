"""Where a step goes: its phases as one stacked bar."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.palette import LIGHT, PHASE
from stepscope.report.charts.style import NARROW, plot_width


def build(phases: pl.DataFrame, width: int) -> Any:
    """A bar of `phases` (columns phase, t0_ms, t1_ms, label, hover), as wide as a median step."""
    present = [phase for phase in PHASE if phase in phases["phase"].to_list()]
    legend = alt.Legend(columns=3 if width <= NARROW else len(present))
    scale = alt.Scale(domain=present, range=[PHASE[name] for name in present])
    colour = alt.Color("phase:N", scale=scale, legend=legend)
    span = alt.X("t0_ms:Q", axis=alt.Axis(title="time in a median step, ms", grid=False, tickCount=6))
    span = span.scale(nice=False, domainMin=0)
    bars = (
        alt.Chart(phases)
        .mark_bar(height=34, stroke=LIGHT["paper"], strokeWidth=1.5)
        .encode(x=span, x2="t1_ms:Q", color=colour, description="hover:N")
    )
    return alt.layer(bars).properties(width=plot_width(width, 24), height=38)
