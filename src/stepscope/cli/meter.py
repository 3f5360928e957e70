"""`stepscope meter`: add the log of a meter beside the device to a run, its clock aligned to the run's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from stepscope.errors import StepscopeError, UsageError


def meter(
    run: Annotated[Path, typer.Argument(help="A run folder, the name of one in runs/, or 'last'.")],
    log: Annotated[Path, typer.Argument(help="CSV of the meter: a column of times and one of watts.")],
) -> None:
    """Add the log of a meter with its own clock to a run.

    The clock is aligned by what both have seen: power against the steps and the CPU time of the run. A log that does
    not belong to the run is refused.
    """
    from stepscope.run_paths import find_run

    typer.echo(read_log(find_run(run), log))


def read_log(run: Path, log: Path) -> str:
    """Add the log to the run; what was read, in a sentence."""
    from stepscope.analysis.energy.alignment import align
    from stepscope.record.meter_log import import_csv

    if not log.is_file():
        raise UsageError(f"there is no meter log '{log}'", "give the path of its CSV file")
    channel = import_csv(run, log, align)
    return f"{log}: read as channel '{channel.id}' of {run}"


def read_logs(run: Path, logs: Sequence[Path]) -> list[str]:
    """The same for several at the end of a run, whose result must not be lost over a bad log: complaints, if any."""
    complaints = []
    for log in logs:
        try:
            read_log(run, log)
        except (StepscopeError, OSError) as error:
            complaints.append(f"{log}: not read: {error}")
    return complaints
