"""Turn the rows and parts of a closed run into Parquet, once the training is over and in bounded memory.

Each file is written, renamed into place and only then is what it was made of
removed: whoever is killed in between leaves both, which readers understand and the next call cleans up.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.files import atomic_write, read_json_object, remove_partial_files
from stepscope.part_names import PartName, parsed, parts_in_use, parts_ready_to_pack
from stepscope.runfolder import checksums
from stepscope.runfolder.parts import read_part
from stepscope.runfolder.schema import STEP_ROW, TABLES, channel_names, sample_dtype
from stepscope.runfolder.writer import RunWriter

AT_ONCE = 64  # windows that are noted together at least: each note reads and writes what is known of all files
_MOST_NOTES = 16  # of a table beyond that: so that the notes of a long run cost no more than its windows
CHUNK_BYTES = 4_000_000  # of rows that are in memory at a time
_Rows = np.ndarray[Any, np.dtype[Any]]


def pack(path: str | Path) -> list[str]:
    """Pack a closed run and its ranks; returns the files that could not be packed and stay as they are.

    Leaves a run alone whose status is "running". May be called again, and by two processes at once. Raises OSError
    where the disk does, which leaves the run as readable as it was.
    """
    run = Path(path).absolute()
    folders = [run, *sorted(folder for folder in (run / "ranks").glob("*") if folder.is_dir())]
    if not _is_closed(run):
        return []
    return [
        (folder / name).relative_to(run).as_posix()
        for folder in folders
        if _is_closed(folder)
        for name in _pack_folder(folder)
    ]


def _is_closed(run: Path) -> bool:
    header = read_json_object(run / "run.json")
    return bool(header) and header.get("status", "running") != "running"


def _pack_folder(run: Path) -> Iterator[str]:
    """Pack what lies in one folder; gives the names of the files that stay."""
    from stepscope.runfolder.tables import frame_of

    remove_partial_files(run)
    for table in TABLES:
        parts = _sorted_files(run / table, "*.part")
        at_once = max(AT_ONCE, len(parts) // _MOST_NOTES)
        for batch in (parts[first : first + at_once] for first in range(0, len(parts), at_once)):
            packed_parts: list[Path] = []
            for part in batch:
                packed = f"{table}/{part.stem}.parquet"
                if (run / packed).exists() and _is_intact(run, packed):
                    packed_parts.append(part)
                    continue
                with _note_unpackable(run, part) as unpackable:
                    with atomic_write(part.with_suffix(".parquet"), durable=True) as target:
                        write_parquet(frame_of(read_part(part, table), table), target)
                    packed_parts.append(part)
                yield from unpackable
            checksums.record_checksums(run, *(f"{table}/{part.stem}.parquet" for part in packed_parts))
            for part in packed_parts:
                part.unlink(missing_ok=True)
    clear_superseded(run)
    for rows in row_files(run):
        if not rows.packed:
            yield from _pack_rows(run, rows)
    checksums.record_event_count(run)


def pack_closed_parts(run: Path) -> Iterator[PartName]:
    """Pack the rows of a run that goes on to which nothing is added any more, and give each file when it was."""
    remove_partial_files(run)
    clear_superseded(run)
    for rows in parts_ready_to_pack([part.name for part in row_files(run)]):
        _pack_rows(run, rows)
        yield rows


def row_files(run: Path) -> list[PartName]:
    """Return the files of steps and samples, as they are now."""
    paths = [*_sorted_files(run, "steps.*"), *_sorted_files(run / "samples", "*.*")]
    parts = [parsed(path.relative_to(run).as_posix()) for path in paths]
    return [part for part in parts if part is not None]


def clear_superseded(run: Path) -> None:
    """Remove what a file holds that was made of it, where a kill came in between and that file is whole.

    It was on the disk before it had its name, and what it was made of perhaps never: a loss of power empties that.
    """
    files = row_files(run)
    for stem in dict.fromkeys(part.stem for part in files):
        counts = parts_in_use(stem, [part.name for part in files])
        for part in files:
            holder = next((at for at in counts if at.first <= part.first and part.last <= at.last), part)
            if part.stem == stem and holder != part and _is_intact(run, holder.name):
                (run / part.name).unlink(missing_ok=True)


def _is_intact(run: Path, name: str) -> bool:
    """Return whether a file is what was written; one that was not noted, after a kill, is read, and noted."""
    import polars as pl

    stated = checksums.read_checksums(run).get(name)
    if stated is not None:
        return bool(checksums.file_checksum(run / name) == stated)
    try:
        pl.read_parquet((run / name).read_bytes())
    except (OSError, ValueError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return False
    checksums.record_checksums(run, name)
    return True


def _pack_rows(run: Path, part: PartName) -> list[str]:
    """Make Parquet of a file of rows; return its name where it stays."""
    rows = run / part.name
    with _note_unpackable(run, rows) as unpackable:
        if part.stem == "steps":
            _pack_file(run, rows, partial(_sink_rows, rows, STEP_ROW, _step_frame))
        else:
            columns = channel_names(run, part.stem.removeprefix("samples/"))
            if not columns:
                raise ValueError("no channel describes it")
            _pack_file(run, rows, partial(_sink_rows, rows, sample_dtype(columns), _sample_frame))
    return unpackable


def _sorted_files(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.glob(pattern) if path.name[0] != "." and path.is_file())


@contextlib.contextmanager
def _note_unpackable(run: Path, file: Path) -> Iterator[list[str]]:
    """Note a file that cannot be turned into Parquet, in the run as well; it stays for who can mend it."""
    names: list[str] = []
    try:
        yield names
    except (ValueError, KeyError, TypeError) as error:
        names.append(file.relative_to(run).as_posix())
        message = f"{names[0]} could not be turned into Parquet: {error!r}"
        append_event_once(run, json.dumps(message), kind="kept-as-rows", message=message, source="pack")


def append_event_once(run: Path, mark: str, **event: Any) -> None:
    """Append an event to a run unless one in it has this text."""
    with contextlib.suppress(OSError):
        if mark in (run / "events.jsonl").read_text(encoding="utf-8", errors="replace"):
            return
    RunWriter.attach(run).append_event(**event)


def _pack_file(run: Path, source: Path, write: Callable[[Path], None]) -> None:
    """Put a Parquet file in place of another file; killed at any point, one of the two is whole and in place."""
    packed = source.with_suffix(".parquet")
    with atomic_write(packed, durable=True) as part:  # on the disk before what it was made of goes
        write(part)
    checksums.record_checksums(run, packed.relative_to(run).as_posix())
    source.unlink(missing_ok=True)


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """Raise what polars says of a disk that takes nothing as the OSError that it was."""
    from polars.exceptions import PolarsError

    try:
        yield
    except PolarsError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def write_parquet(frame: Any, target: Path) -> None:
    """Write a table of a run; OSError where the disk takes nothing."""
    with disk_errors():
        frame.write_parquet(target, compression="zstd", compression_level=3, statistics=False)


def _step_frame(rows: _Rows) -> Any:
    from stepscope.runfolder.tables import steps_of

    return steps_of(rows)


def _sample_frame(rows: _Rows) -> Any:
    from stepscope.runfolder.samples import samples_of

    return samples_of(rows, list(rows.dtype.names or ())[2:])


def _row_chunks(path: Path, dtype: np.dtype[Any]) -> Iterator[_Rows]:
    """The whole rows of an appended file, some at a time; at least one chunk, be it empty."""
    from stepscope.runfolder.tables import whole_rows

    most = max(1, CHUNK_BYTES // dtype.itemsize)
    with path.open("rb") as file:
        while True:
            rows = whole_rows(file.read(most * dtype.itemsize), dtype)
            yield rows
            if len(rows) < most:
                return


def _sink_rows(path: Path, dtype: np.dtype[Any], frame_of: Callable[[_Rows], Any], target: Path) -> None:
    """Write the rows of a file as Parquet through the streaming engine, a chunk at a time."""
    from polars.io.plugins import register_io_source

    schema = frame_of(np.empty(0, dtype=dtype)).schema

    def source(columns: list[str] | None, _predicate: Any, _most: int | None, _batch: int | None) -> Iterator[Any]:
        for rows in _row_chunks(path, dtype):
            frame = frame_of(rows)
            yield frame if columns is None else frame.select(columns)

    lazy = register_io_source(source, schema=schema)
    with disk_errors():
        lazy.sink_parquet(target, compression="zstd", compression_level=3, statistics=False, row_group_size=131_072)
