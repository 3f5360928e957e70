"""A sensor log without a training: every channel, by plain arithmetic on its readings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.analysis.sensor_log import CPU, log_table
from stepscope.report.page.parts import Note, Section
from stepscope.report.table import Cell, Column, Table
from stepscope.units import amount, duration, percent

if TYPE_CHECKING:
    from stepscope.analysis.results import ResultTable, Value
    from stepscope.analysis.run import Run

TITLE = "Sensor log"
ORDER = 13


def build(run: Run) -> Section:
    """The table of all channels; nothing of a run that has steps."""
    table = log_table(run)
    return Section("") if table is None else Section("", (log_view(table), Note(table.note)))


def log_view(table: ResultTable) -> Table:
    """The table of a sensor log for people: a channel's quantity and place in one column, values with their units."""
    widths = {"n": 3, "mean": 8, "least": 8, "most": 8, "energy": 7, "idle": 6, "period": 6}
    numbers = (Column(title, True, "readings" if title == "n" else "", wide=width) for title, width in widths.items())
    columns = (Column("channel", numeric=False, names=True), *numbers)
    return Table(table.name, columns, [_view(row) for row in table.rows], lively=len(table.rows) > 6)


def _view(row: tuple[Value, ...]) -> tuple[Cell, ...]:
    quantity, scope, unit, readings, *values, energy, idle, period = row
    place = "of cores" if scope == CPU else str(scope).removeprefix("rail:").removeprefix("zone:")
    name = f"{str(quantity).removeprefix('core_').replace('_', ' ')} {place}"
    cells = [
        (name, name),
        (str(readings), readings),
        *(
            (amount(_float(value), "" if unit == "1" and quantity != "utilisation" else str(unit)), value)
            for value in values
        ),
        (amount(_float(energy), "J"), energy),
        (percent(_float(idle)), idle),
        (duration(None if period is None else 1e9 * float(period)), period),
    ]
    return tuple(Cell(text, value) for text, value in cells)


def _float(value: Value) -> float | None:
    return None if value is None else float(value)
