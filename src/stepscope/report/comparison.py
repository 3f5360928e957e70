"""A comparison as text: letters, values, ratios and differences as they read everywhere, and the terminal's tables.

A check of a run against its baseline, on the terminal and as Markdown for the summary of a CI job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import polars as pl
from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from stepscope.analysis.compare import WHAT, Comparison, side_letter
from stepscope.analysis.compare.explanation import UNATTRIBUTED_PARTS, Explanation
from stepscope.analysis.compare.layers import LayerRow
from stepscope.analysis.compare.program import ProgramChange
from stepscope.analysis.compare.regression_check import NONE, REGRESSION, UNSURE, Check, Judged
from stepscope.analysis.compare.run_groups import setting_of
from stepscope.analysis.first_screen import machine_name
from stepscope.quantities import HIGHER, LOWER, find_quantity, simulated_badge
from stepscope.report.table import Cell, Column, FittedTable, Row, SplitTable, Table, terminal_table
from stepscope.report.table import markdown as table_markdown
from stepscope.units import (
    NOT_MEASURED,
    amount,
    capitalize_first,
    estimate,
    interval,
    interval_of_value,
    join_interval,
    number,
    percent,
    plural,
    row_label,
    si,
)

TITLES = {
    "time": "time of a step",
    "kernels": "kernel time of a step",
    "memory": "peak of live memory",
    "energy": "energy of a step",
}


def title_of(comparison: Comparison, what: str) -> str:
    """Return what a difference is in, of a step or a sample."""
    return TITLES[what].replace("a step", f"a {comparison.per}")


GROUPINGS = {"module": "layer", "kind": "operator"}  # by the name that --by and JSON have
LAYER_TITLES = {
    "time": ("self time of a step by layer", "ns"),
    "energy": ("energy of a step by layer", "J"),
    "memory": ("live at the peak by layer", "B"),
}


@dataclass(frozen=True)
class QuantityRow:
    """One number of one side as text; `outcome` is better, worse, same, none seen, no interval, or ""."""

    label: str
    letter: str
    value: str
    interval: str
    ratio: str
    ratio_interval: str
    outcome: str
    numbers: dict[str, Any]


def side_legend(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Letter, name and what it is, of each side."""
    rows = []
    for side, group in enumerate(comparison.run_groups):
        about = setting_of(comparison.settings[0].sides[side][0])
        single = len(comparison.settings) == 1
        batch = f"batch {about['batch']}" if about["batch"] is not None else None
        facts = [about[name] for name in ("optimizer", "precision", "device")]
        facts_of = (
            [about["workload"], batch, *facts] if single else [plural(len(comparison.settings), "shared setting")]
        )
        run = comparison.settings[0].sides[side][0]
        facts_of += [machine_name(run), simulated_badge(run.simulated)]
        facts_of.append(plural(len(group.runs), "run") if len(group.runs) > 1 else None)
        rows.append((side_letter(side), group.name, " · ".join(str(fact) for fact in facts_of if fact)))
    return rows


def quantity_rows(comparison: Comparison, setting: int = 0) -> Iterator[QuantityRow]:
    """The numbers of a setting, those of one metric together; whose they are, where that is not one thing."""
    label = comparison.settings[setting].label
    rows = comparison.quantities.filter(pl.col("setting") == label)
    of_side = rows.group_by("metric", "side").agg(pl.col("scope").n_unique())
    several = set(of_side.filter(pl.col("scope") > 1)["metric"])
    for row in rows.iter_rows(named=True):
        definition = find_quantity(row["metric"], row["unit"])
        unit = definition.shown_unit
        power = "energy" in row["metric"] or "power" in row["metric"]
        whose = f", {row['scope'].replace(':', ' ')}" if row["metric"] in several else ""
        scope = f" of {row['scope']}" if power else whose
        yield QuantityRow(
            f"{definition.title}{scope}",
            side_letter(row["side"]),
            amount(row["value"], unit),
            "exact" if row["interval_of"] == "exact" else interval(row["low"], row["high"], unit) or NOT_MEASURED,
            "" if row["side"] == 0 else _ratio(row["ratio"]),
            interval_of_value(row["ratio"], row["ratio_low"], row["ratio_high"], ""),
            _verdict(row, definition.better),
            row,
        )


def better_or_worse(difference: str | None, better: str | None) -> str:
    """Return what a difference means for a quantity of which less, or more, is better."""
    if difference in ("larger", "smaller") and better is not None:
        good = (better == LOWER) == (difference == "smaller")
        assert better in (LOWER, HIGHER)
        return "better" if good else "worse"
    return difference or ""


