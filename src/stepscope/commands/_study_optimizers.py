"""`stepscope study optimizers`: what each optimizer costs in memory, time and energy, and how fast it learns."""

from __future__ import annotations

from typing import Annotated

import typer

from stepscope.commands._trainings_asked import (
    Batch,
    Device,
    Json,
    Out,
    Precision,
    Quick,
    Quiet,
    Repeats,
    Seed,
    Simulate,
    Steps,
    Target,
    Threads,
    WorkloadName,
)  # fmt: skip
from stepscope.errors import UsageError

_STEPS = 200


def optimizers(
    workload: WorkloadName,
    names: Annotated[str | None, typer.Option("--optimizers", help="Which, with commas. Unless said: all.")] = None,
    lr: Annotated[
        list[str] | None, typer.Option(help="A learning rate of your own: adam=0.003; may be given again.")
    ] = None,
    batch: Batch = None,
    precision: Precision = "fp32",
    threads: Threads = None,
    device: Device = "cpu",
    repeats: Repeats = None,
    steps: Steps = None,
    target: Target = None,
    simulate: Simulate = None,
    quick: Quick = False,
    seed: Seed = 0,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train with each optimizer: memory of its state, time and energy of a step, steps to a loss.

    SGD, momentum, Adam, AdamW, Adagrad, RMSprop, Adafactor, and AdamW with a state of 8 bits where torchao or
    bitsandbytes is installed. Unless --target is given, it is the loss that all of them reach in 200 steps.
    """
    from stepscope.commands._cells_shown import cells_shown, command_line, resumable
    from stepscope.commands._study_shown import concluded, study_out
    from stepscope.commands._trainings_asked import rules, setting
    from stepscope.report.charts.study_trainings import charts
    from stepscope.studies.optimizers.kinds import KINDS, chosen
    from stepscope.studies.optimizers.study import NAME, Asked
    from stepscope.studies.optimizers.study import optimizers as compared
    from stepscope.studies.study_folder import StudyFolder
    from stepscope.studies.suite.grid import words
    from stepscope.studies.sweet_spots.study import CHILD
    from stepscope.studies.trainings.measuring import Means

    kinds = chosen(words("--optimizers", names, KINDS))
    base = setting(workload, batch, None, precision, threads, device)
    ruled = rules(repeats, steps, None, target, quick, simulate, seed, default_steps=_STEPS)
    asked = Asked(base, tuple(kind.name for kind in kinds), _rates(lr or [], [kind.name for kind in kinds]), ruled)
    folder = study_out(out, NAME, workload)
    command = command_line(out, folder)
    with resumable(command), cells_shown(quiet) as tell:
        findings = compared(folder, asked, kinds, means=Means(CHILD, tell), command=command)
    concluded(StudyFolder(folder, NAME, asked.to_dict()), findings, charts(findings.frames), quiet=quiet, json=json)


def _rates(given: list[str], names: list[str]) -> dict[str, float]:
    found = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            rate = float(value)
        except ValueError:
            rate = float("nan")
        if name not in names or not 0 < rate < float("inf"):
            raise UsageError(f"--lr {text}: not an optimizer and its rate", f"for example --lr {names[0]}=0.01")
        found[name] = rate
    return found
