"""Power and energy of the board by component and rail, over time, and how far to trust them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from stepscope.analysis.energy.tables import ESTIMATED, NO_INTERVAL
from stepscope.quantities import simulated_badge
from stepscope.report.charts import sensors as chart
from stepscope.report.page.parts import Facts, Figure, Items, More, Part, Section
from stepscope.report.table import Cell, Column, Row, Table, interval_column, number_column, text_column
from stepscope.units import bytes_, capitalize_first, component_label, number

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "Energy"
ORDER = 35
FIGURES = ("power", "power-total")

_MOST_RAILS = 12  # drawn
_NEVER = "Nothing is filled in for a gap: energy is of the covered time, and its CI allows for the gap."


def build(run: Run) -> Section:
    """Energy by component and rail, power over time, notes; without a sensor, what was tried."""
    totals, about = run.energy_totals(), _board(run)
    badge = f"{simulated_badge(run.simulated)}, not of this machine. " if run.simulated else ""
    if totals.is_empty():
        return Section(_why_no_power(run))
    further = _timeline(run) if run.rail_energy()["rail"].n_unique() > 1 else []
    more: list[Part] = [_components(totals), *further, *_rails(run.rail_energy())]
    if run.energy_tables.notes:
        more.append(
            Items(tuple((f"{capitalize_first(note)}.", "") for note in run.energy_tables.notes), "What to know")
        )
    parts = (*_timeline(run, 1), More("Energy by component and rail, what to know, the board", (*more, *about)))
    return Section(f"{badge}{_opening_sentence(run)}", parts)


def _opening_sentence(run: Run) -> str:
    kinds = run.energy_totals()["kind"].unique().to_list()
    estimate = " Estimated rows come from the power model that was given, not from a sensor." * ("estimated" in kinds)
    covers = f" The total is of {run.rails.covers}." if run.rails.covers else " No total: see the notes."
    return f"Over the steps after warm-up, with 95 % CIs.{covers}{estimate}"


def _why_no_power(run: Run) -> str:
    if run.rails.lines:
        return "power was sampled, but no step lasted past the warm-up"
    return "no power was measured; it is unknown, not 0"


def _components(totals: pl.DataFrame) -> Table:
    measured = "measured by a sensor, estimated by a power model, or simulated"
    columns = (
        text_column("Component", "component", component_label),
        text_column("Kind", "kind", meaning=measured),
        number_column("Power", "watts_mean", "W"),
        _interval_column("watts_low", "watts_high", "W"),
        number_column("Energy per step", "joules_per_step", "J"),
        number_column("per sample", "joules_per_sample", "J"),
        number_column("Energy", "joules", "J"),
        _interval_column("low", "high", "J"),
        number_column(
            "Idle", "idle_watts", "W", meaning="Power before the first step, while the training process was idle"
        ),
        number_column("Gaps", "gap_s", lambda gap: f"{number(gap)} s", meaning="Time in which nothing was read"),
        Column("Rail", False, of=lambda row: Cell(f"{row['rail']} ({row['source']})", row["rail"])),
    )
    caption = f"{_NEVER} 'unattributed' is what the total has beside the rails measured inside it."
    return Table.from_rows("energy", columns, totals.iter_rows(named=True), caption, lively=False)


def _rails(rails: pl.DataFrame) -> list[Part]:
    columns = (
        text_column("Rail", "rail"),
        text_column("Inside", "inside", meaning="The measured rail that contains it: the two are never added"),
        text_column("Feeds", "component", component_label),
        number_column("Power", "watts_mean", "W"),
        _interval_column("watts_low", "watts_high", "W"),
        number_column("Energy", "joules", "J"),
        text_column("Sensor", "source"),
        text_column("Meaning", "meaning"),
    )
    return [Table.from_rows("rails", columns, rails.iter_rows(named=True), lively=len(rails) > _MOST_RAILS)]


def _timeline(run: Run, most: int = _MOST_RAILS) -> list[Part]:
    """Power over time, a row a rail; of the whole device alone where only one is wanted."""
    steps = run.steps
    start, end = int(steps["t0_ns"][0]), int(steps["t1_ns"][-1])
    windows = run.power_timeline(start, end)
    every = most > 1 or windows["rail"].n_unique() == 1  # the one rail is all of them, and has no second figure
    if most == 1:
        windows = _whole_device(run, windows)
    drawn = windows["rail"].unique(maintain_order=True).to_list()[:most]
    drawn_windows = windows.filter(pl.col("rail").is_in(drawn)).select(
        pl.when("estimated").then(pl.format("{} (estimated)", "rail")).otherwise("rail").alias("rail"),
        "watts",
        "estimated",
        t0_s=(pl.col("t0_ns") - start) / 1e9,
        t1_s=(pl.col("t1_ns") - start) / 1e9,
    )
    if drawn_windows["watts"].drop_nulls().is_empty():
        return []
    drawn_windows = drawn_windows.with_columns(hover=_hover())
    caption = (
        "Mean power of short windows, warm-up included; a sensor that averages smooths it. Tinted: nothing was read."
    )
    return [Figure(lambda width: chart.build_power(drawn_windows, width), caption, FIGURES[0 if every else 1])]


def _whole_device(run: Run, windows: pl.DataFrame) -> pl.DataFrame:
    """Power over time of the total: of its one rail, or of the sum of its rails where they were read together.

    Without either, of the rail that took most energy.
    """
    parts = windows.filter(pl.col("rail").is_in([line.name for line in run.rails.total or ()]))
    count = parts["rail"].n_unique()
    read = pl.col("watts").is_not_null().all()
    whole = parts.group_by("t0_ns", "t1_ns", maintain_order=True).agg(
        pl.len(), pl.col("estimated").any(), watts=pl.when(read).then(pl.col("watts").sum())
    )
    if count and (whole["len"] == count).all():
        return whole.with_columns(rail=pl.lit(parts["rail"][0] if count == 1 else run.rails.covers or "total"))
    energy = run.rail_energy().sort("joules", descending=True, nulls_last=True)
    return windows.filter(pl.col("rail") == energy["rail"][0])


def _hover() -> pl.Expr:
    unread = pl.when(pl.col("watts").is_null()).then(pl.lit("not measured"))
    text = unread.otherwise(pl.format("{} W", pl.col("watts").round(3)))
    return pl.format("{}, {} to {} s: {}", "rail", pl.col("t0_s").round(3), pl.col("t1_s").round(3), text)


def _board(run: Run) -> list[Part]:
    """The board, its clusters of cores and its memory; then its traps."""
    board = run.board
    simulated = run.simulated is not None
    facts = [("Board, simulated" if simulated else "Board", board.title)]
    clusters = "; ".join(f"{name}: {', '.join(map(str, cores))}" for name, cores in run.core_clusters.items())
    if clusters and not simulated:  # the cores are of the machine that trained
        facts.append(("Cores by cluster", clusters))
    if board.os_keeps_bytes is not None:
        facts.append(("Memory that firmware and an idle system keep", f"roughly {bytes_(board.os_keeps_bytes)}"))
    parts: list[Part] = [Facts(tuple(facts))]
    if board.traps:
        parts.append(Items(tuple((trap, "") for trap in board.traps), f"Good to know about {board.title}"))
    return parts


def _interval_column(low: str, high: str, unit: str) -> Column:
    bounds = interval_column(low, high, unit)

    def cell(row: Row) -> Cell | str:
        none = row["kind"] == ESTIMATED and row[low] is None
        return Cell(NO_INTERVAL, row[low]) if none else bounds.of(row)

    return replace(bounds, of=cell)