_SAME = "same"  # to three digits, however narrow the interval


def _verdict(row: Mapping[str, Any], better: str | None) -> str:
    chance = row["difference"] in ("none seen", "no interval")
    return _SAME if not chance and _ratio(row["ratio"]) == "1" else better_or_worse(row["difference"], better)


def _ratio(value: float | None) -> str:
    return NOT_MEASURED if value is None else number(value)


def signed_difference(value: float | None, unit: str) -> str:
    """A difference with its sign."""
    return amount(value, unit) if value is None or value <= 0 else f"+{amount(value, unit)}"


def difference_interval_text(low: float | None, high: float | None, unit: str) -> str:
    """Ends of the interval of a difference."""
    return (
        NOT_MEASURED
        if low is None or high is None
        else join_interval(signed_difference(low, unit), signed_difference(high, unit))
    )


def part_name(row: dict[str, Any], by: str) -> str:
    """Return a part as tables show it; the root module has no name."""
    return "(the model)" if row["name"] == "" and by == "module" else row_label(str(row["name"]))


def total_difference(why: Explanation) -> str:
    """The difference that the parts add up to."""
    text = (
        f"{amount(why.first, why.unit)} to {amount(why.other, why.unit)}: {signed_difference(why.difference, why.unit)}"
    )
    return text if why.low is None else f"{text} {difference_interval_text(why.low, why.high, why.unit)}"


_STYLES = {"better": "green", "worse": "red", _SAME: "dim", "none seen": "dim", "no interval": "dim"}


def render(
    comparison: Comparison,
    by: Sequence[str] | None = None,
    top: int | None = None,
    whats: Sequence[str] | None = None,
    verbose: bool = False,
) -> RenderableType:
    """Return which is faster and why, the numbers side by side, and the parts that explain what surely differs.

    `verbose`: every side's interval, and the parts of every difference. by: groupings of the parts; default: layers,
    and operators if verbose. top: parts listed; default: 4, or 8 if verbose.
    """
    parts: list[RenderableType] = [_sides_table(comparison), Text("")]
    for index, setting in enumerate(comparison.settings):
        if setting.label:
            parts.append(Text(setting.label, style="bold"))
        parts += [Text(line, overflow="fold") for line in comparison.sentences(index)]
        pair = len(comparison.run_groups) == 2 and not verbose
        parts += [
            Text(""),
            *(_draw_two_sides(comparison, index) if pair else [_terminal_quantities(comparison, index)]),
        ]
        if len(comparison.run_groups) > 2:
            parts += _terminal_layers(comparison, index, top or _PARTS_VERBOSE)
        if verbose:
            parts += _program_tables(comparison, index)
        if len(comparison.settings) == 1:
            listed = top or (_PARTS_VERBOSE if verbose else _PARTS)
            ways = by or (("module", "kind") if verbose else ("module",))
            parts += _explanation_tables(comparison, ways, listed, whats, verbose)
    if len(comparison.settings) > 1:
        heading = f"over {len(comparison.settings)} settings"
        parts += [Text(""), SplitTable(overall_table(comparison), heading, "report", leading=2)]
    parts += [Text(f"- {note}", style="dim", overflow="fold") for note in comparison.notes]
    if not verbose:
        parts.append(Text("MORE  the same command with -v, or with --html for the page", style="dim"))
    return Group(*parts)


_PARTS, _PARTS_VERBOSE = 4, 8
_PROGRAM_ROWS = 20


def _sides_table(comparison: Comparison) -> RenderableType:
    table = Grid.grid(padding=(0, 2, 0, 0))
    rows = side_legend(comparison)
    for mark, name, about in rows:
        same = mark != side_letter(0) and about == rows[0][2]
        table.add_row(
            Text(mark, style="bold"), Text(name, overflow="fold"), Text("as A" if same else about, style="dim")
        )
    return table


def _draw_two_sides(comparison: Comparison, setting: int) -> Iterator[RenderableType]:
    """Two sides in a row a quantity: both values, and the ratio with its interval; below it what one side alone has."""
    sides: dict[str, dict[str, QuantityRow]] = {}
    for row in quantity_rows(comparison, setting):
        sides.setdefault(row.label.replace("of the training processes", "(training)"), {})[row.letter] = row
    alone: dict[str, list[str]] = {"A": [], "B": []}
    cells = []
    for label, rows in sides.items():
        measured = [side for side in "AB" if side in rows and rows[side].value != NOT_MEASURED]
        if len(measured) == 1:
            alone[measured[0]].append(find_quantity(rows[measured[0]].numbers["metric"], "").title.lower())
            continue
        values = [rows[side].value if side in rows else NOT_MEASURED for side in "AB"]
        other = rows.get("B")
        compared = (f"{other.ratio} {other.ratio_interval}".rstrip(), other.outcome) if other else ("", "")
        cells.append((*map(Cell, (label, *values, compared[0])), _outcome_cell(compared[1])))
    titles = (Column("", False, fold=True), Column("A"), Column("B"), Column("B / A [95 % CI]"), Column("", False))
    yield terminal_table(Table("pair", titles, cells), gap=1)  # so that no word is broken at 80 columns
    for side, names in alone.items():
        if names:
            yield Text(
                f"Measured in {side} alone: {', '.join(dict.fromkeys(names))} (-v)", style="dim", overflow="fold"
            )


