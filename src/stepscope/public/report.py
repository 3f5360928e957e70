"""`stepscope.text` and `stepscope.page`: what was measured, as `report`, `compare`, `check` and `study` show it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.analysis.compare import Comparison
from stepscope.analysis.findings import Findings
from stepscope.analysis.regression_check import Check
from stepscope.analysis.run import opened

if TYPE_CHECKING:
    from stepscope import Run


def text(shown: str | Path | Run | Comparison | Check | Findings = "last", width: int = 100) -> str:
    """A report as text for a terminal of so many columns, as the commands print it.

    shown: a run (a Run, the path of its folder, its name in `runs`, or "last"), or what `compare`, `check` or `study`
    gave. Raises RunError where a run cannot be read.
    """
    from rich.console import Console

    console = Console(width=width, highlight=False, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(*_renderables(shown), sep="\n")
    return captured.get()


def page(
    shown: str | Path | Run | Comparison = "last", path: str | Path | None = None, *, attribution: str = "fit"
) -> Path:
    """Write one self-contained HTML page of a run or a comparison and return its path.

    shown: a Run, the path of its folder, its name in `runs`, "last", or what `compare` gave. path: report.html in the
    run folder, compare.html here, unless said. attribution: of a run that is opened by this, as of `Run`. Raises
    RunError where a run cannot be read, MissingDependency without the extra `report`, OutputNotWritable.
    """
    if isinstance(shown, Comparison):
        from stepscope.report import compare_page

        return compare_page.write(shown, "compare.html" if path is None else path)
    from stepscope.report import html

    run = opened(shown, attribution)
    return html.write(run, run.path / "report.html" if path is None else path)


def _renderables(shown: str | Path | Run | Comparison | Check | Findings) -> list[Any]:
    if isinstance(shown, Comparison):
        from stepscope.report.compare_text import render as compared

        return [compared(shown)]
    if isinstance(shown, Check):
        from stepscope.report.check_text import render as checked

        return [checked(shown)]
    if isinstance(shown, Findings):
        from stepscope.report.findings import text as found

        return list(found(shown))
    from stepscope.report.text import render

    return [render(opened(shown))]
