"""Changes worth making: what `stepscope tune` measured of this training, or the changes that it would try."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.analysis.tuning import what_to_change
from stepscope.report.page.parts import Command, Items, Note, Part, Section
from stepscope.report.study_results import page_table

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "What to change"
ORDER = 11


def build(run: Run) -> Section:
    """The measured table, or names without a gain and the command that would measure them."""
    found = what_to_change(run)
    parts: list[Part] = []
    for table in found.tables:
        parts += [page_table(table), *([Note(table.note)] if table.note else [])]
    if found.untried:
        return Section(found.sentence, (Items(found.untried), Command(found.command)), closed=True)
    return Section(found.sentence, (*parts, Command(found.command)))
