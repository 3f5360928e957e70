"""`stepscope meter`: add the log of a meter beside the device to a run, its clock aligned to the run's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from stepscope.api.requests import MeterRequest
from stepscope.cli._options import AsJson, make_command, print_json
from stepscope.errors import StepscopeError, UsageError


def _meter(request: MeterRequest, as_json: AsJson = False) -> None:
    """Add the log, and print what was read."""
    from stepscope.run_paths import find_run

    run = find_run(request.run)
    channel, skipped = add_meter_log(run, request.log)
    if as_json:
        print_json({"run": run, "log": request.log, "channel": channel, "skipped": skipped})
    else:
        typer.echo(f"{request.log}: read as channel '{channel}' of {run}{_skipped(skipped)}")


meter = make_command(MeterRequest, _meter, "meter")


def _skipped(rows: int) -> str:
    return f"; rows skipped (no time, or out of order): {rows}" if rows else ""


def add_meter_log(run: Path, log: Path) -> tuple[str, int]:
    """Add the log to the run and return the name of its channel, and how many of its rows were skipped."""
    from stepscope.analysis.energy.alignment import align_meter_to_run
    from stepscope.record.meter_log import import_csv
    from stepscope.runfolder import RunReader

    if not log.is_file():
        raise UsageError(f"there is no meter log '{log}'", "give the path of its CSV file")
    channel = import_csv(run, log, align_meter_to_run)
    noted = [event for event in RunReader(run).events if event.get("kind") == "meter-imported"]
    return channel.id, int(noted[-1]["skipped"])


def add_meter_logs(run: Path, logs: Sequence[Path]) -> list[str]:
    """Add several logs at the end of a run; return a complaint for each bad one, so that the run itself is not lost."""
    complaints = []
    for log in logs:
        try:
            channel, skipped = add_meter_log(run, log)
            complaints += [f"{log}: read as channel '{channel}'{_skipped(skipped)}"] if skipped else []
        except (StepscopeError, OSError) as error:
            complaints.append(f"{log}: not read: {error}")
    return complaints
