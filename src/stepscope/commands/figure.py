"""`stepscope figure`: a chart of the page as a picture for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.commands.report import NEWEST, find_run
from stepscope.errors import UnknownName, UsageError

_LIST = "list"


def figure(
    name: Annotated[str, typer.Argument(help="Which chart; 'list' shows them all.")] = _LIST,
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Run folders, names in runs/, or 'last' (unless said).")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder that the pictures are written into.")] = Path(),
    form: Annotated[
        list[str] | None, typer.Option("--format", help="png (unless said), svg, pdf or vega; may be given repeatedly.")
    ] = None,
    width: Annotated[float, typer.Option(help="Width on paper, mm: 85 fills one column, 170 two.")] = 170.0,
) -> None:
    """Write a chart of the page as PNG, SVG, PDF, or as its Vega-Lite specification.

    One file a run and format, in the size of a paper's column, from the same definition as the page's.
    """
    from stepscope.report import figures

    if name == _LIST:
        if runs:
            raise UsageError("'figure list' takes no run", "leave the run out, or name a figure")
        for entry in figures.entries():
            typer.echo(f"{entry.name:<20} {entry.title}")
        return
    figures.check(name)
    forms = form or ["png"]
    for unknown in (one for one in forms if one not in figures.SUFFIXES):
        raise UnknownName("format", unknown, figures.SUFFIXES)
    if not figures.NARROWEST_MM <= width <= figures.WIDEST_MM:
        limits = f"{figures.NARROWEST_MM:.0f} to {figures.WIDEST_MM:.0f}"
        raise UsageError(f"--width {width:g}: must be {limits} mm", "for example --width 170")
    _write(name, runs or [Path(NEWEST)], out, forms, width)


def _write(name: str, runs: list[Path], out: Path, forms: list[str], width: float) -> None:
    from stepscope.analysis.run import Run
    from stepscope.report import figures

    for opened in [Run(find_run(run)) for run in runs]:
        for form in forms:
            typer.echo(figures.write(name, opened, out, form, width))
