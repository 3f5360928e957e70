"""A comparison on the terminal: the numbers side by side, and the parts that explain the difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stepscope.analysis.compare import QUANTITIES, WHAT, Comparison
from stepscope.analysis.compare_parts import RESIDUALS, Explanation
from stepscope.report.compare_rows import (
    TITLES,
    amount,
    between,
    change,
    legend,
    letter,
    part_name,
    quantity_rows,
    share,
    whole,
)
from stepscope.report.text_tables import add_row, new_table
from stepscope.units import number, plural

_STYLES = {"better": "green", "worse": "red", "none seen": "dim", "no interval": "dim"}


def render(
    comparison: Comparison, by: Sequence[str] = ("module", "kind"), top: int = 8, whats: Sequence[str] = tuple(TITLES)
) -> RenderableType:
    """Operands, numbers, what explains them, and what to know when reading; `top` parts of each difference."""
    parts: list[RenderableType] = [_operands(comparison)]
    for index, setting in enumerate(comparison.settings):
        if setting.label:
            parts += [Text(""), Text(setting.label, style="bold")]
        parts += [Text(""), _quantities(comparison, index)]
        parts += [Text(line, overflow="fold") for line in comparison.sentences(index)]
        if len(comparison.settings) == 1:
            parts += _explained(comparison, by, top, whats)
    parts += _over_settings(comparison)
    parts += [Text(f"- {note}", style="dim", overflow="fold") for note in comparison.notes]
    return Group(*parts)


def _operands(comparison: Comparison) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    for mark, name, about in legend(comparison):
        reference = "  (the others are compared with it)" if mark == letter(0) else ""
        table.add_row(Text(mark, style="bold"), Text(name, overflow="fold"), Text(about + reference, style="dim"))
    return table


def _quantities(comparison: Comparison, setting: int) -> RenderableType:
    table = new_table("side by side", "", "value", "95 % interval", f"/ {letter(0)}", "95 % interval")
    table.add_column("", no_wrap=True)
    last = ""
    for row in quantity_rows(comparison, setting):
        mark = Text(row.outcome, style=_STYLES.get(row.outcome, ""))
        label = row.label if row.label != last else ""
        cells = (label, row.letter, row.value, row.interval, row.ratio, row.ratio_interval)
        table.add_row(*(Text(cell) for cell in cells), mark)
        last = row.label
    return table


def _explained(comparison: Comparison, by: Sequence[str], top: int, whats: Sequence[str]) -> Iterator[RenderableType]:
    for other in range(1, len(comparison.operands)):
        for what in whats:
            shown = [comparison.explain(what, way, other) for way in by if way in WHAT[what]]
            reasons = {why.reason for why in shown if why.reason}
            if reasons and what != "kernels":
                yield Text(
                    f"\n{TITLES[what]}, {letter(other)} - {letter(0)}: {'; '.join(sorted(reasons))}", style="dim"
                )
            for why in shown:
                if not why.reason:
                    yield from _parts(why, other, top)
            if shown and not shown[0].reason:
                yield Text(shown[0].note, style="dim", overflow="fold")


def _parts(why: Explanation, other: int, top: int) -> Iterator[RenderableType]:
    """The largest parts, the rest of them in one row, the residual, and the sum."""
    yield Text(f"\n{TITLES[why.what]} by {why.by}, {letter(0)} to {letter(other)}: {whole(why)}", style="bold")
    table = new_table(f"part ({len(why.parts)})", letter(0), letter(other), "difference", "95 % interval", "share")
    rows = why.parts.to_dicts()
    plain = [row for row in rows if row["name"] not in RESIDUALS]
    for row in plain[:top]:
        add_row(table, part_name(row, why.by), *_cells(row, why.unit))
    rest = plain[top:]
    if rest:
        left = sum(row["difference"] for row in rest)
        said = share(left / why.difference) if why.difference else share(None)
        add_row(table, f"({plural(len(rest), 'other')})", "", "", change(left, why.unit), "", said)
    for row in rows:
        if row["name"] in RESIDUALS:
            add_row(table, str(row["name"]), *_cells(row, why.unit))
    yield table


def _cells(row: dict[str, object], unit: str) -> list[str]:
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
    table = new_table(f"over {len(comparison.settings)} settings", "", f"/ {letter(0)}", "95 % interval")
    for metric, (title, _) in QUANTITIES.items():
        for other in range(1, len(comparison.operands)):
            found = comparison.overall(metric, other)
            if found is not None:
                ends = "" if found.low is None or found.high is None else f"{number(found.low)} to {number(found.high)}"
                add_row(table, title, letter(other), number(found.value, 4), ends)
    yield Text("")
    yield table
