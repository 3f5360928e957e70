"""`stepscope meter`: add the log of a meter beside the device to a run, its clock aligned to the run's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from stepscope.api.requests import MeterRequest
from stepscope.cli._options import command_of
from stepscope.errors import StepscopeError, UsageError


def _meter(request: MeterRequest) -> None:
    """Add the log, and print what was read."""
    from stepscope.run_paths import find_run

    typer.echo(read_log(find_run(request.run), request.log))


meter = command_of(MeterRequest, _meter, "meter")


def read_log(run: Path, log: Path) -> str:
    """Add the log to the run; what was read, in a sentence."""
    from stepscope.analysis.energy.alignment import align
    from stepscope.record.meter_log import import_csv

    if not log.is_file():
        raise UsageError(f"there is no meter log '{log}'", "give the path of its CSV file")
    channel = import_csv(run, log, align)
    return f"{log}: read as channel '{channel.id}' of {run}"


def read_logs(run: Path, logs: Sequence[Path]) -> list[str]:
    """Add several logs at the end of a run; return a complaint for each bad one, so that the run itself is not lost."""
    complaints = []
    for log in logs:
        try:
            read_log(run, log)
        except (StepscopeError, OSError) as error:
            complaints.append(f"{log}: not read: {error}")
    return complaints
