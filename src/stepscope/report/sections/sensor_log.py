"""A sensor log without a training: every channel, by plain arithmetic on its readings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.analysis.sensor_log import log_table
from stepscope.report.page.parts import Note, Section
from stepscope.report.study_results import result_table

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "Sensor log"
ORDER = 13


def build(run: Run) -> Section:
    """The table of all channels; nothing of a run that has steps."""
    table = log_table(run)
    return Section("") if table is None else Section("", (result_table(table), Note(table.note)))
