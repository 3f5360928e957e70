"""`stepscope check`: a gate for CI that decides with intervals whether a run has regressed from a baseline."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.errors import OutputNotWritable, UsageError

if TYPE_CHECKING:
    from stepscope.analysis.compare import Check

REGRESSED, UNSURE = 10, 11


def check(
    run: Annotated[Path, typer.Argument(help="A run folder, a name in runs/, 'last', or a folder of repeats.")],
    against: Annotated[Path, typer.Option("--against", help="The baseline: a run, or a folder of repeats.")],
    max_slowdown: Annotated[str | None, typer.Option(help="Growth of the step time that is allowed: 5%.")] = None,
    max_memory: Annotated[str | None, typer.Option(help="Growth of peak memory that is allowed: 3%.")] = None,
    max_energy: Annotated[str | None, typer.Option(help="Growth of energy a step that is allowed: 5%.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Also write the result to this file as Markdown.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON instead.")] = False,
    unsure_passes: Annotated[bool, typer.Option("--unsure-passes", help="'cannot tell' ends with 0 too.")] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Compare what was trained, or where, differently.")] = False,
) -> None:
    """Decide with intervals whether a run has regressed: exit code 0 no regression, 10 regression, 11 cannot tell.

    Without a limit all three are checked at 5 %, 3 % and 5 %, energy where both sides measured it; with limits, those
    alone. It is a regression if the whole 95 % CI of the ratio lies above the limit, none if the whole interval
    lies within, and else it cannot be told. The memory is the live peak where both recorded it, else the process's. In
    a GitHub job the Markdown goes to the summary of the job too.
    """
    from stepscope.analysis.compare import NONE, REGRESSION
    from stepscope.analysis.compare import check as checked

    given = {"time": max_slowdown, "memory": max_memory, "energy": max_energy}
    asked = {what: _share(text, what) for what, text in given.items() if text is not None}
    result = checked(run, against, asked or None, anyway=anyway)
    _print_result(result, as_json)
    _write_markdown(result, markdown)
    if result.outcome == REGRESSION:
        raise typer.Exit(REGRESSED)
    if result.outcome != NONE and not unsure_passes:
        raise typer.Exit(UNSURE)


def _share(text: str, what: str) -> float:
    """A percentage, with or without its sign: "5%" and "5" are 0.05."""
    try:
        share = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share <= 10:
        raise UsageError(f"'{text}' is no limit for {what}", "give a percentage from 0% to 1000%, such as 5%")
    return share


def _print_result(result: Check, as_json: bool) -> None:
    if as_json:
        import json
        from dataclasses import asdict

        typer.echo(json.dumps({"outcome": result.outcome, **asdict(result)}, indent=1, allow_nan=False))
        return
    from rich.console import Console

    from stepscope.report.check_text import render

    Console(highlight=False).print(render(result))


def _write_markdown(result: Check, path: Path | None) -> None:
    """To the file that was asked for, and to the summary of a GitHub job, which many steps append to."""
    from stepscope.report.check_text import markdown

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
