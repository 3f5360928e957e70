"""Try changes on a training, and measure what makes it faster or smaller."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.cli._options import ScriptCommand, make_command, print_wide, refuse_unknown_target
from stepscope.experiments.tune import TuneRequest
from stepscope.privacy import redact_command_line

if TYPE_CHECKING:
    from stepscope.experiments.tune.experiment import Tuning

CONTEXT = {"ignore_unknown_options": False, "allow_interspersed_args": True}
_INTERRUPTED = 130
PARSER = ScriptCommand
_PAGE_WIDTH = 160  # columns, where nobody has a terminal


def _tune(
    request: TuneRequest,
    apply: Annotated[
        Path | None,
        typer.Option(
            help="Write the best configuration: FILE.toml for `stepscope run --with`, or FILE.env for a shell."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the result. Default: studies/<time>-tune-<name>.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no tables.")] = False,
) -> None:
    from stepscope.api.tune import run_tune_request, tune_path
    from stepscope.errors import UsageError
    from stepscope.experiments.tune.config import refuse_bad_config_path
    from stepscope.experiments.tune.experiment import Tuning
    from stepscope.report.study_results import pictures_hint

    if not (request.of_a_script or request.of_a_function):
        refuse_unknown_target(request.target, "tune")
    if apply is not None:
        refuse_bad_config_path(apply)
        if request.what_if is not None:
            raise UsageError("--what-if makes no configuration for --apply", "leave --apply out")
    folder = tune_path(request, out)
    findings, tuning = run_tune_request(request, folder, progress=not quiet)
    try:
        if json:
            typer.echo(findings.to_json(), nl=False)
        elif not quiet:
            from stepscope.report.study_results import text

            print_wide(*text(findings), width=_PAGE_WIDTH)
        sys.stderr.write(pictures_hint(folder))
    finally:  # also where nobody reads what is printed
        if apply is not None and isinstance(tuning, Tuning) and not tuning.interrupted:
            _write_config(apply, tuning, request)
    if tuning.interrupted:
        words = ("stepscope", "tune", *(() if apply is None else ("--apply", str(apply))))
        sys.stderr.write(f"interrupted; go on with: {request.command_line(*words, out=folder)}\n")
        raise typer.Exit(_INTERRUPTED)


def _write_config(path: Path, tuning: Tuning, request: TuneRequest) -> None:
    from stepscope.experiments.tune.config import write_config

    best = tuning.best()
    chosen = [] if best is None else [tuning.known[name] for name in best.changes]
    changes = [change for change in chosen if not change.writes]  # settings of the device are no part of a training
    command = request.command_line("stepscope", "tune")
    write_config(path, changes, tuning.facts, f"Written by {command}")
    made = " + ".join(change.name for change in changes)
    what = made or ("nothing is certain to help: the file changes nothing" if best is None else "it changes nothing")
    use = f". {path if path.is_absolute() else f'./{path}'}" if path.suffix == ".env" else _run_command(path, request)
    sys.stderr.write(f"{path}: {what}; use it with: {use}\n")
    for change in chosen:
        if change.writes:
            sys.stderr.write(
                f"{change.name} is a setting of the device, which the file does not make:\n{change.code}\n"
            )


def _run_command(path: Path, request: TuneRequest) -> str:
    """Return the line that runs the same training with a configuration, without the secrets of its arguments."""
    chosen = {name: getattr(request, name) for name in ("batch", "optimizer", "threads", "device")}
    options = [word for name, value in chosen.items() if value is not None for word in (f"--{name}", str(value))]
    target = ["-m", request.target] if request.module else [request.target]
    words = ["stepscope", "run", "--with", str(path), *options, *target, *request.arguments]
    return shlex.join(redact_command_line(words))


tune = make_command(TuneRequest, _tune, "tune")
