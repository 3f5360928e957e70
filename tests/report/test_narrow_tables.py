"""Tables in narrow terminals: no number is cut or broken, and names stay apart."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from stepscope.report.table import Cell, Column, FittedTable, SplitTable, Table

NAMES = ("Simulated power of the whole module, rail VDD_IN", "Simulated power of the whole module, rail VDD_CPU")
NUMBERS = ("1,234,567 ms", "[0.936, 1.234]", "98.7 %", "1.19 min", "12.3 J")
COLUMNS = (Column("name", False, names=True), *(Column(f"number {place}") for place in range(5)))
TABLE = Table("t", COLUMNS, [tuple(map(Cell, (name, *NUMBERS))) for name in NAMES])


def drawn(shown: RenderableType, width: int) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(shown)
    assert max(map(len, captured.get().splitlines())) <= width
    return captured.get()


@pytest.mark.parametrize("width", [60, 80])
def test_a_report_table_that_does_not_fit_goes_on_below_with_whole_numbers_and_different_names(width: int) -> None:
    for shown in (
        SplitTable(TABLE, "a heading", "report"),
        FittedTable(TABLE, [[column.title for column in COLUMNS[1:]]]),
    ):
        text = drawn(shown, width)
        assert all(text.count(number) == 2 for number in NUMBERS)
        names = {line.split("  ")[0] for line in text.splitlines() if line.startswith("Sim")}
        assert len({name[-6:] for name in names}) == 2
        assert min(map(len, names)) >= 16


@pytest.mark.parametrize("width", [60, 80])
def test_a_table_of_a_suite_breaks_no_number(width: int) -> None:
    columns = tuple(replace(column, names=False, fold=True) for column in COLUMNS)
    rows = [tuple(map(Cell, ("lenet", "6.02 ms ±131%", "1,234.5 ±12%", "reserved", "98.76 MB", "0.123456 J")))]
    text = drawn(Table("results", columns, rows), width)
    for word in ("6.02", "±131%", "1,234.5", "±12%", "reserved", "98.76", "0.123456"):
        assert re.search(rf"(^|\s){re.escape(word)}(\s|$)", text, re.MULTILINE), text


def test_a_heading_without_room_stands_above_its_table() -> None:
    assert "what a step does otherwise, B (40)\n" in drawn(
        SplitTable(TABLE, "what a step does otherwise, B (40)", "report"), 60
    )


def test_each_part_of_a_suite_s_table_says_which_setting_a_row_is_of() -> None:
    titles = ("Workload", "Batch", *(f"number {place}" for place in range(5)))
    columns = tuple(Column(title, fold=True) for title in titles)
    rows = [tuple(map(Cell, ("lenet", batch, *NUMBERS))) for batch in ("batch-2", "batch-4")]
    lines = drawn(Table("results", columns, rows, named=2), 60).splitlines()
    of_a_row = [line for line in lines if "lenet" in line]
    assert len(of_a_row) > 2
    assert all("batch-" in line for line in of_a_row)
