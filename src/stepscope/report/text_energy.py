"""Energy of operations and modules in the text report: tables of their own, and what the rails can tell."""

from __future__ import annotations

from typing import Any

import polars as pl
from rich.console import RenderableType
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from stepscope.analysis.energy_shown import (
    METHODS_SAID,
    VERDICTS,
    between_sentences,
    main_rail,
    module_rows,
    resolution_sentences,
    stamp,
)
from stepscope.analysis.run import Run
from stepscope.report.text_lines import labelled
from stepscope.report.text_tables import ENGINE, OP_NAMES, Fitting, add_row, new_table
from stepscope.units import number, percent, si

_TOP, _WIDTH, _MOST_SENTENCES = 6, 100, 3
_MOST_USES = 3
_NO_OPS = "power was read, but no op of a step after the warm-up was recorded beside it"


def energy_of_ops(run: Run) -> list[RenderableType]:
    """Joules a step of the dearest kinds and modules on the device's own rail; empty where no power was measured."""
    method, kinds = run.attribution, run.energy(by="kind")
    rail = main_rail(kinds)
    if rail is None:
        return _absent(run, method)
    kinds = kinds.filter(pl.col("rail") == rail)
    if kinds["joules_per_step"].is_null().all():
        return [labelled("energy of ops", f"{rail}: {kinds['reason'][0]}")]
    modules = module_rows(run.energy(by="module").filter(pl.col("rail") == rail))
    said = [Text(f"by {METHODS_SAID[method]}")]
    if marked := stamp(run):
        said.insert(0, Text(marked, style="bold yellow"))
    said += [Text(sentence) for sentence in between_sentences(kinds, rail)]
    said += [Text(sentence) for sentence in resolution_sentences(run.energy_resolution())[:_MOST_SENTENCES]]
    shown = "" if method == "fit" else f", {method}"
    return [
        *_kinds(kinds.head(_TOP).to_dicts(), f"energy by op ({rail}{shown})"),
        *_modules(modules[:_TOP], f"energy by module ({rail}{shown})"),
        Text(""),
        labelled("energy of ops", *said),
    ]


def use_of_kinds(run: Run) -> list[RenderableType]:
    """What the kinds of op that used most made of CPU, GPU and memory while they ran; empty where none is resolved."""
    known = run.utilisation(by="kind").filter(pl.col("verdict") == "resolved")
    lines = []
    for (quantity, scope, unit), rows in known.group_by("quantity", "scope", "unit", maintain_order=True):
        shown = [f"{row['name'].replace(ENGINE, 'engine: ')} {_used(row)}" for row in rows.head(_MOST_USES).to_dicts()]
        of = "cores of the process" if unit == "cores" else f"{scope} {str(quantity).replace('_', ' ')}"
        lines.append(f"{of}: {', '.join(shown)}")
    return [labelled("use of ops", *lines)] if lines else []


def _used(row: dict[str, Any]) -> str:
    ends = [row[name] for name in ("mean", "low", "high")]
    mean, low, high = (number(one) if row["unit"] == "cores" else percent(one) for one in ends)
    return f"{mean} ({low} to {high})"


def _absent(run: Run, method: str) -> list[RenderableType]:
    """A rail that was read with no op to hand it to, or a method with nothing to hand out, says so; else silent."""
    if not run.rails.lines:
        return []
    if method == "fit":
        measured = any(not line.estimated for line in run.rails.lines)
        return [labelled("energy of ops", f"none: {_NO_OPS}")] if measured else []
    why = "no power model was given to this run" if method == "model" else "no power was measured in its steps"
    return [labelled("energy of ops", f"nothing to attribute by '{method}': {why}")]


def _kinds(rows: list[dict[str, Any]], title: str) -> list[RenderableType]:
    by_sample = any(row["joules_per_sample"] is not None for row in rows)
    # On a narrow terminal the sample and the power give way to names that tell an op from its backward.
    widths = ((by_sample, True), (False, True), (False, False))
    tables = tuple(_kind_table(rows, title, by_sample=sample, power=power) for sample, power in widths)
    return [Text(""), Constrain(Fitting(tables, OP_NAMES), _WIDTH)]


def _kind_table(rows: list[dict[str, Any]], title: str, *, by_sample: bool, power: bool) -> Table:
    columns = [
        "a step",
        *(["a sample"] if by_sample else []),
        "90 %",
        "share",
        *(["power"] if power else []),
        "verdict",
    ]
    table = new_table(title, *columns)
    for row in rows:
        name = row["name"].replace(ENGINE, "engine: ")
        each = [si(row[column], "J") for column in ("joules_per_step", "joules_per_sample")[: 1 + by_sample]]
        within, share, watts, verdict = _told(row)
        add_row(table, name, *each, within, share, *([watts] if power else []), verdict)
    return table


def _modules(rows: list[dict[str, Any]], title: str) -> list[RenderableType]:
    phases = [name for name in ("forward", "backward", "optimizer") if any(row[name] for row in rows)]
    tables = (_module_table(rows, title, phases), _module_table(rows, title, []))
    return [Text(""), Constrain(Fitting(tables), _WIDTH)]


def _module_table(rows: list[dict[str, Any]], title: str, phases: list[str]) -> Table:
    table = new_table(title, *phases, "a step", "90 %", "share", "power", "verdict")
    for row in rows:
        parts = [si(row[phase], "J") if row[phase] is not None else "" for phase in phases]
        add_row(table, row["name"] or "(the model)", *parts, si(row["joules_per_step"], "J"), *_told(row))
    return table


def _told(row: dict[str, Any]) -> list[str]:
    """Interval, share, power and verdict."""
    return [half_width(row), percent(row["share"]), si(row["watts"], "W"), VERDICTS[row["verdict"]]]


def half_width(row: dict[str, Any]) -> str:
    """The interval as a share of the value, or its ends where it is lopsided; empty without one."""
    joules, low, high = row["joules_per_step"], row["low"], row["high"]
    if low is None or high is None or not joules:
        return ""
    if low <= 0:
        return f"0 to {si(high, 'J')}"
    return f"± {number(100 * (high - low) / 2 / joules, 2)} %"
