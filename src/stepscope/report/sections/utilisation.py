"""Utilisation of every core over three consecutive steps (the 2019 paper's figure 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.report.charts import sensors as chart
from stepscope.report.page.parts import Figure, Part, Section
from stepscope.report.table import Cell, Column, Table, interval_column, number_column, percent_bar_column
from stepscope.units import duration, percent, plural

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "Cores"
ORDER = 30
FIGURES = ("core-utilisation",)

_STEPS = 3  # as the paper's figure
_FEW_WINDOWS = 12  # with fewer, steps are shorter than the counters resolve: more steps are shown
_MOST_WINDOWS = 160  # drawn a core
_MOST_STEPS = 60


def build(run: Run) -> Section:
    """Timeline of each core, and its utilisation over the whole run."""
    table = _table(run)
    middle_steps, timeline = _middle_steps_with_timeline(run)
    tables = (table,) if table else ()
    if middle_steps.is_empty() or timeline.is_empty():
        return Section("busy time was not sampled, or no step lasted past the warm-up", tables, closed=True)
    if timeline["utilisation"].drop_nulls().is_empty():
        return Section("they were not sampled often enough to show anything within the steps", tables, closed=True)
    steps = plural(len(middle_steps), "consecutive step")
    lede = f"How busy each core was over {steps} from the middle of the run; dashed lines are starts of steps."
    if len(middle_steps) > _STEPS:
        lede += f" Three steps have fewer than {_FEW_WINDOWS} readings of the busy counters, so more are shown."
    return Section(lede, (_figure(run, middle_steps, timeline), *tables), closed=True)


def _middle_steps_with_timeline(run: Run) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Consecutive steps from the middle of the steady part, and the timeline of the cores over them."""
    steady = run.steps.slice(run.warmup_steps)
    count = min(_STEPS, len(steady))
    while count:
        first = (len(steady) - count) // 2
        middle_steps = steady.slice(first, count)
        timeline = run.core_timeline(int(middle_steps["t0_ns"][0]), int(middle_steps["t1_ns"][-1]))
        windows = 0 if timeline.is_empty() else len(timeline) // timeline["scope"].n_unique()
        if timeline.is_empty() or windows >= _FEW_WINDOWS or count >= min(len(steady), _MOST_STEPS):
            return middle_steps, timeline
        count = min(len(steady), _MOST_STEPS, max(count + 1, count * _FEW_WINDOWS // max(windows, 1)))
    return steady.clear(), pl.DataFrame()


def _figure(run: Run, middle_steps: pl.DataFrame, timeline: pl.DataFrame) -> Part:
    start = int(middle_steps["t0_ns"][0])
    longest = int((timeline["t1_ns"] - timeline["t0_ns"]).max())
    windows = timeline.select(
        core="scope",
        label=pl.col("scope").str.replace(":", " "),
        t0_ms=(pl.col("t0_ns") - start) / 1e6,
        t1_ms=(pl.col("t1_ns") - start) / 1e6,
        percent=pl.col("utilisation") * 100,
    )
    windows = windows.with_columns(hover=_hover())
    per_core = len(timeline) // timeline["scope"].n_unique()
    edges = pl.DataFrame({"t_ms": [(t - start) / 1e6 for t in [*middle_steps["t0_ns"], middle_steps["t1_ns"][-1]]]})
    if per_core > _MOST_WINDOWS:
        windows, longest = _merge_windows(windows, per_core, longest)
    caption = f"Mean over windows of {duration(longest)}, two readings or two ticks of the counter at least"
    caption += f" (source: {', '.join(sources)})." if (sources := _sources(run)) else "."
    if windows["percent"].null_count():
        caption += " Tinted: nothing was read."
    return Figure(lambda width: chart.build_utilisation(windows, edges, width), caption, FIGURES[0])


def _sources(run: Run) -> list[str]:
    """Return where the busy time of the cores was read, the number of the core left open."""
    busy = run.metrics().filter(pl.col("metric") == "core_utilisation")
    return busy["source"].drop_nulls().str.replace(r"cpu\d+", "cpu*").unique(maintain_order=True).to_list()


def _hover() -> pl.Expr:
    unread = pl.when(pl.col("percent").is_null()).then(pl.lit("not measured"))
    text = unread.otherwise(pl.format("{} % busy", pl.col("percent").round(0).cast(pl.Int64)))
    return pl.format("{}, {} to {} ms: {}", "label", pl.col("t0_ms").round(1), pl.col("t1_ms").round(1), text)


def _merge_windows(windows: pl.DataFrame, per_core: int, longest_ns: int) -> tuple[pl.DataFrame, int]:
    """Neighbouring windows joined to what can be drawn; one that nothing was read in leaves the whole unread."""
    joined = -(-per_core // _MOST_WINDOWS)
    place = pl.int_range(pl.len()).over("core") // joined
    mean = pl.when(pl.col("percent").null_count() == 0).then(pl.col("percent").mean()).alias("percent")
    grouped = windows.with_columns(place=place).group_by("core", "label", "place", maintain_order=True)
    frame = grouped.agg(pl.col("t0_ms").first(), pl.col("t1_ms").last(), mean).drop("place")
    return frame.with_columns(hover=_hover()), longest_ns * joined


def _table(run: Run) -> Table | None:
    metrics = run.metrics()
    busy = metrics.filter(pl.col("metric") == "core_utilisation")
    if busy.is_empty():
        return None
    idle = metrics.filter(pl.col("metric") == "idle_state_ratio").select("scope", idle="value")
    columns = (
        Column("Core", False, of=lambda row: Cell(row["scope"].replace(":", " "), row["scope"])),
        percent_bar_column("Utilisation", "value", meaning="Active time of the core over total time (Eq. 1)"),
        interval_column("low", "high", "1"),
        number_column("Idle residency", "idle", percent, meaning="Share of the time in which its utilisation is 0"),
    )
    notes = [note for note in busy["note"].unique(maintain_order=True) if note]
    caption = f"Over all steps after warm-up ({', '.join(notes)})." if notes else "Over all steps after warm-up."
    rows = busy.join(idle, on="scope", how="left", maintain_order="left").iter_rows(named=True)
    return Table.from_rows("cores", columns, rows, caption, lively=len(busy) > 16)
