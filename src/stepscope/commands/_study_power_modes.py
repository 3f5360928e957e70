"""`stepscope study power-modes`: the power mode of a Jetson that is best for throughput, energy, or reaching a loss."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.commands._trainings_asked import (
    Batch,
    Device,
    Json,
    Optimizer,
    Out,
    Precision,
    Quick,
    Quiet,
    Repeats,
    Seconds,
    Seed,
    Steps,
    Target,
    Threads,
    WorkloadName,
)  # fmt: skip
from stepscope.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from stepscope.studies.power_modes.nvpmodel import Board
    from stepscope.studies.power_modes.study import Asked


def power_modes(
    workload: WorkloadName,
    modes: Annotated[str | None, typer.Option(help="Modes by number or name, with commas. Unless said: all.")] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Really set the modes; without it, only say what would be done.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before the first mode is set.")] = False,
    batch: Batch = None,
    optimizer: Optimizer = None,
    precision: Precision = "fp32",
    threads: Threads = None,
    device: Device = "cpu",
    repeats: Repeats = None,
    steps: Steps = None,
    seconds: Seconds = None,
    target: Target = None,
    quick: Quick = False,
    seed: Seed = 0,
    root: Annotated[Path, typer.Option(help="Top of the file system that holds etc/nvpmodel.conf.")] = Path("/"),
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train in each power mode of a Jetson (nvpmodel): which is best for throughput, energy a sample, energy to a loss.

    Without --apply it says what it would do and changes nothing. With it, it asks first, and sets the mode of before
    again at the end, also after Ctrl-C or an error; after a power cut the same command does so. It takes root.
    """
    from stepscope.commands._cells_shown import cells_shown, command_line, resumable
    from stepscope.commands._study_shown import concluded, study_out
    from stepscope.commands._trainings_asked import rules, setting
    from stepscope.report.charts.study_trainings import charts
    from stepscope.studies.power_modes.nvpmodel import board, refuse_without_permission
    from stepscope.studies.power_modes.study import NAME, Asked
    from stepscope.studies.power_modes.study import power_modes as measured
    from stepscope.studies.study_folder import StudyFolder
    from stepscope.studies.sweet_spots.study import CHILD
    from stepscope.studies.trainings.measuring import Means

    base = setting(workload, batch, optimizer, precision, threads, device)
    ruled = rules(repeats, steps, seconds, target, quick, None, seed)
    jetson = board(root)
    asked = Asked(base, _chosen(jetson, modes), ruled)
    if not apply:
        _say(jetson, asked)
        return
    refuse_without_permission()
    _ask(jetson, asked, yes)
    folder = study_out(out, NAME, workload)
    command = command_line(out, folder)
    with resumable(command), cells_shown(quiet) as tell:
        findings = measured(folder, jetson, asked, means=Means(CHILD, tell), command=command)
    concluded(StudyFolder(folder, NAME, asked.to_dict()), findings, charts(findings.frames), quiet=quiet, json=json)


def _chosen(jetson: Board, text: str | None) -> tuple[int, ...]:
    from stepscope.studies.suite.grid import words

    numbers = {name: number for number, name in jetson.modes.items()} | {str(n): n for n in jetson.modes}
    for word in words("--modes", text):
        if word not in numbers:
            raise UnknownName("power mode", word, numbers)
    return tuple(dict.fromkeys(numbers[word] for word in words("--modes", text))) or tuple(sorted(jetson.modes))


def _say(jetson: Board, asked: Asked) -> None:
    """The dry run: nothing is changed."""
    now, count = jetson.current(), len(asked.modes) * asked.rules.repeats
    typer.echo(f"dry run: nothing is changed. The mode is {now} {jetson.modes.get(now, '')}.")
    for mode in asked.modes:
        typer.echo(
            f"  nvpmodel -m {mode}   {jetson.modes[mode]}: {asked.rules.repeats} trainings of {asked.base.workload}"
        )
    typer.echo(f"  nvpmodel -m {now}   set again at the end, after {count} trainings")
    typer.echo("do it with --apply, as root")


def _ask(jetson: Board, asked: Asked, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("nobody is here to be asked whether the power modes may be set", "add --yes")
    names = ", ".join(jetson.modes[mode] for mode in asked.modes)
    if not typer.confirm(f"Set the power modes {names} one after the other, and the present one at the end?"):
        raise UsageError("no power mode was set", "leave --apply out to see what would be done")
