"""The page of a comparison, in the style of the page of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.analysis.compare import WHAT, Comparison, side_letter
from stepscope.analysis.compare.explanation import UNATTRIBUTED_PARTS, Explanation
from stepscope.analysis.compare.run_groups import setting_of
from stepscope.quantities import simulated_badge
from stepscope.report.charts.comparison import build_parts, build_ratios
from stepscope.report.comparison import (
    GROUPINGS,
    LAYER_TITLES,
    TITLES,
    QuantityRow,
    difference_interval_text,
    layer_table,
    overall_table,
    part_name,
    part_table,
    program_table,
    quantity_rows,
    quantity_table,
    side_legend,
    signed_difference,
    title_of,
    total_difference,
)
from stepscope.report.html import PageSection, render_page, write_text
from stepscope.report.page.parts import Facts, Figure, Items, More, Note, Part, Section
from stepscope.report.table import Cell, Column, Table
from stepscope.units import capitalize_first, plural

_BARS = 14
_MOST_ROWS = 400
_MOST_EXPLAINED = 12  # settings
_SCALES = {"ns": (1e6, "ms"), "B": (1e6, "MB"), "J": (1.0, "J")}


def write(comparison: Comparison, path: str | Path, whats: Sequence[str] = tuple(TITLES)) -> Path:
    """Write the page of a comparison to a file and return its path; whats: the differences that are explained."""
    return write_text(path, render(comparison, whats))


def render(comparison: Comparison, whats: Sequence[str] = tuple(TITLES)) -> str:
    """The page as HTML text."""
    about = [plural(len(comparison.run_groups), "side"), f"compared with {side_letter(0)}", f"per {comparison.per}"]
    boards = {run.simulated for setting in comparison.settings for side in setting.sides for run in side} - {None}
    badge = simulated_badge(", ".join(sorted(map(str, boards))))
    return render_page(_title(comparison), about, None, list(_entries(comparison, whats)), badge=badge)


def _title(comparison: Comparison) -> str:
    """What was trained, where every side is one run of it; else the names of the sides, which folders have."""
    sides = comparison.settings[0].sides
    trained = {str(setting_of(side[0])["workload"]) for side in sides}
    if len(comparison.settings) == 1 and len(trained) == 1 and all(len(side) == 1 for side in sides):
        return f"{plural(len(sides), 'run')} of {trained.pop()} compared"
    names = [name for _, name, _ in side_legend(comparison)]
    return " and ".join(names) if len(names) == 2 else f"{names[0]} and {plural(len(names) - 1, 'other')}"


def _entries(comparison: Comparison, whats: Sequence[str]) -> Iterator[PageSection]:
    yield PageSection("overview", "Overview", _overview(comparison))
    settings = comparison.settings
    if len(settings) > 1:
        yield PageSection("settings", "Settings", Section("The numbers of each setting that all of them have.",
                                                    (_settings_table(comparison),)))  # fmt: skip
    if len(comparison.run_groups) > 2:
        for index, setting in enumerate(settings[:_MOST_EXPLAINED]):
            tables = tuple(_layer_tables(comparison, index))
            if tables:
                of = f"{setting.label}: " if setting.label else ""
                lede = "What each layer takes in each run, without the layers inside it."
                yield PageSection(f"layers-{index}", f"{of}Layers", Section(lede, tables))
    for index, setting in enumerate(settings[:_MOST_EXPLAINED]):
        for what, title in ((what, title_of(comparison, what)) for what in whats):
            parts, reasons = _explanation_parts(comparison, what, index)
            anchor, of = f"{what}-{index}", f"{setting.label}: " if setting.label else ""
            lede = f"Which parts of the {title} make the difference. They add up to it; what is unattributed is shown."
            if parts:
                section = Section(lede, (*parts, *(Note(f"{reason}.") for reason in reasons)))
                yield PageSection(anchor, f"{of}{capitalize_first(what)}", section)
            elif what != "kernels":
                yield PageSection(anchor, f"{of}{capitalize_first(what)}", Section("; ".join(reasons), ()))
    yield PageSection("sides", "Runs", _sides_section(comparison))


def _layer_tables(comparison: Comparison, setting: int) -> Iterator[Table]:
    """A table for each quantity that was measured: a layer a row, and for each run its value with the 95 % CI."""
    marks = [f"{side_letter(side)} with CI" for side in range(len(comparison.run_groups))]
    for quantity in LAYER_TITLES:
        table = layer_table(comparison, quantity, setting)
        if table is not None:
            yield table.select_columns(("Layer", "Type", *marks))


def _overview(comparison: Comparison) -> Section:
    mean = None if len(comparison.settings) == 1 else overall_table(comparison)
    lede = " ".join(comparison.sentences()) if mean is None else f"Over {len(comparison.settings)} shared settings."
    marks = Facts(tuple((f"{mark}{' (reference)' * (mark == side_letter(0))}", f"{name}: {about}")
                        for mark, name, about in side_legend(comparison)))  # fmt: skip
    parts: list[Part] = [marks]
    if mean is not None:
        return Section(lede, (marks, mean, *_notes(comparison)))
    rows = list(quantity_rows(comparison))
    drawn = _ratio_points(rows)
    if len(drawn):
        caption = "Ratio of each number to that of A with its 95 % CI; the line at 1 is no difference."
        parts.append(Figure(lambda width: build_ratios(drawn, width), caption))
    return Section(lede, (*parts, quantity_table(comparison), *_notes(comparison)))


def _notes(comparison: Comparison) -> list[Part]:
    return [Items(tuple((note, "") for note in comparison.notes), "What to know")] if comparison.notes else []


def _ratio_points(rows: list[QuantityRow]) -> pl.DataFrame:
    ratios = [row for row in rows if row.numbers["ratio"] is not None and row.numbers["side"] > 0]
    points = [
        {
            **{"label": row.label, "letter": row.letter, "ratio": row.numbers["ratio"]},
            **{"low": row.numbers["ratio_low"], "high": row.numbers["ratio_high"]},
            "hover": f"{row.label}, {row.letter}: {row.ratio} times A ({row.ratio_interval or 'no interval'})",
        }
        for row in ratios
    ]
    names = ("label", "letter", "hover")
    schema = {**dict.fromkeys(names[:2], pl.String), **dict.fromkeys(("ratio", "low", "high"), pl.Float64)}
    return pl.DataFrame(points, schema={**schema, "hover": pl.String})


def _settings_table(comparison: Comparison) -> Table:
    tables = [quantity_table(comparison, index) for index in range(len(comparison.settings))]
    labels = [setting.label for setting in comparison.settings]
    rows = [(Cell(label, label), *row) for label, table in zip(labels, tables, strict=True) for row in table.rows]
    return Table("settings", (Column("Setting", numeric=False), *tables[0].columns), rows, first_rows=40)


def _explanation_parts(comparison: Comparison, what: str, setting: int) -> tuple[list[Part], list[str]]:
    """Return the parts of each side, and why there are none: bars and a table by the first grouping, others closed."""
    parts: list[Part] = []
    reasons = []
    for other in range(1, len(comparison.run_groups)):
        whys = [comparison.explain(what, by, other, setting) for by in WHAT[what]]
        if whys[0].reason:
            which = f"{side_letter(0)} to {side_letter(other)}: " if len(comparison.run_groups) > 2 else ""
            reasons.append(f"{which}{whys[0].reason}")
            continue
        tables = tuple(_parts_table(why, other) for why in whys)
        alike = not any(whys[0].parts["difference"])
        parts += [_bars(whys[0], other), *(() if alike else tables[:1])]
        closed, titles = (tables, whys) if alike else (tables[1:], whys[1:])
        if closed:
            parts.append(More(f"By {', '.join(GROUPINGS.get(why.by, why.by) for why in titles)}", closed))
    return parts, reasons


def _bars(why: Explanation, other: int) -> Part:
    scale, unit = _SCALES[why.unit]
    rows = [row for row in why.parts.to_dicts() if row["difference"]]
    largest = [row for row in rows if row["name"] not in UNATTRIBUTED_PARTS][:_BARS]
    largest += [row for row in rows if row["name"] in UNATTRIBUTED_PARTS]
    drawn = pl.DataFrame([_bar(row, why, scale) for row in largest])
    by = GROUPINGS.get(why.by, why.by)
    caption = (
        f"{side_letter(0)} to {side_letter(other)}, {total_difference(why)}: the largest parts by {by} ({why.note})."
    )
    if drawn.is_empty():
        return Note(f"{side_letter(0)} and {side_letter(other)} are alike in every part.")
    return Figure(lambda width: build_parts(drawn, unit, width), caption)


def _bar(row: dict[str, Any], why: Explanation, scale: float) -> dict[str, Any]:
    way = "unattributed" if row["name"] in UNATTRIBUTED_PARTS else "more" if row["difference"] > 0 else "less"
    name = part_name(row, why.by)
    ends = {end: None if row[end] is None else row[end] / scale for end in ("low", "high")}
    interval = difference_interval_text(row["low"], row["high"], why.unit)
    hover = f"{name}: {signed_difference(row['difference'], why.unit)} ({interval})"
    return {"name": name, "way": way, "difference": row["difference"] / scale, **ends, "hover": hover}


def _parts_table(why: Explanation, other: int) -> Table:
    rows = why.parts.head(_MOST_ROWS).to_dicts()
    remaining = why.parts.slice(_MOST_ROWS)["difference"].to_numpy().sum()
    more = len(why.parts) - len(rows)
    caption = f"By {GROUPINGS.get(why.by, why.by)}, {side_letter(0)} to {side_letter(other)}: {total_difference(why)}."
    if more > 0:
        caption += f" {more:,} smaller parts, {signed_difference(float(remaining), why.unit)} together, are not listed."
    return part_table(why, other, rows, caption)


def _sides_section(comparison: Comparison) -> Section:
    parts: list[Part] = []
    for side, group in enumerate(comparison.run_groups):
        rows = [("Runs", ", ".join(run.id for run in group.runs))]
        if side:
            unlike = comparison.differences(side)
            rows += [
                (f"{capitalize_first(name)} (A, {side_letter(side)})", f"{a}, {b}") for name, (a, b) in unlike.items()
            ]
            rows += [] if unlike else [("Setting, device and data", "as those of A")]
        parts.append(Facts(((f"{side_letter(side)}", group.name), *rows)))
        if side and (table := program_table(comparison, side)) is not None:
            parts.append(More(f"What a step of {side_letter(side)} does otherwise ({len(table.rows)})", (table,)))
    return Section("What was compared, and in what the others differ from A.", tuple(parts))
