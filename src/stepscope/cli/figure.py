"""`stepscope figure`: a chart of the page as a picture for a paper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli._options import AsJson, print_json
from stepscope.errors import UsageError
from stepscope.run_paths import NEWEST

_LIST = "list"


def figure(
    name: Annotated[str, typer.Argument(help="Which chart; 'list' shows them all.")] = _LIST,
    runs: Annotated[list[Path] | None, typer.Argument(help="Run folders, names in runs/, or 'last' (default).")] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the pictures.")] = Path(),
    form: Annotated[
        list[str] | None, typer.Option("--format", help="png (default), svg, pdf or vega; may be given repeatedly.")
    ] = None,
    width: Annotated[
        str,
        typer.Option(help="Width on paper: 85mm is one column, 170mm two; also ieee, ieee-2, acm, acm-2."),
    ] = "170mm",
    as_json: AsJson = False,
) -> None:
    """Write a chart as PNG, SVG, PDF, or as its Vega-Lite specification, in the size of a paper's column.

    Charts of the page: one file a run and format, from the same definition. layer-bars, energy-breakdown,
    energy-by-model, memory-stack, step-ecdf and trade-off: all runs in one picture.
    """
    from stepscope.report import figures

    if name == _LIST:
        if runs:
            raise UsageError("'figure list' takes no run", "leave the run out, or name a figure")
        if as_json:
            print_json([{"name": entry.name, "title": entry.title} for entry in figures.entries()])
            return
        for entry in figures.entries():
            typer.echo(f"{entry.name:<20} {entry.title}")
        return
    forms = form or ["png"]
    width_mm = figures.parse_width(width)
    figures.check(name, forms, width_mm)
    written = []
    for path in _write(name, runs or [Path(NEWEST)], out, forms, width_mm):
        written.append(path)
        if not as_json:
            typer.echo(path)
    if as_json:
        print_json({"written": written})


def _write(name: str, runs: list[Path], out: Path, forms: list[str], width: float) -> Iterator[Path]:
    from stepscope.analysis.run import Run
    from stepscope.report import figures

    opened_runs = [Run(run) for run in runs]
    if figures.is_multi_run_figure(name):
        for form in forms:
            yield figures.write_multi_run_figure(name, opened_runs, out, form, width)
        return
    for opened in opened_runs:
        for form in forms:
            yield figures.write(name, opened, out, form, width)
