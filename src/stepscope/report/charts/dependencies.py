"""Chart of a step's schedules: what runs when, as recorded and as its dependencies would allow."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.style import NARROW, PHASE, axis, plot_width

_LEAST = 0.002  # of the step: what is shorter, or less apart, is drawn as one bar


def build_schedules(timeline: pl.DataFrame, width: int) -> Any:
    """Bars of `timeline` (schedule, lane, phase, t0_ns, t1_ns), a row a lane of each schedule."""
    drawn = join_near_spans(timeline).with_columns(
        pl.format("{}, {}", "schedule", "lane").alias("row"), t0_ms=pl.col("t0_ns") / 1e6, t1_ms=pl.col("t1_ns") / 1e6
    )
    present = [phase for phase in PHASE if phase in drawn["phase"].to_list()]
    legend = alt.Legend(columns=3 if width <= NARROW else len(present))
    colour = alt.Color(
        "phase:N", scale=alt.Scale(domain=present, range=[PHASE[name] for name in present]), legend=legend
    )
    rows = drawn["row"].unique(maintain_order=True).to_list()
    y = alt.Y("row:N", sort=rows, axis=alt.Axis(title=None, labelLimit=220, ticks=False, domain=False))
    x = alt.X("t0_ms:Q", axis=axis("time in the step, ms")).scale(nice=False, domainMin=0)
    chart = alt.Chart(drawn).mark_bar().encode(x=x, x2="t1_ms:Q", y=y, color=colour)
    return chart.properties(width=plot_width(width) - (90 if width <= NARROW else 200), height=alt.Step(22))


def join_near_spans(timeline: pl.DataFrame) -> pl.DataFrame:
    """Return the spans with neighbours of one phase as one, where less lies between them than a picture shows."""
    near = _LEAST * float(timeline["t1_ns"].max() or 0.0)  # type: ignore[arg-type]
    lanes = ["schedule", "lane"]
    order = timeline["schedule"].unique(maintain_order=True).to_list()
    ordered = timeline.sort("lane", "t0_ns", maintain_order=True)
    apart = (pl.col("t0_ns") - pl.col("t1_ns").shift(1) > near).over(lanes)
    other = (pl.col("phase") != pl.col("phase").shift(1)).over(lanes)
    run = (apart | other).fill_null(True).cum_sum().over(lanes)
    spans = ordered.with_columns(run=run).group_by(*lanes, "run", maintain_order=True)
    found = spans.agg(pl.col("phase").first(), pl.col("t0_ns").min(), pl.col("t1_ns").max())
    wide = found.filter(pl.col("t1_ns") - pl.col("t0_ns") >= near / 2)
    places = pl.col("schedule").replace_strict(order, range(len(order)), return_dtype=pl.Int64)
    return wide.sort(places, "lane", "t0_ns").drop("run")
