"""Section of what the run cannot say, why, and what would change it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepscope.analysis.caveats import GROUPS
from stepscope.report.page.parts import Items, More, Part, Section
from stepscope.units import capitalize_first

if TYPE_CHECKING:
    from stepscope.analysis.caveats import NotMeasured
    from stepscope.analysis.run import Run

TITLE = "Not measured"
ORDER = 70


def build(run: Run) -> Section:
    """Every entry of `run.not_measured()`: all names in a sentence, then by group; where was looked is folded."""
    missing = run.not_measured()
    if not missing:
        return Section("")
    names = ", ".join(dict.fromkeys(_underscores_to_spaces(entry.what) for entry in missing))
    lede = f"Not measured in this run: {names}. These are unknown, not 0."
    return Section(lede, (*_parts_by_group(missing), *_details(missing)), closed=True)


def _parts_by_group(missing: list[NotMeasured]) -> Iterator[Part]:
    for group in GROUPS:
        rows = tuple(
            (capitalize_first(_underscores_to_spaces(e.what)), _reason_text(e.why, e.remedy))
            for e in missing
            if e.group == group
        )
        if rows:
            yield Items(rows, capitalize_first(group))


def _details(missing: list[NotMeasured]) -> Iterator[Part]:
    rows = tuple(
        (capitalize_first(_underscores_to_spaces(entry.what)), f"{capitalize_first(entry.detail)}.")
        for entry in missing
        if entry.detail
    )
    if rows:
        yield More("Where Stepscope looked", (Items(rows),))


def _underscores_to_spaces(what: str) -> str:
    return what.replace("_", " ")


def _reason_text(why: str, remedy: str | None) -> str:
    return f"{capitalize_first(why)}. To change it: {remedy}." if remedy else f"{capitalize_first(why)}."
