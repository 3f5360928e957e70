"""Energy section: joules a step of each operator and module, with CIs, and the resolution of the rails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.analysis.energy.step_totals import fit_against_readings_sentences
from stepscope.analysis.summary import (
    METHOD_LABELS,
    between_steps_sentences,
    energy_badge,
    main_rail,
    module_rows,
    resolution_sentences,
)
from stepscope.report.charts import sensors as chart
from stepscope.report.page.parts import Figure, Items, Part, Section
from stepscope.report.table import (
    Cell,
    Column,
    Row,
    Table,
    interval_column,
    number_column,
    percent_bar_column,
    text_column,
    verdict_column,
)
from stepscope.units import amount, capitalize_first, page_name

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "Energy by operator"
ORDER = 36
FIGURES = ("energy",)

_MOST_ROWS = 600
_PHASES = ("forward", "backward", "optimizer")
_MEANING = "What is left without the power that was drawn before the first step, while the training process was idle"


def build(run: Run) -> Section:
    """A picture of the components, a table of kinds and of modules for each rail, what each rail can tell."""
    kinds = run.energy(by="kind")
    rail = main_rail(kinds)
    if rail is None or kinds["joules_per_step"].is_null().all():
        why = "this method has nothing to attribute" if kinds.is_empty() else str(kinds["reason"][0])
        return Section(why if run.rails.lines else "")
    wholes = run.energy(by="component").filter(pl.col("joules_per_step").is_not_null())
    rails = [rail, *(name for name in wholes["rail"].to_list() if name != rail)]
    kinds = kinds.filter(pl.col("joules_per_step").is_not_null())
    batch = _samples_per_step(run)
    parts: list[Part] = [_components(wholes)]
    by_rail = [row for rail in rails for row in kinds.filter(pl.col("rail") == rail).iter_rows(named=True)]
    parts.append(_table("energy-kinds", "Operator", by_rail, batch, len(rails) > 1))
    modules = run.energy(by="module").filter(pl.col("joules_per_step").is_not_null() & (pl.col("rail") != rail))
    if len(modules):
        parts.append(_modules(modules, rails[1:], batch))
    sentences = [*fit_against_readings_sentences(run, kinds, rail), *between_steps_sentences(kinds, rail)]
    sentences += [*resolution_sentences(run.energy_resolution())]
    parts.append(Items(tuple((f"{capitalize_first(text)}.", "") for text in sentences), "What the rails can tell"))
    return Section(_opening_sentence(run), tuple(parts), closed=True)


def _opening_sentence(run: Run) -> str:
    marked = f"{energy_badge(run)}. " if energy_badge(run) else ""
    exact = (
        " Parts and the unattributed energy add up to each rail's measured total." if run.attribution == "fit" else ""
    )
    return f"{marked}Joules a step by {METHOD_LABELS[run.attribution]}, with 95 % CIs.{exact}"


def _samples_per_step(run: Run) -> float | None:
    rows = run.energy_totals().filter(pl.col("joules_per_sample") > 0)
    if rows.is_empty():
        return None
    return float(rows["joules_per_step"][0]) / float(rows["joules_per_sample"][0])


def _table(name: str, first: str, rows: list[dict[str, Any]], batch: float | None, several: bool) -> Table:
    columns = (text_column(first, "name", page_name), *_measures(batch, several))
    return Table.from_rows(name, columns, rows[:_MOST_ROWS], _caption(len(rows)))


def _modules(modules: pl.DataFrame, rails: list[str], batch: float | None) -> Table:
    rows = [{**row, "rail": rail} for rail in rails for row in module_rows(modules.filter(pl.col("rail") == rail))]
    columns = (
        Column("Module", False, of=lambda row: Cell(page_name(row["name"] or "(the model)"), page_name(row["name"]))),
        *(number_column(phase.capitalize(), phase, "J", missing="") for phase in _PHASES),
        *_measures(batch, True),
    )
    caption = f"Layers on the other rails. {_caption(len(rows))}"
    return Table.from_rows("energy-modules", columns, rows[:_MOST_ROWS], caption)


def _caption(rows: int) -> str:
    text = "A rail's rows add up to it; rails inside one another are never added."
    return (
        text if rows <= _MOST_ROWS else f"{text} The last {rows - _MOST_ROWS:,} rows are not listed: export has them."
    )


def _measures(batch: float | None, several: bool) -> tuple[Column, ...]:
    def sample(row: Row) -> Cell:
        joules = row["joules_per_step"]
        return Cell("") if joules is None or not batch else Cell(amount(joules / batch, "J"), joules / batch)

    return (
        *([text_column("Rail", "rail")] if several else []),
        number_column("A step", "joules_per_step", "J", missing=""),
        interval_column("low", "high", "J"),
        percent_bar_column("Share", "share"),
        number_column("Power", "watts", "W"),
        number_column("Above idle", "above_idle", "J", missing="", meaning=_MEANING),
        *([Column("A sample", of=sample)] if batch else []),
        verdict_column(),
    )


def _components(wholes: pl.DataFrame) -> Part:
    rows = []
    for row in wholes.iter_rows(named=True):
        rail, joules, above = f"{row['component']}: {row['rail']}", row["joules_per_step"], row["above_idle"]
        split = {"idle unknown": joules} if above is None else {"above idle": above, "idle": joules - above}
        for index, (part, energy) in enumerate(split.items()):
            hover = f"{rail}, {part}: {amount(energy, 'J')} a step"
            rows.append({"rail": rail, "part": part, "joules": max(energy, 0.0), "place": index, "hover": hover})
    frame = pl.DataFrame(rows)
    caption = (
        "Energy of a step by rail, gross: what it draws above idle, and what it would draw without any training. "
        "'Idle unknown': nothing was read before the training began."
    )
    return Figure(lambda width: chart.build_energy(frame, width), caption, FIGURES[0])
