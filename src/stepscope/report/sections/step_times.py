"""Step time of every step, with the median and the distribution."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analysis.device.throttling import detect_throttling
from stepscope.analysis.time.tracks import LEVEL_STEPS, clocks_and_heat, drift, step_time_level_changes
from stepscope.report.charts import sensors
from stepscope.report.charts.steps import STEP_KINDS, build_step_band, build_step_times
from stepscope.report.page.parts import Figure, Items, Note, Part, Section
from stepscope.units import amount, capitalize_first, estimate, number, plural

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "Steps"
ORDER = 52
FIGURES = ("step-times", "clocks")

_MOST_POINTS = 1_500  # beyond, neighbours are drawn as a band
_BANDS = 400
_BINS = 32
_TALL = 3.0  # times the median: what lies above is drawn at the upper edge


def build(run: Run) -> Section:
    """Scatter and histogram, or a band where there are too many steps for points."""
    warm = run.warmup_steps
    steps = run.steps.with_columns(ms=(pl.col("t1_ns") - pl.col("t0_ns")) / 1e6, kind=_step_kind(warm))
    if steps.is_empty():
        return Section("no training step was recorded")
    steady = steps.slice(warm)
    drawn_steps = steady if len(steady) else steps
    top, low = _axis_limits_ms(drawn_steps["ms"])
    row = run.metrics().filter(pl.col("metric") == "step_time")
    median = float(row["value"][0]) / 1e6 if len(row) else None
    drawn = (
        _scatter_figure(steps, drawn_steps, median, top, low) if len(steps) <= _MOST_POINTS else _band(steps, top, low)
    )
    text = f"The {row['note'][0].partition(';')[0]} is {amount(row['value'][0], 'ns')}. " if len(row) else ""
    first = "The first step is" if min(warm, len(steps)) == 1 else f"The first {min(warm, len(steps))} steps are"
    excluded = f"{text}{first} warm-up and excluded from every number."
    return Section(excluded if warm else text, (drawn, *_steadiness(run)), closed=True)


def _steadiness(run: Run) -> Iterator[Part]:
    """Return the steadiness of the run: drift, changes of level, throttling; clocks and temperatures over time."""
    watched = clocks_and_heat(run)
    yield Items((_drift(run), *_level_change_items(run), _throttled(run)), "Drift and throttling")
    read = watched.filter(pl.col("value").is_not_null())
    if not any(map(sensors.is_clock_or_temperature, read["quantity"].unique())):
        yield Note("No temperature and no clock was read in this run: heat shows in the step times only.")
        return
    start = int(run.steps["t0_ns"][0])
    clocks = watched.with_columns(t_s=(pl.col("t_ns") - start) / 1e9)
    caption = "Clocks and temperatures as they were read, one line per sensor; a broken line is a gap."
    yield Figure(lambda width: sensors.build_clocks(clocks, width), caption, FIGURES[1])


def _drift(run: Run) -> tuple[str, str]:
    change = drift(run)
    if change is None:
        return "Drift cannot be judged.", "At least six steps at either end of the run are needed."
    parts = [estimate(*median.row, "ns") for median in (change.first, change.last)]
    text = f"First {change.steps} steps {parts[0]}, last {change.steps} steps {parts[1]}, medians with 95 % CIs."
    if not change.is_clear:
        return (
            f"Cannot tell whether the run drifts: {number(change.ratio, 3)}x the time at its end, within the CIs.",
            text,
        )
    slower = "slower" if change.ratio > 1 else "faster"
    return f"The run grew {slower}: the last steps take {number(change.ratio, 3)}x the time of the first.", text


def _level_change_items(run: Run) -> Iterator[tuple[str, str]]:
    changes = step_time_level_changes(run)
    if changes is None:
        yield (
            "Changes of level cannot be judged.",
            f"They are looked for from {LEVEL_STEPS} steps after the warm-up on.",
        )
        return
    if not changes:
        yield (
            "No lasting change of level was found.",
            "CUSUM over medians of 5 steps; a slow drift is none.",
        )
    for step, change in changes:
        before, after = amount(change.before, "ns"), amount(change.after, "ns")
        yield (
            f"From step {step} on, a step took {number(change.ratio, 3)}x the time.",
            f"{before} before, {after} after.",
        )


def _throttled(run: Run) -> tuple[str, str]:
    is_throttled, why = detect_throttling(run)
    if is_throttled is None:
        return "Throttling was not read.", "No sensor of this run reports it, and no clock of a core was read."
    text = "; ".join(why)
    return "Throttled." if is_throttled else "Not throttled.", f"{capitalize_first(text)}."


def _step_kind(warmup_steps: int) -> pl.Expr:
    warm, recorded, timed = STEP_KINDS
    is_warm = pl.int_range(pl.len()) < warmup_steps
    return pl.when(is_warm).then(pl.lit(warm)).when("recorded").then(pl.lit(recorded)).otherwise(pl.lit(timed))


def _axis_limits_ms(ms: pl.Series) -> tuple[float, float]:
    """Upper and lower end of the axis, ms: the steps after warm-up, but no more than some times their median."""
    values = ms.to_numpy()
    top = min(float(values.max()), _TALL * float(np.median(values)))
    low = float(values.min())
    room = 0.08 * max(top - low, 0.02 * top)
    return top + room, max(low - room, 0.0)


def _scatter_figure(
    steps: pl.DataFrame, drawn_steps: pl.DataFrame, median_ms: float | None, top: float, low: float
) -> Figure:
    points = steps.select(
        "step",
        pl.col("ms").clip(low, top),
        "kind",
        above=pl.col("ms") > top,
        hover=pl.format("step {}: {} ms ({})", "step", pl.col("ms").round(3), "kind"),
    )
    bars = _bars(drawn_steps["ms"], top, low)
    over = int(points["above"].sum())
    caption = "Each mark is a step; the line is the median; on the right, how many steps took how long."
    if low > 0:
        caption += " The axis does not begin at 0."
    if over:
        caption += f" {plural(over, 'step')} above the axis at the upper edge: hover for the time."
    return Figure(lambda width: build_step_times(points, bars, median_ms, top, low, width), caption, FIGURES[0])


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
    return Figure(lambda drawn: build_step_band(bands, top, low, drawn), caption, FIGURES[0])
