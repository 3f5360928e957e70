"""A study on paper: whole, also with what no font has, with tables too wide or too long, and without pictures.

And its findings where the libraries of pages are not installed.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from stepscope.analysis.results import Findings, ResultTable
from stepscope.report import study_results
from stepscope.report.study_results import pictures_hint, write_pictures

TABLE = ResultTable("fit", "Which fit", ("model", "here", "why"), (("lenet", True, "small"), ("bert", None, "≤ 7 GB")))
FINDINGS = Findings("A study", "It fits.", (TABLE,), notes=("measured on one board",), study="paper", device="a board")


def pages(path: Path) -> int:
    content = path.read_bytes()
    assert content.startswith(b"%PDF-")
    assert content.rstrip().endswith(b"%%EOF")
    return len(re.findall(rb"/Type /Page\b(?!s)", content))


def written(folder: Path, *tables: ResultTable, **more: str) -> Path:
    path = folder / study_results.PDF_NAME
    told: dict[str, Any] = {"title": "A study", "answer": "It fits.", "tables": tables or (TABLE,), **more}
    findings = Findings(**told)
    study_results.write_pdf(findings, {}, folder / "figures", path)
    return path


def test_a_study_is_written_as_pdf_beside_its_page(tmp_path: Path) -> None:
    write_pictures(FINDINGS, lambda: {}, tmp_path, ())
    assert pages(tmp_path / "report.pdf") == 1


def test_the_same_study_is_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    assert written(tmp_path).read_bytes() == written(tmp_path / "again").read_bytes()


def test_a_long_table_goes_over_several_pages(tmp_path: Path) -> None:
    rows = tuple((f"layer {number}", float(number), "text " * 12) for number in range(300))
    assert pages(written(tmp_path, ResultTable("long", "Long", ("layer", "ms", "why"), rows))) > 4


@pytest.mark.parametrize("count", [1, 12, 40])
def test_a_table_of_any_width_stays_on_the_paper(tmp_path: Path, count: int) -> None:
    columns = tuple(f"quantity-{number}" for number in range(count))
    table = ResultTable("wide", "Wide", columns, tuple(tuple(float(n) for n in range(count)) for _ in range(3)))
    assert pages(written(tmp_path, table)) == 1
    widths = study_results._column_widths([columns, ["1"] * count], 5.0)
    assert sum(widths) <= study_results._PAGE_WIDTH + 1e-6
    assert min(widths) > 0


@pytest.mark.parametrize("text", ["<b>", "&amp;", "a\x00b", "中文", "→ ≤ µ °C ±", "x" * 500, "", "</para>", "\u202e"])
def test_any_text_can_stand_in_title_answer_and_cells(tmp_path: Path, text: str) -> None:
    table = ResultTable("any", text or "-", ("a", text), ((text, text), (None, 1.0)), text)
    assert pages(written(tmp_path, table, title=text, answer=text, device=text, command=text)) >= 1


def test_a_cell_longer_than_a_page_is_divided(tmp_path: Path) -> None:
    table = ResultTable("long", "Long", ("a", "b"), (("word " * 6000, 1.0),))
    assert pages(written(tmp_path, table)) > 1


@pytest.mark.parametrize(("columns", "letters"), [(3, 300), (10, 3000), (130, 40), (1, 5000)])
def test_one_long_word_leaves_room_for_the_other_columns(tmp_path: Path, columns: int, letters: int) -> None:
    titles = tuple(f"c{number}" for number in range(columns))
    table = ResultTable("any", "Any", titles, (("x" * letters, *("text",) * (columns - 1)),))
    assert pages(written(tmp_path, table, ResultTable("none", "None", (), ()))) >= 1


def test_a_title_longer_than_a_page_is_cut(tmp_path: Path) -> None:
    assert pages(written(tmp_path, ResultTable("any", "Any", ("title " * 5000, "b"), (("a", 1.0),)))) == 1


def test_a_table_without_rows_is_its_titles(tmp_path: Path) -> None:
    assert pages(written(tmp_path, ResultTable("none", "None", ("a", "b"), ()))) == 1


def test_columns_have_room_for_their_longest_word_where_all_have() -> None:
    from reportlab.pdfbase.pdfmetrics import stringWidth

    study_results._register_fonts()
    widths = study_results._column_widths(
        [["name", "why"], ["inception-v1-narrow-c32", "a text of many words " * 20]], 8.0
    )
    assert widths[0] > stringWidth("inception-v1-narrow-c32", "Vera", 8.0)
    assert widths[1] > widths[0]


def test_without_the_libraries_of_pages_findings_stand_and_what_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "altair" else find_spec(name))

    def charts() -> Any:
        raise AssertionError("nothing can be drawn")

    write_pictures(Findings("Faster", "Cannot tell yet.", (), ()), charts, tmp_path, ("svg",))
    assert list(tmp_path.iterdir()) == []
    hint = pictures_hint(tmp_path)
    assert "findings.json" in hint
    assert "the page needs altair, which is not installed; pip install 'stepscope[report]'" in hint