def _outcome_cell(outcome: str) -> Cell:
    return Cell(outcome, outcome or None, style=_STYLES.get(outcome, ""))


def quantity_table(comparison: Comparison, setting: int = 0) -> Table:
    """Every number of every side of a setting, with its ratio to that of A."""
    columns = (
        Column("Quantity", False, of=lambda row: row.label, names=True),
        Column("", False, of=lambda row: row.letter),
        Column("Value", of=lambda row: Cell(row.value, row.numbers["value"])),
        Column("95 % CI", of=lambda row: Cell(row.interval, row.numbers["low"])),
        Column(f"/ {side_letter(0)}", of=lambda row: Cell(row.ratio, row.numbers["ratio"])),
        Column("95 % CI", of=lambda row: Cell(row.ratio_interval, row.numbers["ratio_low"])),
        Column("Outcome", False, of=lambda row: _outcome_cell(row.outcome)),
    )
    return Table.from_rows("quantities", columns, quantity_rows(comparison, setting), first_rows=40)


def _terminal_quantities(comparison: Comparison, setting: int) -> RenderableType:
    """Draw the quantities for a terminal: each is named once for all sides."""
    table = quantity_table(comparison, setting)
    labels = [row[0].text for row in table.rows]
    rows = [(replace(row[0], text=label * (label != last)), *row[1:])
            for last, label, row in zip(["", *labels], labels, table.rows, strict=False)]  # fmt: skip
    columns = (*table.columns[:-1], replace(table.columns[-1], title=""))
    return SplitTable(replace(table, columns=columns, rows=rows), "side by side", "report", leading=2)


def layer_table(comparison: Comparison, quantity: str, setting: int) -> Table | None:
    """A layer a row and a run a column, of a quantity that was measured.

    The keys of a run's columns are "A with CI" and "A without CI".
    """
    title, unit = LAYER_TITLES[quantity]
    rows = comparison.layers(quantity, setting)
    if not rows:
        return None
    columns = [
        Column("Layer", False, of=lambda row: Cell(row.layer or "(the model)", row.layer), names=True),
        Column("Type", False, of=lambda row: row.type),
    ]
    for side in range(len(rows[0].values)):
        for with_ends in (True, False):
            make = partial(_layer_cell, side=side, unit=unit, with_ends=with_ends)
            columns.append(
                Column(side_letter(side), of=make, key=f"{side_letter(side)} {'with' if with_ends else 'without'} CI")
            )
    brackets = "; brackets hold the 95 % CI" if quantity != "memory" else ""
    return Table.from_rows(title, columns, rows, f"{capitalize_first(title)}{brackets}. {LAYER_NOTE}")


def _terminal_layers(comparison: Comparison, setting: int, top: int) -> Iterator[RenderableType]:
    """The tables of layers, without the CIs where they do not fit."""
    marks = [side_letter(side) for side in range(len(comparison.run_groups))]
    choices = [[f"{mark} {how} CI" for mark in marks] for how in ("with", "without")]
    for quantity in LAYER_TITLES:
        table = layer_table(comparison, quantity, setting)
        if table is None:
            continue
        largest, heading = replace(table, rows=table.rows[:top]), f"{table.name} ({len(table.rows)})"
        yield Text("")
        yield FittedTable(largest, choices, heading)
        if any(cell.style for row in table.rows for cell in row):
            yield Text(LAYER_NOTE, style="dim", overflow="fold")


def _layer_cell(row: LayerRow, side: int, unit: str, with_ends: bool) -> Cell:
    """A value of a layer with its 95 % CI; "-" where the side has no such layer, or did not measure it."""
    value = row.values[side]
    if value is None:
        return Cell(NOT_MEASURED)
    text = estimate(value.value, *((value.low, value.high) if with_ends else (None, None)), unit)
    mark, style, hint = LAYER_MARKS.get(value.difference or "", ("", "", ""))
    return Cell(f"{mark} {text}".strip(), value.value, hint=hint, style=style)


