"""Draws the results of a study: tables for the terminal, figures as files, and a page in the style of a run's page."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stepscope.analysis.results import Findings, ResultTable, Value
from stepscope.errors import MissingDependency
from stepscope.quantities import simulated_badge
from stepscope.report.table import Cell, Column, SplitTable, Table
from stepscope.units import NOT_MEASURED, number

Charts = Mapping[str, tuple[Callable[[int], Any], str]]  # by name: the chart for a width in px, and its caption


def text(findings: Findings) -> Iterator[Any]:
    """Return what the terminal shows, from top to bottom: rich renderables."""
    from rich.markup import escape

    badge = f"[bold]{escape(simulated_badge(findings.simulated))}[/bold]. " if findings.simulated else ""
    yield f"[bold]{escape(findings.title)}[/bold]   {escape(findings.device)}"
    yield f"{badge}{escape(findings.answer)}\n"
    for table in findings.tables:
        yield SplitTable(result_table(table), table.title)
        if table.note:
            yield f"[dim]{escape(table.note)}[/dim]"
        yield ""
    for note in findings.notes:
        yield f"[dim]- {escape(note)}[/dim]"


def render(findings: Findings, charts: Charts) -> str:
    """The page of a study as HTML text; `charts` are drawn below the answer in their order."""
    from stepscope.report.html import PageSection, render_page
    from stepscope.report.page.parts import Command, Facts, Figure, Items, Note, Section

    figures = tuple(Figure(chart, caption, name) for name, (chart, caption) in charts.items())
    settings = {**findings.versions, **findings.settings}
    facts = Facts(tuple((name.replace("_", " "), setting_text(value)) for name, value in settings.items()
                        if value not in (None, [], ())))  # fmt: skip
    # Without a figure the answer is a part itself: a section without parts becomes a phrase at the end of the page.
    answer = Section(findings.answer, figures) if figures else Section("", (Note(findings.answer),))
    entries = [PageSection("answer", "Answer", answer)]
    entries += [
        PageSection(
            table.name, table.title, Section("", (result_table(table), *([Note(table.note)] if table.note else [])))
        )
        for table in findings.tables
    ]
    if findings.notes:
        rows = tuple((note, "") for note in findings.notes)
        entries.append(PageSection("limits", "What limits this", Section("", (Items(rows),))))
    entries.append(PageSection("repeat", "How to repeat it", Section("", (Command(findings.command), facts))))
    alert = f"{simulated_badge(findings.simulated)}, not of this machine." if findings.simulated else None
    return render_page(findings.title, [findings.study, findings.device], alert, entries)


def write_pictures(findings: Findings, make: Callable[[], Charts], folder: Path, forms: tuple[str, ...]) -> None:
    """Write figures, page and PDF beside the findings; without the extra `report` nothing, since those stand already.

    The PDF takes the pictures of the form png, and needs reportlab; it is not written where that is missing.
    """
    from stepscope.report.html import refuse_without_libraries, write_text
    from stepscope.report.study_pdf import NAME, write_pdf

    try:
        refuse_without_libraries()
    except MissingDependency:
        return
    charts = make()
    save_figures(charts, folder / "figures", findings.title, forms)
    write_text(folder / "page.html", render(findings, charts))
    (folder / NAME).unlink(missing_ok=True)
    with contextlib.suppress(ImportError):
        write_pdf(findings, charts, folder / "figures", folder / NAME)


def pictures_hint(folder: Path) -> str:
    """Return where page and figures are, for a terminal, or what it takes to have them."""
    from stepscope.report.html import refuse_without_libraries

    try:
        refuse_without_libraries()
    except MissingDependency as error:
        return f"findings: {folder / 'findings.json'}\nno page and no figures: {error}; {error.hint}\n"
    paper = folder / "report.pdf"
    sentence = f"on paper: {paper}" if paper.is_file() else "no PDF without reportlab: pip install 'stepscope[report]'"
    return f"page and figures: {folder / 'page.html'}, {sentence}\n"


def save_figures(charts: Charts, folder: Path, title: str, forms: tuple[str, ...]) -> list[Path]:
    """Write every chart in every form (png, svg, pdf, vega) into a folder, which is made; the paths."""
    from stepscope.report.figures import write_chart

    return [
        write_chart(chart, f"{title}: {caption}", folder, name, form)
        for name, (chart, caption) in charts.items()
        for form in forms
    ]


def value_text(value: Value) -> str:
    """One value as tables say it: a count whole, else some digits, yes or no, and a dash for what was not measured."""
    if value is None:
        return NOT_MEASURED
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, str) else number(value)


def setting_text(value: Any) -> str:
    """One setting as a page says it: yes or no, the values of a list, everything else as it was given."""
    if isinstance(value, bool):
        return value_text(value)
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _numeric(table: ResultTable, place: int) -> bool:
    values = [row[place] for row in table.rows if row[place] is not None]
    return bool(values) and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def result_table(table: ResultTable) -> Table:
    """Return the table of a study as every medium draws it."""
    columns = tuple(
        Column(name, _numeric(table, index), table.meanings.get(name, ""), fold=True)
        for index, name in enumerate(table.columns)
    )
    rows = [tuple(Cell(value_text(value), value) for value in row) for row in table.rows]
    return Table(table.name, columns, rows, lively=len(rows) > 6)
