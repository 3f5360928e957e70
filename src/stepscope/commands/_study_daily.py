"""`stepscope study daily`: a model that knows some of its task, and a few new images every day."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from stepscope.studies.daily.routine import Asked

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def daily(
    workload: Annotated[str | None, typer.Argument(help="A classifier: lenet unless said.")] = None,
    days: Annotated[int | None, typer.Option(help="Days: 17 (--quick: 5).")] = None,
    images: Annotated[int | None, typer.Option(help="New images a day: 64.")] = None,
    start: Annotated[float | None, typer.Option(help="Accuracy that it is pre-trained to, %: 60.")] = None,
    batch: Annotated[str | None, typer.Option(help="Batch sizes of the days: 16,64 (--quick: 16).")] = None,
    replay: Annotated[
        str | None, typer.Option(help="Older images again: none,reservoir,all; every one unless said.")
    ] = None,
    keep: Annotated[int | None, typer.Option(help="Images that the reservoir keeps: 256.")] = None,
    passes: Annotated[int | None, typer.Option(help="Times that a day's images are gone through: 1.")] = None,
    order: Annotated[str | None, typer.Option(help="shuffled: days alike; classes: one class after the other.")] = None,
    charging: Annotated[str | None, typer.Option(help="How long the device charges, for example 1h or 30min.")] = None,
    battery: Annotated[str | None, typer.Option(help="What its battery holds, for example 10Wh.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Lives of each setting: 5 (--quick: 3).")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd, momentum, adam, adamw or rmsprop.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate; the optimizer's own unless said.")] = None,
    data: Annotated[str | None, typer.Option(help="A data set of the workload, or a folder; the best here.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or mps.")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="Threads; torch's choice unless said.")] = None,
    simulate: Annotated[str | None, typer.Option(help="Read the power of a simulated board: jetson-tx2.")] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds that the trainings of one setting may take.")] = 3600.0,
    quick: Annotated[bool, typer.Option("--quick", help="Five days, three seeds, one batch size.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the study: studies/<time>-daily unless said.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no tables.")] = False,
) -> None:
    """Train a pre-trained model on a few new images every day: accuracy by day, time and energy, and whether it fits.

    Replay of older images works against forgetting, and takes time: `--order classes` shows both.
    Interrupt it as you like: the same command with the same --out goes on where it stopped.
    """
    from stepscope.commands._study_shown import concluded, study_out
    from stepscope.commands._watched_jobs import gone_through, known_board
    from stepscope.commands.forecast import amount
    from stepscope.report.charts.study_daily import charts
    from stepscope.studies.daily.study import NAME
    from stepscope.studies.daily.study import daily as lived
    from stepscope.studies.study_folder import StudyFolder
    from stepscope.studies.suite.grid import numbers, words

    given = {
        "workload": workload, "days": days, "images": images, "start": None if start is None else start / 100,
        "batches": numbers("--batch", batch) or None, "replays": words("--replay", replay) or None, "keep": keep,
        "passes": passes, "order": order, "seeds": seeds, "optimizer": optimizer, "lr": lr, "data": data,
        "device": device, "threads": threads, "simulate": known_board(simulate), "time_limit_s": time_limit,
        "charging_s": _charging(charging), "battery_j": amount(battery, "Wh", "--battery"),
    }  # fmt: skip
    asked = _asked({name: value for name, value in given.items() if value is not None}, quick)
    folder = study_out(out, NAME, asked.workload)
    findings = gone_through(
        lambda watch, command: lived(folder, asked, watch=watch, command=command), str(folder), out is not None, quiet
    )
    concluded(StudyFolder(folder, NAME, asked.to_dict()), findings, charts(findings.frames), quiet=quiet, json=json)


def _asked(given: dict[str, Any], fast: bool) -> Asked:
    """Everything that can be refused is refused before anything runs."""
    from stepscope import workloads
    from stepscope.studies.daily.routine import Asked
    from stepscope.studies.daily.routine import quick as quickly

    asked = Asked(**(quickly(given) if fast else given))
    known = workloads.find(asked.workload)
    if asked.optimizer is not None and asked.optimizer not in known.hyperparameters:
        raise UnknownName("optimizer", asked.optimizer, known.hyperparameters)
    if known.correct is None:
        raise UsageError(f"'{asked.workload}' has no accuracy", "take a classifier: stepscope workloads")
    return asked


def _charging(text: str | None) -> float | None:
    """Seconds of `1h`, `30min` or `90s`."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h)", text.strip())
    if found is None:
        raise UsageError(f"--charging {text}: not a length of time", "for example --charging 1h or 30min")
    return float(found[1]) * _SECONDS[found[2]]
