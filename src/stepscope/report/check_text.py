"""A check of a run against its baseline, on the terminal and as Markdown for the summary of a CI job."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from stepscope.analysis.compare import NONE, REGRESSION, UNSURE, Check, Judged
from stepscope.quantities import find
from stepscope.report.text_tables import add_row, new_table
from stepscope.units import NOT_MEASURED, amount, number, percent, plural

_STYLES = {REGRESSION: "bold red", NONE: "bold green", UNSURE: "bold yellow"}
_TITLES = ("what", "baseline", "run", "change", "95 % CI", "allowed", "outcome")
_SPECIAL = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_{}[]<>()#+!|~"})


def render(check: Check) -> RenderableType:
    """The outcome, a row a limit, and what each outcome rests on."""
    table = new_table(*_TITLES)
    for one in check.judged:
        add_row(table, *_cells(one))
    return Group(
        Text(f"{check.outcome}: {_sides(check)}", style=_STYLES[check.outcome], overflow="fold"),
        table,
        *(Text(f"- {line}", style="dim", overflow="fold") for line in reasons(check)),
    )


def markdown(check: Check) -> str:
    """The same as a Markdown section; names are escaped."""
    rows = [_TITLES, ("---",) * len(_TITLES), *(_cells(one) for one in check.judged)]
    lines = [f"### Stepscope: {check.outcome}", "", _escaped(_sides(check)), ""]
    lines += ["| " + " | ".join(cell if cell == "---" else _escaped(cell) for cell in row) + " |" for row in rows]
    lines += ["", *(f"- {_escaped(line)}" for line in reasons(check))]
    return "\n".join(lines) + "\n"


def reasons(check: Check) -> list[str]:
    """Return the basis of each outcome, and what was not measured at all."""
    said = [f"{one.what}: {one.outcome}: {one.why}" for one in check.judged]
    return [*said, *(f"{what}: not judged: it was not measured on both sides" for what in check.not_judged)]


def _sides(check: Check) -> str:
    mine, theirs = (plural(count, "run") for count in check.runs)
    return f"{check.run} ({mine}) against {check.baseline} ({theirs})"


def _cells(one: Judged) -> tuple[str, ...]:
    label = find(one.metric).title if one.metric else one.what.capitalize()
    ends = NOT_MEASURED if one.low is None or one.high is None else f"[{_growth(one.low)}, {_growth(one.high)}]"
    values = (amount(value, one.unit) if one.unit else NOT_MEASURED for value in (one.baseline, one.run))
    return (label, *values, _growth(one.ratio), ends, f"+{number(one.limit * 100)} %", one.outcome)


def _growth(ratio: float | None) -> str:
    """A ratio as growth in percent with its sign."""
    if ratio is None:
        return NOT_MEASURED
    return f"{'+' if ratio >= 1 else ''}{percent(ratio - 1)}"


def _escaped(text: str) -> str:
    return text.replace("\n", " ").translate(_SPECIAL)
