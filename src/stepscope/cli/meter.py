"""`stepscope meter`: add the log of a meter beside the device to a run, its clock aligned to the run's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from stepscope.api.requests import MeterRequest
from stepscope.cli._options import AsJson, make_command, print_json
from stepscope.errors import StepscopeError


def _meter(request: MeterRequest, as_json: AsJson = False) -> None:
    from stepscope.api.run_reports import add_meter_log
    from stepscope.run_paths import find_run

    run = find_run(request.run)
    channel, skipped = add_meter_log(run, request.log)
    if as_json:
        print_json({"run": run, "log": request.log, "channel": channel, "skipped": skipped})
    else:
        typer.echo(f"{request.log}: read as channel '{channel}' of {run}{_skipped_rows_text(skipped)}")


meter = make_command(MeterRequest, _meter, "meter")


def _skipped_rows_text(rows: int) -> str:
    return f"; rows skipped (no time, or out of order): {rows}" if rows else ""


def add_meter_logs(run: Path, logs: Sequence[Path]) -> list[str]:
    """Add several logs at the end of a run; return a complaint for each bad one, so that the run itself is not lost."""
    from stepscope.api.run_reports import add_meter_log

    complaints = []
    for log in logs:
        try:
            channel, skipped = add_meter_log(run, log)
            complaints += [f"{log}: read as channel '{channel}'{_skipped_rows_text(skipped)}"] if skipped else []
        except (StepscopeError, OSError) as error:
            complaints.append(f"{log}: not read: {error}")
    return complaints
