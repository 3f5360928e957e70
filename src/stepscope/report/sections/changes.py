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
    found = what_to_change(run)
    gain = (Note(found.gain),) if found.gain else ()
    if not found.tables:
        command = (Note("To measure them:"), Command(found.command)) if found.command else ()
        shown = (Items(found.untried), *command) if found.untried else command
        return Section(found.sentence, (*gain, *shown), closed=not gain)
    first = [table for table in found.tables if table.name in _FIRST]
    rest = [table for table in found.tables if table.name not in _FIRST]
    closed = (More("The check at the end, and changes without a certain gain", tuple(_parts(rest))),) if rest else ()
    command = (Note("Measured with:"), Command(found.command)) if found.command else ()
    shown = (*gain, *_parts(first), *closed, *command)
    return Section(found.sentence, shown, closed=not first and not gain)


def _parts(tables: Iterable[ResultTable]) -> Iterator[Part]:
    for table in tables:
        yield result_table(table)
        if table.note:
            yield Note(table.note)
