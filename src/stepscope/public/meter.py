"""`stepscope.meter`: the log of a meter beside the device becomes part of a run, as with `stepscope meter`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import stepscope
from stepscope.analysis.meter_clock import align
from stepscope.errors import UsageError
from stepscope.record.meter_import import import_csv
from stepscope.runfolder import RunReader

if TYPE_CHECKING:
    from stepscope import Run


def meter(run: str | Path | Run, log: str | Path) -> Run:
    """Add the CSV log of a meter (a column of times, one of watts) to a run; the run, opened anew.

    run: a Run, the path of its folder, its name in `runs`, or "last". The meter's clock is aligned by what both have
    seen. Raises UsageError for a log that is not there, cannot be read or does not belong to the run.
    """
    folder = (run if isinstance(run, RunReader) else RunReader(run)).path
    if not Path(log).is_file():
        raise UsageError(f"there is no meter log '{log}'", "give the path of its CSV file")
    import_csv(folder, Path(log), align)
    return stepscope.Run(folder)
