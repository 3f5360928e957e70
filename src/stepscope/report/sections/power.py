"""Power and energy of the board by component and rail, over time, and how far to trust them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.analysis.energy.tables import ESTIMATED, NO_INTERVAL
from stepscope.quantities import simulated_badge
from stepscope.report.charts import sensors as chart
from stepscope.report.page.parts import Cell, Column, Facts, Items, More, Part, Section, Table, figure
from stepscope.units import NOT_MEASURED, amount, bytes_, component_label, interval, number

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
        return Section(_nothing(run))
    further = _timeline(run) if run.rail_energy()["rail"].n_unique() > 1 else []
    more: list[Part] = [_components(totals), *further, *_rails(run.rail_energy())]
    if run.energy_tables.notes:
        more.append(Items(tuple((_sentence(note), "") for note in run.energy_tables.notes), "What to know"))
    parts = (*_timeline(run, 1), More("Energy by component and rail, what to know, the board", (*more, *about)))
    return Section(f"{badge}{_lede(run)}", parts)


def _lede(run: Run) -> str:
    kinds = run.energy_totals()["kind"].unique().to_list()
    estimate = " Estimated rows come from the power model that was given, not from a sensor." * ("estimated" in kinds)
    covers = f" The total is of {run.rails.covers}." if run.rails.covers else " No total: see the notes."
    return f"Over the steps after warm-up, with 95 % CIs.{covers}{estimate}"


def _nothing(run: Run) -> str:
    if run.rails.lines:
        return "power was sampled, but no step lasted past the warm-up"
    return "no power was measured; it is unknown, not 0"


def _components(totals: pl.DataFrame) -> Table:
    columns = (
        Column("Component", numeric=False),
        Column("Kind", numeric=False, meaning="measured by a sensor, estimated by a power model, or simulated"),
        Column("Power"),
        Column("95 % CI"),
        Column("Energy a step"),
        Column("a sample"),
        Column("Energy"),
        Column("95 % CI"),
        Column("Idle", meaning="Power before the first step, while the training process was idle"),
        Column("Gaps", meaning="Time in which nothing was read"),
        Column("Rail", numeric=False),
    )
    rows = [
        (
            Cell(component_label(row["component"]), row["component"]),
            Cell(row["kind"], row["kind"]),
            _cell(row["watts_mean"], "W"),
            _within(row, "watts_low", "watts_high", "W"),
            _cell(row["joules_per_step"], "J"),
            _cell(row["joules_per_sample"], "J"),
            _cell(row["joules"], "J"),
            _within(row, "low", "high", "J"),
            _cell(row["idle_watts"], "W"),
            Cell(f"{number(row['gap_s'])} s", row["gap_s"]),
            Cell(f"{row['rail']} ({row['source']})", row["rail"]),
        )
        for row in totals.iter_rows(named=True)
    ]
    caption = f"{_NEVER} 'unattributed' is what the total has beside the rails measured inside it."
    return Table("energy", columns, rows, caption, lively=False)


def _rails(rails: pl.DataFrame) -> list[Part]:
    columns = (
        Column("Rail", numeric=False),
        Column("Inside", numeric=False, meaning="The measured rail that contains it: the two are never added"),
        Column("Feeds", numeric=False),
        Column("Power"),
        Column("95 % CI"),
        Column("Energy"),
        Column("Sensor", numeric=False),
        Column("Meaning", numeric=False),
    )
    rows = [
        (
            Cell(row["rail"], row["rail"]),
            Cell(row["inside"] or "", row["inside"]),
            Cell(component_label(row["component"]), row["component"]),
            _cell(row["watts_mean"], "W"),
            _within(row, "watts_low", "watts_high", "W"),
            _cell(row["joules"], "J"),
            Cell(row["source"], row["source"]),
            Cell(row["meaning"] or "", row["meaning"]),
        )
        for row in rails.iter_rows(named=True)
    ]
    return [Table("rails", columns, rows, lively=len(rows) > _MOST_RAILS)]


def _timeline(run: Run, most: int = _MOST_RAILS) -> list[Part]:
    """Power over time, a row a rail; the one of the whole device alone where only one is wanted."""
    steps = run.steps
    start, end = int(steps["t0_ns"][0]), int(steps["t1_ns"][-1])
    windows = run.power_timeline(start, end)
    drawn = windows["rail"].unique(maintain_order=True).to_list()[:_MOST_RAILS]
    main = str(run.energy_totals()["rail"][0])
    drawn = [main] if most == 1 and main in drawn else drawn[:most]
    shown = windows.filter(pl.col("rail").is_in(drawn)).select(
        pl.when("estimated").then(pl.format("{} (estimated)", "rail")).otherwise("rail").alias("rail"),
        "watts",
        "estimated",
        t0_s=(pl.col("t0_ns") - start) / 1e9,
        t1_s=(pl.col("t1_ns") - start) / 1e9,
    )
    if shown["watts"].drop_nulls().is_empty():
        return []
    shown = shown.with_columns(hover=_hover())
    caption = (
        "Mean power of short windows, warm-up included; a sensor that averages smooths it. Tinted: nothing was read."
    )
    return [figure(lambda width: chart.build_power(shown, width), caption, FIGURES[0 if most > 1 else 1])]


def _hover() -> pl.Expr:
    unread = pl.when(pl.col("watts").is_null()).then(pl.lit("not measured"))
    said = unread.otherwise(pl.format("{} W", pl.col("watts").round(3)))
    return pl.format("{}, {} to {} s: {}", "rail", pl.col("t0_s").round(3), pl.col("t1_s").round(3), said)


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


def _within(row: dict[str, Any], low: str, high: str, unit: str) -> Cell:
    said = NO_INTERVAL if row["kind"] == ESTIMATED else interval(row[low], row[high], unit)
    return Cell(said, row[low])


def _cell(value: Any, unit: str) -> Cell:
    return Cell(NOT_MEASURED if value is None else amount(value, unit), value)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
