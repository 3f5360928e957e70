"""`stepscope check`: a gate for CI that decides with intervals whether a run has regressed from a baseline."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.api.requests import CheckRequest
from stepscope.cli._options import make_command, print_json
from stepscope.errors import OutputNotWritable

if TYPE_CHECKING:
    from stepscope.analysis.compare.regression_check import Check

REGRESSED, UNSURE = 10, 11


def _check(
    request: CheckRequest,
    markdown: Annotated[Path | None, typer.Option(help="Also write the result to this file as Markdown.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON instead.")] = False,
    unsure_passes: Annotated[bool, typer.Option("--unsure-passes", help="Exit with 0 for 'cannot tell' too.")] = False,
) -> None:
    from stepscope.analysis.compare.regression_check import NONE, REGRESSION
    from stepscope.analysis.compare.regression_check import check as checked

    result = checked(request.run, request.against, request.limits, anyway=request.anyway)
    _print_result(result, as_json)
    _write_markdown(result, markdown)
    if result.outcome == REGRESSION:
        raise typer.Exit(REGRESSED)
    if result.outcome != NONE and not unsure_passes:
        raise typer.Exit(UNSURE)


check = make_command(CheckRequest, _check, "check")


def _print_result(result: Check, as_json: bool) -> None:
    if as_json:
        from dataclasses import asdict

        print_json({"outcome": result.outcome, **asdict(result)})
        return
    from rich.console import Console

    from stepscope.report.comparison import render_check

    Console(highlight=False).print(render_check(result))


def _write_markdown(result: Check, path: Path | None) -> None:
    """Write Markdown to the requested file, and append it to the summary of a GitHub job."""
    from stepscope.report.comparison import markdown

    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    try:
        if path is not None:
            path.write_text(markdown(result), encoding="utf-8")
        if summary:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(markdown(result))
    except OSError as error:
        raise OutputNotWritable(
            f"cannot write '{error.filename}': {error.strerror or error}", "choose a file with --markdown"
        ) from error
