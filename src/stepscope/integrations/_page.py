"""The page of a run for those tools that keep files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.errors import MissingDependency

if TYPE_CHECKING:
    from stepscope.analysis.run import Run


def page_in(run: Run, folder: Path) -> Path | None:
    """report.html, written into a folder; None where the libraries that draw it are not installed."""
    from stepscope.report import html

    try:
        return html.write(run, folder / "report.html")
    except MissingDependency:
        return None
