"""`stepscope compare`: runs, devices or sweeps side by side, and which modules and operators make the difference."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.errors import UsageError

if TYPE_CHECKING:
    from stepscope.analysis.compare import Comparison

_PAGE = Path("compare.html")
_WIDTH = 120  # columns, where nobody has a terminal


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Two to ten: run folders, names in runs/, 'last', sweeps, or folders of runs (repeats)."),
    ],
    per: Annotated[str, typer.Option(help="Count time and energy of the parts by step or by sample.")] = "step",
    by: Annotated[
        list[str] | None,
        typer.Option("--by", help="Parts: module, type, kind, phase, category. [default: module, kind]"),
    ] = None,
    what: Annotated[
        list[str] | None,
        typer.Option("--what", help="Differences to explain: time, kernels, memory, energy. [default: all]"),
    ] = None,
    top: Annotated[int, typer.Option(help="Parts of each difference that are listed.", min=1)] = 8,
    html: Annotated[bool, typer.Option("--html", help="Write one self-contained page instead.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Where the page goes. [default: compare.html]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON instead.")] = False,
    attribution: Annotated[
        str, typer.Option(help="How energy is attributed to operators: fit (ours), overlap, nearest (2019) or model.")
    ] = "fit",
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Show the page in the browser.")] = False,
) -> None:
    """Compare runs, devices or sweeps with the first of them: ratios with intervals, and what explains the difference.

    Several runs of one folder and setting are repeats: intervals then tell how much runs differ among themselves. The
    parts (modules, operators) of a difference in time, memory or energy add up to it, and what is unattributed
    is shown.
    """
    if html and as_json:
        raise UsageError("--html and --json exclude each other", "run the command twice")
    if not html and (out is not None or open_page):
        raise UsageError("--out and --open belong to --html", "add --html")
    from stepscope.analysis.compare import compare as compared

    comparison = compared(runs, per, attribution)
    ways, whats = _ways(by), _whats(what)
    if html:
        _page(comparison, whats, out or _PAGE, open_page)
    elif as_json:
        _json(comparison, ways, whats)
    else:
        _screen(comparison, ways, whats, top)


def _ways(by: list[str] | None) -> tuple[str, ...]:
    from stepscope.analysis.compare import WHAT
    from stepscope.errors import UnknownName

    known = {way for ways in WHAT.values() for way in ways}
    for one in by or ():
        if one not in known:
            raise UnknownName("kind of part", one, known)
    return tuple(by) if by else ("module", "kind")


def _whats(what: list[str] | None) -> tuple[str, ...]:
    from stepscope.analysis.compare import WHAT
    from stepscope.errors import UnknownName

    for one in what or ():
        if one not in WHAT:
            raise UnknownName("difference to explain", one, WHAT)
    return tuple(what) if what else tuple(WHAT)


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
