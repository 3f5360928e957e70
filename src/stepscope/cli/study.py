"""`stepscope study`: questions that need more than one run. Each command is made from the request of its study."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.api.requests import STUDIES, StudyRequest
from stepscope.cli._options import ScriptCommand, make_command, print_wide, with_privacy_options
from stepscope.cli.compare import compare
from stepscope.errors import UsageError
from stepscope.experiments.sweeps import PowerModes

if TYPE_CHECKING:
    from stepscope.experiments.sweeps.power_modes import Jetson

PARSER = ScriptCommand
_PAGE_WIDTH = 140  # columns, where nobody has a terminal


def study() -> None:
    """Answer a question with many runs: what the papers asked, on your own device. Interrupted studies resume."""


def _answer(
    request: StudyRequest,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the study. Default: studies/<time>-<study>-<workload>.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no tables.")] = False,
) -> None:
    """Answer, with the line to go on with where it is interrupted, and print the findings."""
    from stepscope.api.study import answer_request, study_command, study_path
    from stepscope.report.study_results import pictures_hint

    checked = request.checked()
    if isinstance(checked, PowerModes):
        from stepscope.experiments.sweeps.power_modes import find_jetson, refuse_without_permission

        jetson = find_jetson(checked.root)
        if not checked.apply:
            _print_dry_run(jetson, checked)
            return
        refuse_without_permission()
        _confirm(jetson, checked)
        checked = dataclasses.replace(checked, yes=True)
    folder = study_path(request, out)
    try:
        findings = answer_request(request, checked, folder, progress=not quiet)
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted; go on with: {study_command(request, folder)}\n")
        raise
    if json:
        typer.echo(findings.to_json(), nl=False)
    elif not quiet:
        from stepscope.report.study_results import text

        print_wide(*text(findings), width=_PAGE_WIDTH)
    sys.stderr.write(pictures_hint(folder))


def _print_dry_run(jetson: Jetson, request: PowerModes) -> None:
    now, repeats = jetson.current(), request.rules.repeats
    typer.echo(f"dry run: nothing is changed. The mode is {now} {jetson.modes.get(now, '')}.")
    for mode in request.numbers:
        typer.echo(f"  nvpmodel -m {mode}   {jetson.modes[mode]}: {repeats} trainings of {request.workload}")
    typer.echo(f"  nvpmodel -m {now}   set again at the end, after {len(request.numbers) * repeats} trainings")
    typer.echo("do it with --apply, as root")


def _confirm(jetson: Jetson, request: PowerModes) -> None:
    if request.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("setting power modes needs a confirmation, and there is no terminal to ask on", "add --yes")
    names = ", ".join(jetson.modes[mode] for mode in request.numbers)
    if not typer.confirm(f"Set the power modes {names} one after the other, and the present one at the end?"):
        raise UsageError("no power mode was set", "leave --apply out to see what would be done")


SUBCOMMANDS = {
    name: with_privacy_options(make_command(row.request, _answer, name)) for name, row in STUDIES.items()
} | {"compare": compare}
SUBCOMMANDS = dict(sorted(SUBCOMMANDS.items()))
