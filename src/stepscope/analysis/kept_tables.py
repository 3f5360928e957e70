"""attribution/: tables that took long to find, kept in the run's folder; a table of other files than today's is not."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import polars as pl

from stepscope import __version__
from stepscope.runfolder import RunReader

VERSION = 3  # of what finds the numbers: tables of another are not read
_FOLDER = "attribution"
_FILES = ("device.json", "channels.json", "model.json", "steps.parquet", "events.jsonl")
_FOLDERS = ("samples", "ops")
_LATER = ("status", "reason", "result", "overhead")  # of run.json: said at the end, and nothing to these tables
_log = logging.getLogger(__name__)


def kept_table(run: RunReader, name: str, make: Callable[[], pl.DataFrame]) -> pl.DataFrame:
    """The table of this name as an earlier reader found it in the very same files; else made now, and kept."""
    if run.status == "running":
        return make()
    path = run.path / _FOLDER / f"{name}.{_state(run)}.parquet"
    if (kept := _read(path)) is not None:
        return kept
    table = make()
    _keep(path, name, table)
    return table


def _read(path: Path) -> pl.DataFrame | None:
    if not path.exists():
        return None
    try:
        return pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        _log.debug("%s is not used: %s", path, error)
        return None


def _keep(path: Path, name: str, table: pl.DataFrame) -> None:
    """Write the file as a whole in the place of older ones; a folder that cannot be written costs the next reader."""
    part = path.with_name(f".{name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(exist_ok=True)
        table.write_parquet(part)
        for older in path.parent.glob(f"{name}.*.parquet"):
            older.unlink(missing_ok=True)
        part.replace(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        _log.debug("%s cannot be written: %s", path, error)


def _state(run: RunReader) -> str:
    """What the numbers were found from: this program, and size and time of each file that it reads."""
    files = [run.path / name for name in _FILES]
    for name in _FOLDERS:
        files += sorted(one for one in (run.path / name).rglob("*") if one.is_file())
    found = [
        (str(one.relative_to(run.path)), one.stat().st_size, one.stat().st_mtime_ns) for one in files if one.exists()
    ]
    told = {name: value for name, value in run.meta.items() if name not in _LATER}
    stated = json.dumps([VERSION, __version__, told, found], sort_keys=True)
    return hashlib.sha256(stated.encode()).hexdigest()[:16]
