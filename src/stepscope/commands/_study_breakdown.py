"""`stepscope study breakdown`: time, memory and energy by kind of operation, of one model or two side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from stepscope.commands._trainings_asked import (
    Device,
    Json,
    Optimizer,
    Out,
    Quick,
    Quiet,
    Repeats,
    Seed,
    Simulate,
    Steps,
    Threads,
)  # fmt: skip
from stepscope.errors import UsageError


def breakdown(
    models: Annotated[
        list[str] | None, typer.Argument(help="One workload or two. Unless said: mobilenet-v1-c32 and resnet18-c32.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Batch size, the same for both.")] = 16,
    optimizer: Optimizer = None,
    threads: Threads = None,
    device: Device = "cpu",
    repeats: Repeats = None,
    steps: Steps = None,
    simulate: Simulate = None,
    memory_only: Annotated[
        bool, typer.Option("--memory-only", help="Dry runs alone: nothing is trained, so that any size fits.")
    ] = False,
    quick: Quick = False,
    seed: Seed = 0,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Break training and inference down by kind of operation: time, memory at the peak, and energy where measured.

    Two models are drawn side by side, with memory over the step of both, and it is said what the larger holds more of.
    """
    from stepscope.commands._cells_shown import cells_shown, command_line, resumable
    from stepscope.commands._jobs import workload_job
    from stepscope.commands._study_shown import concluded, study_out
    from stepscope.commands._trainings_asked import found, rules, setting
    from stepscope.report.charts.study_breakdown import charts
    from stepscope.studies.breakdown.study import CHILD, MODELS, NAME, Asked
    from stepscope.studies.breakdown.study import breakdown as broken_down
    from stepscope.studies.study_folder import StudyFolder
    from stepscope.studies.trainings.measuring import Means

    chosen = tuple(dict.fromkeys(models or MODELS))
    if len(chosen) > 2:
        raise UsageError(f"{len(chosen)} models are too many to be told apart in a picture", "give one or two")
    for model in chosen:
        setting(model, batch, optimizer, threads=threads, device=device)
    ruled = rules(repeats, steps, None, None, quick, simulate, seed, default_steps=30)
    asked = Asked(chosen, batch, optimizer, threads, device, memory_only, ruled)
    folder = study_out(out, NAME, "-".join(chosen))
    command = command_line(out, folder)
    with resumable(command), cells_shown(quiet) as tell:
        means = Means(CHILD, tell)
        jobs = {model: workload_job(found(model), optimizer) for model in chosen}
        findings = broken_down(folder, asked, jobs.__getitem__, means=means, command=command)
    concluded(StudyFolder(folder, NAME, asked.to_dict()), findings, charts(findings.frames), quiet=quiet, json=json)
