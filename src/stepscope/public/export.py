"""`stepscope.export`: a run as files that other tools open, as `stepscope export` writes them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.report.exports._written import planned, write

if TYPE_CHECKING:
    from stepscope import Run


def export(
    run: str | Path | Run = "last", to: str = "perfetto", out: str | Path | None = None, steps: str = "all"
) -> Path:
    """Write a run for another tool and return the path: a file, or for csv and parquet a folder of tables.

    run: a Run, the path of its folder, its name in `runs`, or "last". to: perfetto, chrome, csv, parquet, speedscope,
    json or an export of a plug-in. out: a file or folder; in the run folder unless said. steps: "10:20" (10 to 19),
    "first:50" or "all". Raises UnknownName, UsageError, RunError and OutputNotWritable; nothing is left half written.
    """
    return write(planned(run, to, steps, None if out is None else Path(out)))