LAYER_MARKS = {"larger": ("▲", "red", "more than A"), "smaller": ("▼", "green", "less than A")}
LAYER_NOTE = "▲ more, ▼ less than A: more than chance explains in a table of so many layers."


def program_table(comparison: Comparison, other: int, setting: int = 0) -> Table | None:
    """Return what a step of another side does otherwise than one of A, counted; None where nothing differs."""
    changes = comparison.program(other, setting).changes
    if not changes:
        return None
    columns = (
        Column("What", False, of=lambda row: row.what),
        Column("Name", False, of=lambda row: row.name, names=True),
        Column(side_letter(0), of=lambda row: _change_cell(row, row.first)),
        Column(side_letter(other), of=lambda row: _change_cell(row, row.other)),
    )
    caption = "Counted in profiled steps, not timed: parameters of layers, calls of operators and FLOPs a step."
    return Table.from_rows(f"program, {side_letter(other)}", columns, changes, caption)


def _change_cell(change: ProgramChange, value: float | None) -> Cell:
    text = "absent" if value is None else si(value, "FLOP") if change.what == "FLOPs" else f"{value:,.0f}"
    return Cell(text, value)


def _program_tables(comparison: Comparison, setting: int) -> Iterator[RenderableType]:
    for other in range(1, len(comparison.run_groups)):
        if (table := program_table(comparison, other, setting)) is not None:
            largest = replace(table, rows=table.rows[:_PROGRAM_ROWS])
            yield Text("")
            heading = f"what a step does otherwise, {side_letter(other)} ({len(table.rows)})"
            yield SplitTable(largest, heading, "report", leading=2)


def _explanation_tables(
    comparison: Comparison, by: Sequence[str], top: int, whats: Sequence[str] | None, verbose: bool
) -> Iterator[RenderableType]:
    """Yield the parts of differences: the requested ones, or those that chance cannot explain."""
    for other in range(1, len(comparison.run_groups)):
        for what in whats or tuple(TITLES):
            parts = [comparison.explain(what, way, other) for way in by if way in WHAT[what]]
            reasons = {why.reason for why in parts if why.reason}
            if reasons and what != "kernels" and (verbose or whats):
                yield Text(
                    f"\n{title_of(comparison, what)}, {side_letter(other)} - {side_letter(0)}: "
                    f"{'; '.join(sorted(reasons))}",
                    style="dim",
                )
            tables = [
                why
                for why in parts
                if not why.reason and (verbose or whats or _differs_by_model(comparison, why, other))
            ]
            for why in tables:
                yield from _part_table(title_of(comparison, what), why, other, top)
            if tables:
                yield Text(tables[0].note, style="dim", overflow="fold")


def _differs_by_model(comparison: Comparison, why: Explanation, other: int) -> bool:
    """Return whether a difference is more than chance, and the model's rather than the machine's."""
    if not why.difference or (why.low is not None and why.high is not None and why.low <= 0 <= why.high):
        return False
    if why.what == "time" and (why.low is None or why.high is None):  # of too few steps; bytes are counted, without one
        return False
    return why.what not in ("time", "kernels") or not comparison.why_no_layer(other)


def _part_table(title: str, why: Explanation, other: int, top: int) -> Iterator[RenderableType]:
    """The largest parts, the others in one row, what is unattributed, and the sum."""
    by = GROUPINGS.get(why.by, why.by)
    yield Text(f"\n{title} by {by}, {side_letter(0)} to {side_letter(other)}: {total_difference(why)}", style="bold")
    rows = why.parts.to_dicts()
    plain = [row for row in rows if row["name"] not in UNATTRIBUTED_PARTS]
    smaller = plain[top:]
    remaining = sum(row["difference"] for row in smaller)
    others = {"name": f"({plural(len(smaller), 'other')})", "difference": remaining, "low": None, "high": None,
              "share": remaining / why.difference if why.difference else None}  # fmt: skip
    listed = [*plain[:top], *([others] if smaller else []), *(row for row in rows if row["name"] in UNATTRIBUTED_PARTS)]
    yield SplitTable(part_table(why, other, listed), f"part ({len(rows)})", "report")


