"""`stepscope import`: a file of another tool becomes a run that analysis and pages take."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import typer

from stepscope.api.requests import ImportRequest
from stepscope.cli._options import AsJson, make_command, print_json
from stepscope.errors import UsageError
from stepscope.units import plural


def _import(request: ImportRequest, as_json: AsJson = False) -> None:
    from stepscope.importers import Options, import_file
    from stepscope.importers.sensor_logs import Clock

    clock = Clock(
        _zone(request.utc_offset),
        None if request.interval is None else round(request.interval * 1e9),
        _parse_log_start(request.started),
        round(request.shift * 1e9),
        (request.time_column, request.power_column),
    )
    options = Options(request.kind, request.name, request.batch, request.warmup, request.board, clock)
    _print_summary(request, import_file(request.file, request.with_, request.out, options), as_json)


import_ = make_command(ImportRequest, _import, "import_")


def _print_summary(request: ImportRequest, path: Path, as_json: bool) -> None:
    from stepscope.analysis.device import OTHER_MACHINE
    from stepscope.analysis.run import Run
    from stepscope.analysis.summary import write_summary

    run = Run(path)
    write_summary(run, of_operators=False)
    if request.board is not None and run.board.name == OTHER_MACHINE:
        why = "so what its rails feed is not known; docs/boards.md lists the boards"
        typer.echo(f"warning: no board is known as '{request.board}', {why}", err=True)
    stated = run.meta["imported"]
    _warn(stated)
    if as_json:
        counts = {"steps": len(run.steps), "op_calls": run.meta["recorder"]["rows"], "channels": len(run.channels)}
        print_json({"run": path, "kind": stated["kind"], **counts, "lacks": stated["lacks"]})
        return
    counted = ((len(run.steps), "step"), (run.meta["recorder"]["rows"], "op call"), (len(run.channels), "channel"))
    typer.echo(f"{stated['kind']}: {', '.join(plural(count, noun) for count, noun in counted)}", err=True)
    for lack in stated["lacks"]:
        typer.echo(f"not in the file: {lack['what']}: {lack['why']}", err=True)
    typer.echo(path)


def _warn(stated: dict[str, Any]) -> None:
    """Say on one line what of the logs was not read, and what was moved."""
    skipped, back = stated.get("lines_not_read", 0), stated.get("clock_steps_back", 0)
    sentences = [f"{plural(skipped, 'line')} could not be read"] if skipped else []
    sentences += (
        [f"the clock went back {plural(back, 'time')}, and readings are in order of their stamps"] if back else []
    )
    if sentences:
        typer.echo(f"warning: {'; '.join(sentences)}", err=True)


def _zone(text: str | None) -> timezone | None:
    if text is None:
        return None
    match = re.fullmatch(r"([+-])([01]?[0-9]|2[0-3]):?([0-5][0-9])?", text.replace("Z", "+0"))
    if match is None:
        raise UsageError(f"--utc-offset {text} is not an offset", "for example +02:00 or -08:00, and +00:00 for UTC")
    minutes = int(match[2]) * 60 + int(match[3] or 0)
    return timezone(timedelta(minutes=-minutes if match[1] == "-" else minutes))


def _parse_log_start(text: str | None) -> datetime | None:
    try:
        stamp = None if text is None else datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--started {text}: {error}", "for example 2026-01-31T12:00:00") from error
    from stepscope.record.log_times import is_plausible_stamp

    if stamp is not None and not is_plausible_stamp(stamp):
        raise UsageError(f"--started {text}: no log began in the year {stamp.year}", "for example 2026-01-31T12:00:00")
    return stamp
