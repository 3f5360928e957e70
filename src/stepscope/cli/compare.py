"""`stepscope compare`: runs, devices or sweeps side by side, and which modules and operators make the difference."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.api.requests import CompareRequest
from stepscope.cli._options import command_of
from stepscope.errors import UsageError
from stepscope.run_paths import last_runs

if TYPE_CHECKING:
    from stepscope.analysis.compare import Comparison

_PAGE = Path("compare.html")
_WIDTH = 120  # columns, where nobody has a terminal


def _compare(
    request: CompareRequest,
    top: Annotated[int, typer.Option(help="Parts of each difference that are listed.", min=1)] = 8,
    html: Annotated[bool, typer.Option("--html", help="Write one self-contained page instead.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Where the page goes. [default: compare.html]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON instead.")] = False,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Show the page in the browser.")] = False,
) -> None:
    """Draw the comparison on the screen, as a page or as JSON."""
    if html and as_json:
        raise UsageError("--html and --json exclude each other", "run the command twice")
    if not html and (out is not None or open_page):
        raise UsageError("--out and --open belong to --html", "add --html")
    from stepscope.analysis.compare import WHAT
    from stepscope.analysis.compare import compare as compared

    comparison = compared(request.runs or last_runs(2), request.per, request.attribution)
    differences = request.what or tuple(WHAT)
    if html:
        _page(comparison, differences, out or _PAGE, open_page)
    elif as_json:
        _json(comparison, request.by, differences)
    else:
        _screen(comparison, request.by, differences, top)


compare = command_of(CompareRequest, _compare, "compare")


def _screen(comparison: Comparison, by: tuple[str, ...], whats: tuple[str, ...], top: int) -> None:
    import sys

    from rich.console import Console

    from stepscope.report.comparison import render

    width = None if sys.stdout.isatty() else _WIDTH
    Console(highlight=False, width=width).print(render(comparison, by, top, whats))


def _json(comparison: Comparison, by: tuple[str, ...], whats: tuple[str, ...]) -> None:
    import json

    typer.echo(json.dumps(comparison.to_dict(by, whats), indent=1, allow_nan=False, default=str))


def _page(comparison: Comparison, whats: tuple[str, ...], path: Path, open_page: bool) -> None:
    from stepscope.report import compare_page

    written = compare_page.write(comparison, path, whats)
    typer.echo(written)
    if open_page:
        typer.launch(written.resolve().as_uri())
