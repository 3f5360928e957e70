"""A study on paper: answer, figures, tables and limits as a PDF of A4 pages, drawn with reportlab (extra `report`)."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from stepscope.analysis.results import Findings, ResultTable
from stepscope.files import atomic_write
from stepscope.quantities import simulated_badge
from stepscope.report.study_results import setting_text, value_text
from stepscope.units import escape_control_characters

if TYPE_CHECKING:
    from stepscope.report.study_results import Charts

NAME = "report.pdf"
_FONTS = {"Vera": "Vera.ttf", "VeraBd": "VeraBd.ttf"}  # that reportlab brings
_INSTEAD = {
    "→": "->",
    "←": "<-",
    "≤": "<=",
    "≥": ">=",
    "−": "-",
    "•": "-",
    "Δ": "delta ",
    "σ": "sigma",
    "✓": "yes",
    "✗": "no",
    "│": "|",
    "─": "-",
    "·": "-",
}
_MARGIN = 48.0  # points, of a page of 595 x 842
_WIDTH, _HEIGHT = 595.0 - 2 * _MARGIN, 842.0 - 2 * _MARGIN
_SIZES = ((6, 8.0), (9, 7.0), (12, 5.8))  # up to so many columns, points of their type
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
        document.build([*_pdf_elements(findings, charts, pictures)], onFirstPage=_footer, onLaterPages=_footer)


def _pdf_elements(findings: Findings, charts: Charts, pictures: Path) -> Iterator[Any]:
    from reportlab.platypus import KeepTogether, Paragraph

    styles = _styles()
    badge = f"{simulated_badge(findings.simulated)}, not of this machine. " if findings.simulated else ""
    yield Paragraph(_paragraph(findings.title), styles["title"])
    yield Paragraph(_paragraph(findings.device), styles["note"])
    yield Paragraph(f"<b>{_paragraph(badge)}</b>{_paragraph(findings.answer)}", styles["text"])
    for name, (_, caption) in charts.items():
        picture = _picture(pictures / f"{name}.png")
        if picture is not None:
            yield KeepTogether([picture, Paragraph(_paragraph(caption), styles["note"])])
    for table in _drawable(findings.tables):
        yield Paragraph(_paragraph(table.title), styles["heading"])
        yield _table(table)
        if table.note:
            yield Paragraph(_paragraph(table.note), styles["note"])
    yield from _lines("What limits this", findings.notes)
    settings = {**findings.versions, **findings.settings}
    facts = [
        f"{name.strip('_').replace('_', ' ')}: {setting_text(value)}"
        for name, value in settings.items()
        if value not in (None, [], ())
    ]
    yield from _lines("How to repeat it", (findings.command, "; ".join(facts)))


def _drawable(tables: Sequence[ResultTable]) -> Iterator[ResultTable]:
    """Tables that fit on paper: one with too many columns is divided, each part with the first; none of no column."""
    for table in tables:
        for begin in range(1, max(len(table.columns), 2), _MOST_COLUMNS):
            places = [0, *range(begin, min(begin + _MOST_COLUMNS, len(table.columns)))] if table.columns else []
            rows = tuple(tuple(row[place] for place in places) for row in table.rows)
            if places:
                yield replace(table, columns=tuple(table.columns[place] for place in places), rows=rows)


def _lines(heading: str, lines: tuple[str, ...]) -> Iterator[Any]:
    from reportlab.platypus import Paragraph

    if any(lines):
        yield Paragraph(heading, _styles()["heading"])
    for line in filter(None, lines):
        yield Paragraph(_paragraph(line), _styles()["line"], bulletText="-")


def _picture(path: Path) -> Any:
    """The picture at its own proportions, at most as wide and half as high as the page; None where there is none."""
    from reportlab.lib.utils import ImageReader
    from reportlab.platypus import Image

    if not path.is_file():
        return None
    width, height = ImageReader(str(path)).getSize()
    scale = min(_WIDTH / width, 0.5 * _HEIGHT / height)
    return Image(str(path), width * scale, height * scale)


def _table(table: ResultTable) -> Any:
    """The table over as many pages as it takes, its titles on each."""
    from reportlab.lib import colors
    from reportlab.platypus import LongTable, Paragraph, TableStyle

    size = next((size for most, size in _SIZES if len(table.columns) <= most), _SMALLEST)
    style = _style(f"cell-{size}", size)
    titles = tuple(title[:_LONGEST_TITLE] for title in table.columns)
    texts = [titles, *(tuple(value_text(value) for value in row) for row in table.rows)]
    rows = [[Paragraph(_paragraph(text), style) for text in row] for row in texts]
    lines = [
        ("VALIGN", (0, 0), (-1, -1), "TOP"), ("LINEBELOW", (0, 0), (-1, 0), 0.6, colors.black),
        ("LINEBELOW", (0, 1), (-1, -1), 0.2, colors.lightgrey), ("LEFTPADDING", (0, 0), (-1, -1), _PADDING),
        ("RIGHTPADDING", (0, 0), (-1, -1), _PADDING), ("TOPPADDING", (0, 0), (-1, -1), 1.5),
        ("BOTTOMPADDING", (0, 0), (-1, -1), 1.5),
    ]  # fmt: skip
    return LongTable(rows, colWidths=_widths(texts, size), repeatRows=1, style=TableStyle(lines), splitInRow=1)


def _widths(texts: Sequence[Sequence[str]], size: float) -> list[float]:
    """Widths of the columns, points: each has room for its longest word where all have, the rest goes to long texts."""
    from reportlab.pdfbase.pdfmetrics import stringWidth

    columns = [[_replace_missing_glyphs(text) for text in column] for column in zip(*texts, strict=True)]
    words = [
        max((stringWidth(w, "Vera", size) for text in column for w in text.split()), default=0) for column in columns
    ]
    whole = [max(stringWidth(text, "Vera", size) for text in column) for column in columns]
    least = [min(word, _WIDTH / len(columns) - 2 * _PADDING - 1) + 2 * _PADDING + 1 for word in words]
    wanted = [max(text + 2 * _PADDING + 1 - width, 0.0) for text, width in zip(whole, least, strict=True)]
    share = min(1.0, (_WIDTH - sum(least)) / max(sum(wanted), 1.0))
    return [width + share * more for width, more in zip(least, wanted, strict=True)]


def _footer(canvas: Any, document: Any) -> None:
    canvas.setFont("Vera", 7)
    canvas.drawRightString(_MARGIN + _WIDTH, 0.6 * _MARGIN, str(document.page))


@functools.cache
def _styles() -> Mapping[str, Any]:
    return {
        "title": _style("title", 15.0, bold=True, after=4.0),
        "heading": _style("heading", 11.0, bold=True, before=12.0, after=4.0),
        "text": _style("text", 9.0, after=4.0),
        "line": _style("line", 9.0, after=4.0, indent=9.0),
        "note": _style("note", 7.5, before=2.0, after=6.0, grey=True),
    }


def _style(
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
    known: Mapping[int, Any] = pdfmetrics.getFont("Vera").face.charToGlyph
    return known


def _paragraph(text: str) -> str:
    """Text as a paragraph takes it, without markup of its own."""
    return escape(_replace_missing_glyphs(text))


def _replace_missing_glyphs(text: str) -> str:
    """Text without characters that the font lacks."""
    shown = "".join(_INSTEAD.get(letter, letter) for letter in escape_control_characters(text))
    return "".join(letter if ord(letter) in _register_fonts() or letter == "\n" else "?" for letter in shown)
