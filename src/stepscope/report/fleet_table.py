"""The tables of a fleet: its devices, and what each setting took on each board."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from rich import box
from rich.console import RenderableType
from rich.table import Table

from stepscope.report.suite_tables import differing_axes, setting_words, shown_columns, with_interval
from stepscope.units import NOT_MEASURED


def fleet_status(rows: Sequence[Sequence[str]]) -> RenderableType:
    """A row for each device: name, board, state, Stepscope, torch, clock less ours."""
    return _table(("device", "board", "state", "stepscope", "torch", "clock"), rows)


def fleet_results_table(frame: pl.DataFrame) -> RenderableType:
    """A row for each setting and board."""
    shown, several = shown_columns(frame), differing_axes(frame)
    titles = ("workload", "batch", *(["setting"] if several else []), "board", *(title for title, *_ in shown))
    rows = []
    for row in frame.iter_rows(named=True):
        what = [setting_words(row, several)] if several else []
        values = [with_interval(row, column, form) for _, column, form in shown]
        ends = (row["status"], row["data"] or NOT_MEASURED)
        rows.append((row["workload"], str(row["batch"]), *what, row["board"], *values, *ends))
    return _table((*titles, "status", "data"), rows)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    drawn = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for title in titles:
        drawn.add_column(title, overflow="fold")
    for row in rows:
        drawn.add_row(*(cell.replace("[", r"\[") for cell in row))
    return drawn
