"""What the run cannot say, why, and what would change it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.report.page.parts import Items, Section

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "Not measured"
ORDER = 70


def build(run: Run) -> Section:
    """Every entry of `run.not_measured()`."""
    missing = run.not_measured()
    if not missing:
        return Section("Nothing that this report looks for is missing.")
    rows = tuple((_capital(entry.what.replace("_", " ")), _why(entry.why, entry.remedy)) for entry in missing)
    return Section("What this run cannot say. Nothing of it is 0: it is unknown.", (Items(rows),))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _why(why: str, remedy: str | None) -> str:
    return f"{_capital(why)}. To change it: {remedy}." if remedy else f"{_capital(why)}."