def part_table(why: Explanation, other: int, rows: Sequence[Row], caption: str = "") -> Table:
    """The parts of a difference that are listed, with both sides where they are single parts."""
    unit = why.unit

    def side(key: str) -> Callable[[Row], Cell]:
        return lambda row: Cell("" if key not in row else part_amount(row[key], unit), row.get(key))

    columns = (
        Column(
            capitalize_first(GROUPINGS.get(why.by, why.by)),
            False,
            of=lambda row: Cell(part_name(row, why.by), row["name"]),
            names=True,
        ),
        *(Column(side_letter(place), of=side(key)) for place, key in ((0, "first"), (other, "other"))),
        Column("Difference", of=lambda row: Cell(signed_difference(row["difference"], unit), row["difference"])),
        Column(
            "95 % CI",
            of=lambda row: Cell(
                difference_interval_text(row["low"], row["high"], unit) if "first" in row else "", row["low"]
            ),
        ),
        Column("Share", of=lambda row: Cell(percent(row["share"], 0), row["share"])),
    )
    return Table.from_rows(f"{why.what} by {why.by}, {side_letter(other)}", columns, rows, caption, first_rows=10)


def part_amount(value: float | None, unit: str) -> str:
    """Return the part of a side; a part that only another side has is absent."""
    return "absent" if value is None else amount(value, unit)


def overall_table(comparison: Comparison) -> Table:
    """Geometric means of the ratios over the settings."""
    columns = (
        Column("Quantity", False, of=lambda row: row[0], names=True),
        Column("", False, of=lambda row: side_letter(row[1])),
        Column(f"/ {side_letter(0)}", of=lambda row: Cell(number(row[2].value, 4), row[2].value)),
        Column(
            "95 % CI",
            of=lambda row: Cell(
                NOT_MEASURED if None in (row[2].low, row[2].high) else f"[{number(row[2].low)}, {number(row[2].high)}]",
                row[2].low,
            ),
        ),
    )
    caption = "Geometric mean over the settings."
    return Table.from_rows("over all settings", columns, comparison.overall_ratios(), caption, first_rows=40)


_OUTCOME_STYLES = {REGRESSION: "bold red", NONE: "bold green", UNSURE: "bold yellow"}
_SPECIAL = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_{}[]<>()#+!|~"})


def render_check(check: Check) -> RenderableType:
    """The outcome, a row a limit, and what each outcome rests on."""
    return Group(
        Text(f"{check.outcome}: {_checked_sides(check)}", style=_OUTCOME_STYLES[check.outcome], overflow="fold"),
        terminal_table(_check_table(check)),
        *(Text(f"- {line}", style="dim", overflow="fold") for line in outcome_reasons(check)),
    )


def markdown(check: Check) -> str:
    """Return the outcome as a Markdown section; names are escaped."""
    lines = [f"### Stepscope: {check.outcome}", "", _escape_markup(_checked_sides(check)), ""]
    lines += [
        *table_markdown(_check_table(check), _escape_markup),
        "",
        *(f"- {_escape_markup(line)}" for line in outcome_reasons(check)),
    ]
    return "\n".join(lines) + "\n"


def _check_table(check: Check) -> Table:
    columns = (
        Column(
            "what",
            False,
            of=lambda row: (
                (find_quantity(row.metric).title if row.metric else capitalize_first(row.what)) + row.of_component
            ),
            fold=True,
        ),
        *(Column(side, of=partial(_side_value_text, side=side)) for side in ("baseline", "run")),
        Column("change", of=lambda row: _growth_percent(row.ratio)),
        Column(
            "95 % CI",
            of=lambda row: (
                NOT_MEASURED
                if None in (row.low, row.high)
                else f"[{_growth_percent(row.low)}, {_growth_percent(row.high)}]"
            ),
        ),
        Column("allowed", of=lambda row: f"+{number(row.limit * 100)} %"),
        Column("outcome", of=lambda row: row.outcome),
    )
    return Table.from_rows("check", columns, check.judged)


def _side_value_text(row: Judged, side: str) -> str:
    return amount(getattr(row, side), row.unit) if row.unit else NOT_MEASURED


def outcome_reasons(check: Check) -> list[str]:
    """Return the basis of each outcome, and what was not measured at all."""
    parts = [f"{row.what}{row.of_component}: {row.outcome}: {row.why}" for row in check.judged]
    unjudged = [f"{what}: not judged: it was not measured on both sides" for what in check.not_judged]
    return [*parts, *unjudged, *check.notes]


def _checked_sides(check: Check) -> str:
    mine, theirs = (plural(count, "run") for count in check.runs)
    return f"{check.run} ({mine}) against {check.baseline} ({theirs})"


def _growth_percent(ratio: float | None) -> str:
    if ratio is None:
        return NOT_MEASURED
    return f"{'+' if ratio >= 1 else ''}{percent(ratio - 1)}"


def _escape_markup(text: str) -> str:
    return text.replace("\n", " ").translate(_SPECIAL)
