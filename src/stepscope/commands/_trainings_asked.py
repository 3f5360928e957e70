"""The options that studies of trainings share, as settings and rules; what can be refused is refused here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from stepscope.studies.sweet_spots.study import Axis
    from stepscope.studies.trainings.setting import Rules, Setting
    from stepscope.workloads.contract import Workload

WorkloadName = Annotated[str, typer.Argument(help="A workload of the suite, or path/to/file.py:name.")]
Batch = Annotated[int | None, typer.Option(help="Batch size. Unless said: the workload's own.")]
Optimizer = Annotated[str | None, typer.Option(help="Optimizer. Unless said: the workload's own.")]
Precision = Annotated[str, typer.Option(help="fp32 or bf16.")]
Threads = Annotated[int | None, typer.Option(help="Threads. Unless said: torch's own choice.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Repeats = Annotated[int | None, typer.Option(help="Fresh processes for each setting: 3 (--quick: 2).")]
Steps = Annotated[int | None, typer.Option(help="Steps of each training; with --target, at most: 500.")]
Seconds = Annotated[float | None, typer.Option(help="Seconds of steps of each training, unless --steps: 10.")]
Target = Annotated[float | None, typer.Option(help="Train until the loss, a mean of ten steps, is here or lower.")]
Simulate = Annotated[str | None, typer.Option(help="Read the power of a simulated board: jetson-tx2.")]
Quick = Annotated[bool, typer.Option("--quick", help="12 steps and 2 repeats for each setting.")]
Seed = Annotated[int, typer.Option(help="Seed of the order of the trainings and of the trainings.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the study. Unless said: studies/<time>-<study>-<workload>.")]
Json = Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no tables.")]

_MOST_STEPS, _QUICK_STEPS, _SECONDS = 500, 12, 10.0


def rules(
    repeats: int | None, steps: int | None, seconds: float | None, target: float | None, quick: bool,
    simulate: str | None, seed: int, default_steps: int | None = None,
) -> Rules:  # fmt: skip
    """How every training is made, from the options as they were typed."""
    from stepscope.simulate.boards import BOARDS
    from stepscope.studies.trainings.setting import Rules

    for name, value in (("--repeats", repeats), ("--steps", steps)):
        if value is not None and value < 1:
            raise UsageError(f"{name} {value}: must be 1 or more", f"for example {name} 20")
    if seconds is not None and not seconds > 0:
        raise UsageError(f"--seconds {seconds:g}: must be above 0", "for example --seconds 10")
    if steps is not None and seconds is not None and target is None:
        raise UsageError("--steps and --seconds both end a training", "give one of them")
    if simulate is not None and simulate not in BOARDS:
        raise UnknownName("simulated board", simulate, BOARDS)
    if target is not None:
        steps, seconds = steps or _MOST_STEPS, None
    elif steps is None and seconds is None:
        steps = _QUICK_STEPS if quick else default_steps
        seconds = _SECONDS if steps is None else None
    return Rules(
        repeats=repeats or (2 if quick else 3), steps=steps, seconds=seconds, target_loss=target, seed=seed,
        simulate=simulate,
    )  # fmt: skip


def setting(
    workload: str, batch: int | None = None, optimizer: str | None = None, precision: str = "fp32",
    threads: int | None = None, device: str = "cpu",
) -> Setting:  # fmt: skip
    """The setting that an axis is put into; names are looked up, so that a wrong one is said at once."""
    from stepscope.record.precision import PRECISIONS
    from stepscope.studies.optimizers.kinds import with_every_optimizer
    from stepscope.studies.trainings.setting import Setting

    known = with_every_optimizer(found(workload))
    if optimizer is not None and optimizer not in known.hyperparameters:
        raise UnknownName("optimizer", optimizer, known.hyperparameters)
    if precision not in PRECISIONS:
        raise UnknownName("precision", precision, PRECISIONS)
    for name, value in (("--batch", batch), ("--threads", threads)):
        if value is not None and value < 1:
            raise UsageError(f"{name} {value}: must be 1 or more", f"for example {name} 4")
    return Setting(workload, batch, optimizer, precision, threads, accelerated(device))


def found(workload: str) -> Workload:
    """The workload of this name."""
    from stepscope import workloads

    return workloads.find(workload)


def accelerated(device: str) -> str:
    """cpu, or cuda where torch has it."""
    if device not in ("cpu", "cuda"):
        raise UnknownName("device", device, ("cpu", "cuda"))
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise UsageError("--device cuda: torch sees no CUDA device here", "leave --device out")
    return device


def sweet_spot(
    axis: Axis, values: tuple[Any, ...], base: Setting, ruled: Rules, out: Path | None, json: bool, quiet: bool
) -> None:
    """Ask the one engine about an axis, and show what it found."""
    from stepscope.commands._cells_shown import cells_shown, command_line, resumable
    from stepscope.commands._study_shown import concluded, study_out
    from stepscope.report.charts.study_trainings import charts
    from stepscope.studies.study_folder import StudyFolder
    from stepscope.studies.sweet_spots.study import CHILD, Asked
    from stepscope.studies.sweet_spots.study import sweet_spot as measured
    from stepscope.studies.trainings.measuring import Means

    asked = Asked(axis, values, base, ruled)
    folder = study_out(out, axis, base.workload)
    command = command_line(out, folder)
    with resumable(command), cells_shown(quiet) as tell:
        findings = measured(folder, asked, means=Means(CHILD, tell), command=command)
    concluded(StudyFolder(folder, axis, asked.to_dict()), findings, charts(findings.frames), quiet=quiet, json=json)
