"""`stepscope study partial`: train only a part of a model; what that costs, saves and gives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from stepscope.studies.partial.plan import Asked


def partial(
    workload: Annotated[str | None, typer.Argument(help="A classifier: lenet unless said.")] = None,
    ways: Annotated[
        str | None,
        typer.Option(help="all,layers,filters,cumulative,last,bias,batch-norm,lora,sparse,gradual; all of them."),
    ] = None,
    fractions: Annotated[str | None, typer.Option(help="Percents for layers, filters, cumulative, sparse.")] = None,
    each: Annotated[str | None, typer.Option(help="A fresh choice each step or each epoch: step.")] = None,
    transfer: Annotated[
        bool, typer.Option("--transfer", help="Pre-train on some classes, then train on the others.")
    ] = False,
    classes: Annotated[str | None, typer.Option(help="Train on these classes: 5,6,7. With --transfer: half.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Begin with these weights: a file of plain tensors.")] = None,
    preset: Annotated[str | None, typer.Option(help="second-paper: the settings of the known points.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Trainings of each way: 5 (--quick: 2).")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of a training, instead of epochs.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of a training: 5 (--quick: 1).")] = None,
    batch: Annotated[int | None, typer.Option(help="Batch size; the workload's own unless said.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd, momentum, adam, adamw or rmsprop.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate; the optimizer's own unless said.")] = None,
    data: Annotated[str | None, typer.Option(help="A data set of the workload, or a folder; the best here.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or mps.")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="Threads; torch's choice unless said.")] = None,
    simulate: Annotated[str | None, typer.Option(help="Read the power of a simulated board: jetson-tx2.")] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds that the trainings of one way may take.")] = 3600.0,
    quick: Annotated[bool, typer.Option("--quick", help="Two seeds, one epoch, 60 % alone.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the study: studies/<time>-partial unless said.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no tables.")] = False,
) -> None:
    """Train only a part of a model, in every way: accuracy against time, energy and memory, over several seeds.

    Freezing saves what it can: no gradient is computed where none is needed, and the study counts how much that is.
    Interrupt it as you like: the same command with the same --out goes on where it stopped.
    """
    from stepscope.commands._study_shown import concluded, study_out
    from stepscope.commands._watched_jobs import gone_through, known_board
    from stepscope.report.charts.study_partial import charts
    from stepscope.studies.partial.study import NAME, with_checkpoint
    from stepscope.studies.partial.study import partial as trained
    from stepscope.studies.study_folder import StudyFolder

    given = {
        "workload": workload, "ways": _ways(ways), "fractions": _fractions(fractions), "each": each,
        "transfer": transfer or None, "classes": _classes(classes), "seeds": seeds, "steps": steps, "epochs": epochs,
        "checkpoint": None if checkpoint is None else str(checkpoint), "batch": batch, "optimizer": optimizer,
        "lr": lr, "data": data, "device": device, "threads": threads, "simulate": known_board(simulate),
        "time_limit_s": time_limit,
    }  # fmt: skip
    asked = with_checkpoint(_asked({name: value for name, value in given.items() if value is not None}, preset, quick))
    folder = study_out(out, NAME, asked.workload)
    findings = gone_through(
        lambda watch, command: trained(folder, asked, watch=watch, command=command), str(folder), out is not None, quiet
    )
    concluded(StudyFolder(folder, NAME, asked.to_dict()), findings, charts(findings.frames), quiet=quiet, json=json)


def _asked(given: dict[str, Any], preset: str | None, fast: bool) -> Asked:
    """Everything that can be refused is refused before anything runs."""
    from stepscope import workloads
    from stepscope.studies.partial.plan import Asked
    from stepscope.studies.partial.plan import quick as quickly
    from stepscope.studies.partial.reference import PRESETS

    if preset is not None:
        if preset not in PRESETS:
            raise UnknownName("preset", preset, PRESETS)
        other = sorted(name for name in PRESETS[preset] if name in given and given[name] != PRESETS[preset][name])
        if other:
            options = ", ".join(f"--{name}" for name in other)
            raise UsageError(f"--preset {preset} fixes {options}", "leave them out, or leave the preset out")
        given = {**PRESETS[preset], **given, "preset": preset}
    asked = Asked(**(quickly(given) if fast else given))
    known = workloads.find(asked.workload)
    if asked.optimizer is not None and asked.optimizer not in known.hyperparameters:
        raise UnknownName("optimizer", asked.optimizer, known.hyperparameters)
    if known.correct is None:
        raise UsageError(f"'{asked.workload}' has no accuracy", "take a classifier: stepscope workloads")
    return asked


def _ways(text: str | None) -> tuple[str, ...] | None:
    from stepscope.studies.partial.plan import WAYS
    from stepscope.studies.suite.grid import words

    return words("--ways", text, WAYS) or None


def _fractions(text: str | None) -> tuple[float, ...] | None:
    from stepscope.studies.suite.grid import numbers

    return tuple(number / 100 for number in numbers("--fractions", text)) or None


def _classes(text: str | None) -> tuple[int, ...] | None:
    """Whole numbers from 0; unlike other numbers, since classes are counted so."""
    from stepscope.studies.suite.grid import words

    found = words("--classes", text)
    if not all(word.isdecimal() for word in found):
        raise UsageError(f"--classes {text}: not whole numbers", "for example --classes 5,6,7")
    return tuple(int(word) for word in found) or None
