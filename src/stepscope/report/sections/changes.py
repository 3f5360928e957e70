"""Changes worth making: what `stepscope tune` measured of this training, or the changes that it would try."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from stepscope.analysis.suggested_changes import what_to_change
from stepscope.report.page.parts import Command, Items, More, Note, Part, Section
from stepscope.report.study_results import result_table

if TYPE_CHECKING:
    from stepscope.analysis.results import ResultTable
    from stepscope.analysis.run import Run

TITLE = "What to change"
ORDER = 11

_FIRST = ("helps", "code")  # tables that are not closed


def build(run: Run) -> Section:
    """The measured table, or names without a gain and the command that would measure them."""
    changes = what_to_change(run)
    gain = (Note(changes.gain),) if changes.gain else ()
    if not changes.tables:
        command = (Note("To measure them:"), Command(changes.command)) if changes.command else ()
        parts = (Items(changes.untried), *command) if changes.untried else command
        return Section(changes.sentence, (*gain, *parts), closed=not gain)
    first = [table for table in changes.tables if table.name in _FIRST]
    further_tables = [table for table in changes.tables if table.name not in _FIRST]
    closed = (
        (More("The check at the end, and changes without a certain gain", tuple(_parts(further_tables))),)
        if further_tables
        else ()
    )
    command = (Note("Measured with:"), Command(changes.command)) if changes.command else ()
    parts = (*gain, *_parts(first), *closed, *command)
    return Section(changes.sentence, parts, closed=not first and not gain)


def _parts(tables: Iterable[ResultTable]) -> Iterator[Part]:
    for table in tables:
        yield result_table(table)
        if table.note:
            yield Note(table.note)
