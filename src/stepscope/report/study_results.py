"""Draws the results of a study: tables for the terminal, figures as files, a page like that of a run, and a PDF.

The PDF has answer, figures, tables and limits on A4 pages, drawn with reportlab (extra `report`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from stepscope.analysis.results import Findings, ResultTable, Value
from stepscope.errors import MissingDependency
from stepscope.files import atomic_write
from stepscope.quantities import simulated_badge
from stepscope.report.table import Cell, Column, SplitTable, Table
from stepscope.units import NOT_MEASURED, escape_control_characters, number

Charts = Mapping[str, tuple[Callable[[int], Any], str]]  # by name: the chart for a width in px, and its caption
PDF_NAME = "report.pdf"


def text(findings: Findings) -> Iterator[Any]:
    """Return what the terminal shows, from top to bottom: rich renderables."""
    from rich.markup import escape as escape_markup

    badge = f"[bold]{escape_markup(simulated_badge(findings.simulated))}[/bold]. " if findings.simulated else ""
    yield f"[bold]{escape_markup(findings.title)}[/bold]   {escape_markup(findings.device)}"
    yield f"{badge}{escape_markup(findings.answer)}\n"
    for table in findings.tables:
        yield SplitTable(result_table(table), table.title)
        if table.note:
            yield f"[dim]{escape_markup(table.note)}[/dim]"
        yield ""
    for note in findings.notes:
        yield f"[dim]- {escape_markup(note)}[/dim]"


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

    try:
        refuse_without_libraries()
    except MissingDependency:
        return
    charts = make()
    save_figures(charts, folder / "figures", findings.title, forms)
    write_text(folder / "page.html", render(findings, charts))
    (folder / PDF_NAME).unlink(missing_ok=True)
    with contextlib.suppress(ImportError):
        write_pdf(findings, charts, folder / "figures", folder / PDF_NAME)


def pictures_hint(folder: Path) -> str:
    """Return where page and figures are, for a terminal, or what it takes to have them."""
    from stepscope.report.html import refuse_without_libraries

    try:
        refuse_without_libraries()
    except MissingDependency as error:
        return f"findings: {folder / 'findings.json'}\nno page and no figures: {error}; {error.hint}\n"
    paper = folder / PDF_NAME
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


def _is_numeric_column(table: ResultTable, place: int) -> bool:
    values = [row[place] for row in table.rows if row[place] is not None]
    return bool(values) and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def result_table(table: ResultTable) -> Table:
    """Return the table of a study as every medium draws it."""
    columns = tuple(
        Column(name, _is_numeric_column(table, index), table.meanings.get(name, ""), fold=True)
        for index, name in enumerate(table.columns)
    )
    rows = [tuple(Cell(value_text(value), value) for value in row) for row in table.rows]
    return Table(table.name, columns, rows, lively=len(rows) > 6)


_FONTS = {"Vera": "Vera.ttf", "VeraBd": "VeraBd.ttf"}  # that reportlab brings
_SUBSTITUTES = {
    "→": "->", "←": "<-", "≤": "<=", "≥": ">=", "−": "-", "•": "-", "Δ": "delta ", "σ": "sigma", "✓": "yes",
    "✗": "no", "│": "|", "─": "-", "·": "-",
}  # fmt: skip
_MARGIN = 48.0  # points, of a page of 595 x 842
_PAGE_WIDTH, _PAGE_HEIGHT = 595.0 - 2 * _MARGIN, 842.0 - 2 * _MARGIN
_TYPE_SIZES = ((6, 8.0), (9, 7.0), (12, 5.8))  # up to so many columns, points of their type
_SMALLEST = 5.0
_PADDING = 2.0
_MOST_COLUMNS, _LONGEST_TITLE = 25, 200  # beside the first; characters


def write_pdf(findings: Findings, charts: Charts, pictures: Path, path: Path) -> None:
    """Write the study as PDF; `pictures` is the folder that has each chart as PNG."""
    from reportlab.platypus import SimpleDocTemplate

    with atomic_write(path) as part:
        document = SimpleDocTemplate(
            str(part), leftMargin=_MARGIN, rightMargin=_MARGIN, topMargin=_MARGIN, bottomMargin=_MARGIN,
            title=findings.title, author="Stepscope", subject=findings.study, invariant=1,
        )  # fmt: skip
        document.build(
            [*_pdf_elements(findings, charts, pictures)], onFirstPage=_draw_page_number, onLaterPages=_draw_page_number
        )


def _pdf_elements(findings: Findings, charts: Charts, pictures: Path) -> Iterator[Any]:
    from reportlab.platypus import KeepTogether, Paragraph

    styles = _paragraph_styles()
    badge = f"{simulated_badge(findings.simulated)}, not of this machine. " if findings.simulated else ""
    yield Paragraph(_paragraph_markup(findings.title), styles["title"])
    yield Paragraph(_paragraph_markup(findings.device), styles["note"])
    yield Paragraph(f"<b>{_paragraph_markup(badge)}</b>{_paragraph_markup(findings.answer)}", styles["text"])
    for name, (_, caption) in charts.items():
        picture = _pdf_picture(pictures / f"{name}.png")
        if picture is not None:
            yield KeepTogether([picture, Paragraph(_paragraph_markup(caption), styles["note"])])
    for table in _tables_that_fit(findings.tables):
        yield Paragraph(_paragraph_markup(table.title), styles["heading"])
        yield _pdf_table(table)
        if table.note:
            yield Paragraph(_paragraph_markup(table.note), styles["note"])
    yield from _pdf_list("What limits this", findings.notes)
    settings = {**findings.versions, **findings.settings}
    facts = [
        f"{name.strip('_').replace('_', ' ')}: {setting_text(value)}"
        for name, value in settings.items()
        if value not in (None, [], ())
    ]
    yield from _pdf_list("How to repeat it", (findings.command, "; ".join(facts)))


def _tables_that_fit(tables: Sequence[ResultTable]) -> Iterator[ResultTable]:
    """Tables that fit on paper: one with too many columns is divided, each part with the first; none of no column."""
    for table in tables:
        for begin in range(1, max(len(table.columns), 2), _MOST_COLUMNS):
            places = [0, *range(begin, min(begin + _MOST_COLUMNS, len(table.columns)))] if table.columns else []
            rows = tuple(tuple(row[place] for place in places) for row in table.rows)
            if places:
                yield replace(table, columns=tuple(table.columns[place] for place in places), rows=rows)


def _pdf_list(heading: str, lines: tuple[str, ...]) -> Iterator[Any]:
    from reportlab.platypus import Paragraph

    if any(lines):
        yield Paragraph(heading, _paragraph_styles()["heading"])
    for line in filter(None, lines):
        yield Paragraph(_paragraph_markup(line), _paragraph_styles()["line"], bulletText="-")


def _pdf_picture(path: Path) -> Any:
    """The picture at its own proportions, at most as wide and half as high as the page; None where there is none."""
    from reportlab.lib.utils import ImageReader
    from reportlab.platypus import Image

    if not path.is_file():
        return None
    width, height = ImageReader(str(path)).getSize()
    scale = min(_PAGE_WIDTH / width, 0.5 * _PAGE_HEIGHT / height)
    return Image(str(path), width * scale, height * scale)


def _pdf_table(table: ResultTable) -> Any:
    from reportlab.lib import colors
    from reportlab.platypus import LongTable, Paragraph, TableStyle

    size = next((size for most, size in _TYPE_SIZES if len(table.columns) <= most), _SMALLEST)
    style = _paragraph_style(f"cell-{size}", size)
    titles = tuple(title[:_LONGEST_TITLE] for title in table.columns)
    texts = [titles, *(tuple(value_text(value) for value in row) for row in table.rows)]
    rows = [[Paragraph(_paragraph_markup(text), style) for text in row] for row in texts]
    lines = [
        ("VALIGN", (0, 0), (-1, -1), "TOP"), ("LINEBELOW", (0, 0), (-1, 0), 0.6, colors.black),
        ("LINEBELOW", (0, 1), (-1, -1), 0.2, colors.lightgrey), ("LEFTPADDING", (0, 0), (-1, -1), _PADDING),
        ("RIGHTPADDING", (0, 0), (-1, -1), _PADDING), ("TOPPADDING", (0, 0), (-1, -1), 1.5),
        ("BOTTOMPADDING", (0, 0), (-1, -1), 1.5),
    ]  # fmt: skip
    return LongTable(rows, colWidths=_column_widths(texts, size), repeatRows=1, style=TableStyle(lines), splitInRow=1)


def _column_widths(texts: Sequence[Sequence[str]], size: float) -> list[float]:
    """Widths of the columns, points: each has room for its longest word where all have, the rest goes to long texts."""
    from reportlab.pdfbase.pdfmetrics import stringWidth

    columns = [[_replace_missing_glyphs(text) for text in column] for column in zip(*texts, strict=True)]
    words = [
        max((stringWidth(w, "Vera", size) for text in column for w in text.split()), default=0) for column in columns
    ]
    whole = [max(stringWidth(text, "Vera", size) for text in column) for column in columns]
    least = [min(word, _PAGE_WIDTH / len(columns) - 2 * _PADDING - 1) + 2 * _PADDING + 1 for word in words]
    missing_room = [max(text + 2 * _PADDING + 1 - width, 0.0) for text, width in zip(whole, least, strict=True)]
    share = min(1.0, (_PAGE_WIDTH - sum(least)) / max(sum(missing_room), 1.0))
    return [width + share * more for width, more in zip(least, missing_room, strict=True)]


def _draw_page_number(canvas: Any, document: Any) -> None:
    canvas.setFont("Vera", 7)
    canvas.drawRightString(_MARGIN + _PAGE_WIDTH, 0.6 * _MARGIN, str(document.page))


@functools.cache
def _paragraph_styles() -> Mapping[str, Any]:
    return {
        "title": _paragraph_style("title", 15.0, bold=True, after=4.0),
        "heading": _paragraph_style("heading", 11.0, bold=True, before=12.0, after=4.0),
        "text": _paragraph_style("text", 9.0, after=4.0),
        "line": _paragraph_style("line", 9.0, after=4.0, indent=9.0),
        "note": _paragraph_style("note", 7.5, before=2.0, after=6.0, grey=True),
    }


def _paragraph_style(
    name: str, size: float, *, bold: bool = False, before: float = 0, after: float = 0, indent: float = 0,
    grey: bool = False,
) -> Any:  # fmt: skip
    from reportlab.lib import colors
    from reportlab.lib.styles import ParagraphStyle

    _register_fonts()
    return ParagraphStyle(
        name, fontName="VeraBd" if bold else "Vera", fontSize=size, leading=1.25 * size, spaceBefore=before,
        spaceAfter=after, textColor=colors.HexColor("#444444") if grey else colors.black, splitLongWords=1,
        bulletIndent=0, leftIndent=indent,
    )  # fmt: skip


@functools.cache
def _register_fonts() -> Mapping[int, Any]:
    """Register the fonts; returns the characters that they have."""
    from reportlab.pdfbase import pdfmetrics
    from reportlab.pdfbase.ttfonts import TTFont

    for name, file in _FONTS.items():
        pdfmetrics.registerFont(TTFont(name, file))
    pdfmetrics.registerFontFamily("Vera", normal="Vera", bold="VeraBd", italic="Vera", boldItalic="VeraBd")
    glyphs: Mapping[int, Any] = pdfmetrics.getFont("Vera").face.charToGlyph
    return glyphs


def _paragraph_markup(text: str) -> str:
    """Text as a paragraph takes it, without markup of its own."""
    return escape(_replace_missing_glyphs(text))


def _replace_missing_glyphs(text: str) -> str:
    substituted = "".join(_SUBSTITUTES.get(letter, letter) for letter in escape_control_characters(text))
    return "".join(letter if ord(letter) in _register_fonts() or letter == "\n" else "?" for letter in substituted)
