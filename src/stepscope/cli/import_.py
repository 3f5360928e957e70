"""`stepscope import`: a file of another tool becomes a run that analysis and pages take."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.errors import UsageError
from stepscope.request import parse_amount

if TYPE_CHECKING:
    from stepscope.importers.sensor_logs import Clock


def import_(
    file: Annotated[Path, typer.Argument(help="A torch.profiler JSON (also .gz), or the log of a sensor tool.")],
    beside: Annotated[
        list[Path] | None, typer.Option("--with", help="A sensor log of the same time; may be repeated.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="torch-profiler, stepscope-chrome, tegrastats, jetson-stats, nvidia-smi, powermetrics, mllog, "
            "powersensor3 or meter-csv. [by content]"
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="The folder that the run is put into.")] = Path("runs"),
    name: Annotated[str | None, typer.Option(help="What was trained. [default: the file's name]")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Training samples of a step.")] = None,
    warmup: Annotated[int | None, typer.Option(min=0, help="Steps at the begin that do not count.")] = None,
    board: Annotated[str | None, typer.Option(help="The board, by name or as its device tree says it.")] = None,
    utc_offset: Annotated[
        str | None, typer.Option(help="Zone of stamps without one: +02:00. [default: of this machine]")
    ] = None,
    shift: Annotated[float, typer.Option(help="Seconds that are added to the times of the logs.")] = 0.0,
    started: Annotated[
        str | None, typer.Option(help="When a log without dates was started (tegrastats, a meter).")
    ] = None,
    interval: Annotated[str | None, typer.Option(help="Its interval: 100ms.")] = None,
    time_column: Annotated[str | None, typer.Option(help="Column of the times in a meter's CSV. [by its name]")] = None,
    power_column: Annotated[str | None, typer.Option(help="Column of the power in it. [by its name]")] = None,
) -> None:
    """Turn measurements of another tool into a run: a torch.profiler file, with the log of a sensor tool beside it.

    What the file does not say is not made up: it stands in the run among what was not measured. Steps, ops,
    phases and, with with_stack=True, layers come from the profiler; power, utilisation and memory from the log. What
    `stepscope export --to chrome` has written is the run again, without what was sampled.
    """
    from stepscope.importers import Options, import_file

    clock = replace(_clock(utc_offset, shift, started, interval), columns=(time_column, power_column))
    options = Options(kind=kind, name=name, batch_size=batch, warmup=warmup, board=board, clock=clock)
    path = import_file(file, beside or (), out, options)
    _print_summary(path)


def _print_summary(path: Path) -> None:
    """Print what was read and what is lacking, and where the run lies."""
    from stepscope.analysis.run import Run
    from stepscope.analysis.summary import write_summary

    run = Run(path)
    write_summary(run)
    stated = run.meta["imported"]
    steps = f"{len(run.steps):,} steps, {run.meta['recorder']['rows']:,} op calls, {len(run.channels)} channels"
    typer.echo(f"{stated['kind']}: {steps}", err=True)
    for lack in stated["lacks"]:
        typer.echo(f"not in the file: {lack['what']}: {lack['why']}", err=True)
    typer.echo(path)


def _clock(utc_offset: str | None, shift_s: float, started: str | None, interval: str | None) -> Clock:
    from stepscope.importers.sensor_logs import Clock

    return Clock(_zone(utc_offset), _interval_ns(interval), _date(started), round(shift_s * 1e9))


def _zone(text: str | None) -> timezone | None:
    if text is None:
        return None
    match = re.fullmatch(r"([+-])([01]?[0-9]|2[0-3]):?([0-5][0-9])?", text.replace("Z", "+0"))
    if match is None:
        raise UsageError(f"--utc-offset {text} is no offset", "for example +02:00 or -08:00, and +00:00 for UTC")
    minutes = int(match[2]) * 60 + int(match[3] or 0)
    return timezone(timedelta(minutes=-minutes if match[1] == "-" else minutes))


def _interval_ns(text: str | None) -> int | None:
    if text is None:
        return None
    interval_ns = round(parse_amount("--interval", text, "s", example="100ms") * 1e9)
    if interval_ns <= 0:
        raise UsageError(f"--interval {text}: must be above 0", "for example --interval 100ms")
    return interval_ns


def _date(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--started {text}: {error}", "for example 2026-01-31T12:00:00") from error
