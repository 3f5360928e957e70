"""A comparison as text: letters, values, ratios and differences as they read everywhere, and the terminal's tables.

A check of a run against its baseline, on the terminal and as Markdown for the summary of a CI job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stepscope.analysis.answer import machine_name
from stepscope.analysis.compare import NONE, REGRESSION, UNSURE, WHAT, Check, Comparison, Judged, letter
from stepscope.analysis.compare.explanation import UNATTRIBUTED_PARTS, Explanation
from stepscope.analysis.compare.layers import LayerRow, LayerValue
from stepscope.analysis.compare.sides import setting_of
from stepscope.quantities import HIGHER, LOWER, find, simulated_badge
from stepscope.report.text_tables import CutName, Fitting, add_row, new_table
from stepscope.units import NOT_MEASURED, amount, bracketed, estimate, interval, number, percent, plural, row_label

TITLES = {
    "time": "time of a step",
    "kernels": "kernel time of a step",
    "memory": "peak of live memory",
    "energy": "energy of a step",
}
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


def legend(comparison: Comparison) -> list[tuple[str, str, str]]:
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
        facts_of.append(_machine(comparison, side))
        facts_of.append(plural(len(group.runs), "run") if len(group.runs) > 1 else None)
        rows.append((letter(side), group.name, " · ".join(str(fact) for fact in facts_of if fact)))
    return rows


def _machine(comparison: Comparison, side: int) -> str | None:
    """The machine that trained; simulated sensors are named as such, never as the machine."""
    run = comparison.settings[0].sides[side][0]
    named = [machine_name(run), simulated_badge(run.simulated)]
    return " · ".join(name for name in named if name) or None


def quantity_rows(comparison: Comparison, setting: int = 0) -> Iterator[QuantityRow]:
    """The numbers of a setting, those of one metric together."""
    label = comparison.settings[setting].label
    for row in comparison.quantities.filter(pl.col("setting") == label).iter_rows(named=True):
        known = find(row["metric"], row["unit"])
        unit = known.shown_unit
        scope = f" of {row['scope']}" if "energy" in row["metric"] or "power" in row["metric"] else ""
        yield QuantityRow(
            f"{known.title}{scope}",
            letter(row["side"]),
            amount(row["value"], unit),
            "exact" if row["interval_of"] == "exact" else interval(row["low"], row["high"], unit) or NOT_MEASURED,
            "" if row["side"] == 0 else _ratio(row["ratio"]),
            "" if row["ratio_low"] is None else f"[{_ratio(row['ratio_low'])}, {_ratio(row['ratio_high'])}]",
            _SAME if _ratio(row["ratio"]) == "1" else outcome(row["difference"], known.better),
            row,
        )


def outcome(difference: str | None, better: str | None) -> str:
    """Return what a difference means for a quantity of which less, or more, is better."""
    if difference in ("larger", "smaller") and better is not None:
        good = (better == LOWER) == (difference == "smaller")
        assert better in (LOWER, HIGHER)
        return "better" if good else "worse"
    return difference or ""


_SAME = "same"  # to three digits, however narrow the interval


def _ratio(value: float | None) -> str:
    return NOT_MEASURED if value is None else number(value)


def change(value: float | None, unit: str) -> str:
    """A difference with its sign."""
    return amount(value, unit) if value is None or value <= 0 else f"+{amount(value, unit)}"


def between(low: float | None, high: float | None, unit: str) -> str:
    """Ends of the interval of a difference."""
    return NOT_MEASURED if low is None or high is None else bracketed(change(low, unit), change(high, unit))


def part_name(row: dict[str, Any], by: str) -> str:
    """Return a part as tables show it; the root module has no name."""
    return "(the model)" if row["name"] == "" and by == "module" else row_label(str(row["name"]))


def whole(why: Explanation) -> str:
    """The difference that the parts add up to."""
    said = f"{amount(why.first, why.unit)} to {amount(why.other, why.unit)}: {change(why.difference, why.unit)}"
    return said if why.low is None else f"{said} {between(why.low, why.high, why.unit)}"


def share(value: float | None) -> str:
    """Part of the whole difference; beyond 100 % where others go the other way."""
    return percent(value, 0)


_STYLES = {"better": "green", "worse": "red", _SAME: "dim", "none seen": "dim", "no interval": "dim"}


def render(
    comparison: Comparison,
    by: Sequence[str] = ("module", "kind"),
    top: int | None = None,
    whats: Sequence[str] | None = None,
    verbose: bool = False,
) -> RenderableType:
    """Return which is faster and why, the numbers side by side, and the parts that explain what surely differs.

    `verbose`: every side's interval, and the parts of every difference. top: parts listed; default: 4, or 8 if verbose.
    """
    parts: list[RenderableType] = [_sides(comparison), Text("")]
    for index, setting in enumerate(comparison.settings):
        if setting.label:
            parts.append(Text(setting.label, style="bold"))
        parts += [Text(line, overflow="fold") for line in comparison.sentences(index)]
        pair = len(comparison.run_groups) == 2 and not verbose
        parts += [Text(""), *(_pair(comparison, index) if pair else [_quantities(comparison, index)])]
        if len(comparison.run_groups) > 2:
            parts += _layers(comparison, index, top or _PARTS_VERBOSE)
        if len(comparison.settings) == 1:
            listed = top or (_PARTS_VERBOSE if verbose else _PARTS)
            parts += _explained(comparison, by if verbose else by[:1], listed, whats, verbose)
    parts += _over_settings(comparison)
    parts += [Text(f"- {note}", style="dim", overflow="fold") for note in comparison.notes]
    if not verbose:
        parts.append(Text("MORE  stepscope compare -v   page: stepscope compare --html", style="dim"))
    return Group(*parts)


_PARTS, _PARTS_VERBOSE = 4, 8


def _sides(comparison: Comparison) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    rows = legend(comparison)
    for mark, name, about in rows:
        same = mark != letter(0) and about == rows[0][2]
        table.add_row(
            Text(mark, style="bold"), Text(name, overflow="fold"), Text("as A" if same else about, style="dim")
        )
    return table


def _pair(comparison: Comparison, setting: int) -> Iterator[RenderableType]:
    """Two sides in a row a quantity: both values, and the ratio with its interval; below it what one side alone has."""
    table = new_table("", "A", "B", "B / A [95 % CI]")
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
    table.padding = (0, 1, 0, 0)  # so that no word is broken at 80 columns
    table.add_column("", no_wrap=True)
    sides: dict[str, dict[str, QuantityRow]] = {}
    for row in quantity_rows(comparison, setting):
        sides.setdefault(row.label.replace("of the training processes", "(training)"), {})[row.letter] = row
    alone: dict[str, list[str]] = {"A": [], "B": []}
    for label, rows in sides.items():
        measured = [side for side in "AB" if side in rows and rows[side].value != NOT_MEASURED]
        if len(measured) == 1:
            alone[measured[0]].append(find(rows[measured[0]].numbers["metric"], "").title.lower())
            continue
        values = [rows[side].value if side in rows else NOT_MEASURED for side in "AB"]
        other = rows.get("B")
        compared = (f"{other.ratio} {other.ratio_interval}".rstrip(), other.outcome) if other else ("", "")
        table.add_row(*map(Text, (label, *values, compared[0])), Text(compared[1], style=_STYLES.get(compared[1], "")))
    yield table
    for side, names in alone.items():
        if names:
            yield Text(
                f"Measured in {side} alone: {', '.join(dict.fromkeys(names))} (-v)", style="dim", overflow="fold"
            )


def _quantities(comparison: Comparison, setting: int) -> RenderableType:
    table = new_table("side by side", "", "value", "95 % CI", f"/ {letter(0)}", "95 % CI")
    table.add_column("", no_wrap=True)
    last = ""
    for row in quantity_rows(comparison, setting):
        mark = Text(row.outcome, style=_STYLES.get(row.outcome, ""))
        label = row.label if row.label != last else ""
        cells = (label, row.letter, row.value, row.interval, row.ratio, row.ratio_interval)
        table.add_row(*(Text(cell) for cell in cells), mark)
        last = row.label
    return table


def _layers(comparison: Comparison, setting: int, top: int) -> Iterator[RenderableType]:
    """A layer a row and a run a column, for each quantity that was measured; without the CIs where they do not fit."""
    for quantity, (title, unit) in LAYER_TITLES.items():
        rows = comparison.layers(quantity, setting)
        if not rows:
            continue
        yield Text("")
        head = f"{title} ({len(rows)})"
        yield Fitting((_layer_table(rows, head, unit, top, True), _layer_table(rows, head, unit, top, False)))
        if any(value is not None and value.difference in LAYER_MARKS for row in rows for value in row.values):
            yield Text(LAYER_NOTE, style="dim", overflow="fold")


def _layer_table(rows: Sequence[LayerRow], title: str, unit: str, top: int, with_ends: bool) -> Table:
    table = new_table(title, *(letter(side) for side in range(len(rows[0].values))))
    names = tuple(row.layer or "(the model)" for row in rows)
    for name, row in list(zip(names, rows, strict=True))[:top]:
        table.add_row(CutName(name, names), *(_layer_text(value, unit, with_ends) for value in row.values))
    return table


def _layer_text(value: LayerValue | None, unit: str, with_ends: bool) -> Text:
    said = layer_amount(value, unit, with_ends)
    mark, style = LAYER_MARKS.get(value.difference or "", (" ", "")) if value is not None else (" ", "")
    return Text.assemble(said, " ", (mark, style))


LAYER_MARKS = {"larger": ("▲", "red"), "smaller": ("▼", "green")}
LAYER_NOTE = "▲ more, ▼ less than A: more than chance explains in a table of so many layers."


def layer_amount(value: LayerValue | None, unit: str, with_ends: bool = True) -> str:
    """Return a value of a layer with its 95 % CI; "-" where the side has no such layer, or did not measure it."""
    if value is None:
        return NOT_MEASURED
    return estimate(value.value, *((value.low, value.high) if with_ends else (None, None)), unit)


def _explained(
    comparison: Comparison, by: Sequence[str], top: int, whats: Sequence[str] | None, verbose: bool
) -> Iterator[RenderableType]:
    """Yield the parts of differences: of all that were asked for, or of those that chance cannot explain."""
    for other in range(1, len(comparison.run_groups)):
        for what in whats or tuple(TITLES):
            parts = [comparison.explain(what, way, other) for way in by if way in WHAT[what]]
            reasons = {why.reason for why in parts if why.reason}
            if reasons and what != "kernels" and (verbose or whats):
                yield Text(
                    f"\n{TITLES[what]}, {letter(other)} - {letter(0)}: {'; '.join(sorted(reasons))}", style="dim"
                )
            tables = [
                why for why in parts if not why.reason and (verbose or whats or _told_apart(comparison, why, other))
            ]
            for why in tables:
                yield from _part_table(why, other, top)
            if tables:
                yield Text(tables[0].note, style="dim", overflow="fold")


def _told_apart(comparison: Comparison, why: Explanation, other: int) -> bool:
    """Return whether a difference is more than chance, and the model's rather than the machine's."""
    if not why.difference or (why.low is not None and why.high is not None and why.low <= 0 <= why.high):
        return False
    return why.what not in ("time", "kernels") or not comparison.by_the_machine(other)


def _part_table(why: Explanation, other: int, top: int) -> Iterator[RenderableType]:
    """The largest parts, the others in one row, what is unattributed, and the sum."""
    yield Text(f"\n{TITLES[why.what]} by {why.by}, {letter(0)} to {letter(other)}: {whole(why)}", style="bold")
    table = new_table(f"part ({len(why.parts)})", letter(0), letter(other), "difference", "95 % CI", "share")
    rows = why.parts.to_dicts()
    plain = [row for row in rows if row["name"] not in UNATTRIBUTED_PARTS]
    for row in plain[:top]:
        add_row(table, part_name(row, why.by), *_part_cells(row, why.unit))
    rest = plain[top:]
    if rest:
        left = sum(row["difference"] for row in rest)
        said = share(left / why.difference) if why.difference else share(None)
        add_row(table, f"({plural(len(rest), 'other')})", "", "", change(left, why.unit), "", said)
    for row in rows:
        if row["name"] in UNATTRIBUTED_PARTS:
            add_row(table, row_label(str(row["name"])), *_part_cells(row, why.unit))
    yield table


def _part_cells(row: dict[str, object], unit: str) -> list[str]:
    values = {name: value if isinstance(value, float) else None for name, value in row.items()}
    sides = ["absent" if values[name] is None else amount(values[name], unit) for name in ("first", "other")]
    return [
        *sides,
        change(values["difference"], unit),
        between(values["low"], values["high"], unit),
        share(values["share"]),
    ]


def _over_settings(comparison: Comparison) -> Iterator[RenderableType]:
    """Geometric means over the settings, where there are several."""
    if len(comparison.settings) < 2:
        return
    table = new_table(f"over {len(comparison.settings)} settings", "", f"/ {letter(0)}", "95 % CI")
    for title, other, found in comparison.overall_ratios():
        ends = "" if found.low is None or found.high is None else f"[{number(found.low)}, {number(found.high)}]"
        add_row(table, title, letter(other), number(found.value, 4), ends)
    yield Text("")
    yield table


_OUTCOME_STYLES = {REGRESSION: "bold red", NONE: "bold green", UNSURE: "bold yellow"}
_TITLES = ("what", "baseline", "run", "change", "95 % CI", "allowed", "outcome")
_SPECIAL = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_{}[]<>()#+!|~"})


def render_check(check: Check) -> RenderableType:
    """The outcome, a row a limit, and what each outcome rests on."""
    table = new_table(*_TITLES)
    for row in check.judged:
        add_row(table, *_cells(row))
    return Group(
        Text(f"{check.outcome}: {_checked_sides(check)}", style=_OUTCOME_STYLES[check.outcome], overflow="fold"),
        table,
        *(Text(f"- {line}", style="dim", overflow="fold") for line in reasons(check)),
    )


def markdown(check: Check) -> str:
    """The same as a Markdown section; names are escaped."""
    rows = [_TITLES, ("---",) * len(_TITLES), *(_cells(judged) for judged in check.judged)]
    lines = [f"### Stepscope: {check.outcome}", "", _escaped(_checked_sides(check)), ""]
    lines += ["| " + " | ".join(cell if cell == "---" else _escaped(cell) for cell in row) + " |" for row in rows]
    lines += ["", *(f"- {_escaped(line)}" for line in reasons(check))]
    return "\n".join(lines) + "\n"


def reasons(check: Check) -> list[str]:
    """Return the basis of each outcome, and what was not measured at all."""
    said = [f"{row.what}: {row.outcome}: {row.why}" for row in check.judged]
    return [*said, *(f"{what}: not judged: it was not measured on both sides" for what in check.not_judged)]


def _checked_sides(check: Check) -> str:
    mine, theirs = (plural(count, "run") for count in check.runs)
    return f"{check.run} ({mine}) against {check.baseline} ({theirs})"


def _cells(row: Judged) -> tuple[str, ...]:
    label = find(row.metric).title if row.metric else row.what.capitalize()
    ends = NOT_MEASURED if row.low is None or row.high is None else f"[{_growth(row.low)}, {_growth(row.high)}]"
    values = (amount(value, row.unit) if row.unit else NOT_MEASURED for value in (row.baseline, row.run))
    return (label, *values, _growth(row.ratio), ends, f"+{number(row.limit * 100)} %", row.outcome)


def _growth(ratio: float | None) -> str:
    """A ratio as growth in percent with its sign."""
    if ratio is None:
        return NOT_MEASURED
    return f"{'+' if ratio >= 1 else ''}{percent(ratio - 1)}"


def _escaped(text: str) -> str:
    return text.replace("\n", " ").translate(_SPECIAL)
