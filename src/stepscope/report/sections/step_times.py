"""Step time of every step, with the median and the distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.report.charts import step_band, step_times
from stepscope.report.page.parts import Figure, Section
from stepscope.report.page.reading import plural, quantity
from stepscope.report.sections._drawing import figure

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "Step times"
ORDER = 20
FIGURES = ("step-times",)

_MOST_POINTS = 1_500  # beyond, neighbours are drawn as a band
_BANDS = 400
_BINS = 32
_TALL = 3.0  # times the median: what lies above is drawn at the upper edge


def build(run: Run) -> Section:
    """Scatter and histogram, or a band where there are too many steps for points."""
    warm = run.warmup_steps
    steps = run.steps.with_columns(ms=(pl.col("t1_ns") - pl.col("t0_ns")) / 1e6, kind=_kind(warm))
    if steps.is_empty():
        return Section("No training step was recorded.")
    steady = steps.slice(warm)
    shown = steady if len(steady) else steps
    top, low = _limits(shown["ms"])
    row = run.metrics().filter(pl.col("metric") == "step_time")
    median = float(row["value"][0]) / 1e6 if len(row) else None
    drawn = _scatter(steps, shown, median, top, low) if len(steps) <= _MOST_POINTS else _band(steps, top, low)
    said = f"The {row['note'][0].partition(';')[0]} is {quantity(row['value'][0], 'ns')}. " if len(row) else ""
    left_out = f"{said}The first {plural(min(warm, len(steps)), 'step')} are warm-up and left out of every number."
    return Section(left_out if warm else said, (drawn,))


def _kind(warmup_steps: int) -> pl.Expr:
    warm, recorded, timed = step_times.KINDS
    is_warm = pl.int_range(pl.len()) < warmup_steps
    return pl.when(is_warm).then(pl.lit(warm)).when("recorded").then(pl.lit(recorded)).otherwise(pl.lit(timed))


def _limits(ms: pl.Series) -> tuple[float, float]:
    """Upper and lower end of the axis, ms: the steps after warm-up, but no more than some times their median."""
    values = ms.to_numpy()
    top = min(float(values.max()), _TALL * float(np.median(values)))
    low = float(values.min())
    room = 0.08 * max(top - low, 0.02 * top)
    return top + room, max(low - room, 0.0)


def _scatter(steps: pl.DataFrame, shown: pl.DataFrame, median_ms: float | None, top: float, low: float) -> Figure:
    points = steps.select(
        "step",
        pl.col("ms").clip(low, top),
        "kind",
        above=pl.col("ms") > top,
        hover=pl.format("step {}: {} ms ({})", "step", pl.col("ms").round(3), "kind"),
    )
    bars = _bars(shown["ms"], top, low)
    over = int(points["above"].sum())
    caption = "Each mark is a step; the line is the median; on the right, how many steps took how long."
    if low > 0:
        caption += " The axis does not begin at 0."
    if over:
        caption += f" {plural(over, 'step')} above the axis at the upper edge: hover for the time."
    return figure(lambda width: step_times.build(points, bars, median_ms, top, low, width), caption, FIGURES[0])


def _bars(ms: pl.Series, top: float, low: float) -> pl.DataFrame:
    counts, edges = np.histogram(ms.clip(low, top).to_numpy(), bins=_BINS, range=(low, top))
    frame = pl.DataFrame({"ms0": edges[:-1], "ms1": edges[1:], "steps": counts}).filter(pl.col("steps") > 0)
    hover = pl.format("{} steps of {} to {} ms", "steps", pl.col("ms0").round(2), pl.col("ms1").round(2))
    return frame.with_columns(hover=hover)


def _band(steps: pl.DataFrame, top: float, low: float) -> Figure:
    width = -(-len(steps) // _BANDS)
    bands = steps.group_by(pl.int_range(pl.len()) // width, maintain_order=True).agg(
        pl.col("step").first(),
        low_ms=pl.col("ms").min(),
        middle_ms=pl.col("ms").median(),
        high_ms=pl.col("ms").max(),
    )
    bands = bands.select("step", "low_ms", "middle_ms", "high_ms")
    top = max(top, float(bands["middle_ms"].max() or 0))  # type: ignore[arg-type]
    caption = f"The line is the median, the band the range of each {width} steps; it is cut at the upper edge."
    return figure(lambda drawn: step_band.build(bands, top, low, drawn), caption, FIGURES[0])
