"""Sizes and CRC32 of the packed files of a run: a flipped bit costs the file that it is in, and the reader says which.

Parts have checksums of their own, column by column; JSON is sealed (`stepscope.files.add_checksum`), and of
events.jsonl, where each line has a seal, the number of lines is noted.
"""

from __future__ import annotations

import contextlib
import glob
import json
import zlib
from pathlib import Path
from typing import Any

from stepscope.files import check_and_strip_checksum, replace_json
from stepscope.runfolder.validation import MOST_BYTES, read_regular

CHECKSUMS = "checksums.json"
GONE = "gone"  # a file that was written
EVENTS = "events.jsonl"


def record_checksums(run: Path, *names: str) -> None:
    """Write down the checksums of files that have just been written; those of files that are gone are dropped."""
    stated = read_checksums(run)
    stated.update({name: file_checksum(run / name) for name in names})
    _write_checksums(run, {name: stated[name] for name in stated if name == EVENTS or (run / name).exists()})


def record_event_count(run: Path) -> None:
    """Write down how many events a run has at least, now that it has ended; more may follow."""
    stated = read_checksums(run)
    with contextlib.suppress(FileNotFoundError):
        lines = (run / EVENTS).read_bytes().count(b"\n")
        if lines > noted_event_count(stated):
            _write_checksums(run, {**stated, EVENTS: lines})


def noted_event_count(stated: dict[str, Any]) -> int:
    """Return the number of events that was noted, 0 where none was."""
    lines = stated.get(EVENTS)
    return lines if isinstance(lines, int) else 0


_DESCRIBES = {"channels.json": ("samples",), "model.json": ("ops", "layers")}  # what the rows in these folders are of


def missing_files(run: Path, stated: dict[str, Any]) -> list[str]:
    """Return which files of those that were noted are gone; samples that were made coarser lie in another one."""
    missing = [Path(name) for name in stated if name != EVENTS and not (run / name).exists()]
    described = [
        f"{file}: {GONE}"
        for file, folders in _DESCRIBES.items()
        if any(Path(name).parent.name in folders for name in stated) and not (run / file).exists()
    ]
    return described + [
        f"{name.as_posix()}: {GONE}"
        for name in missing
        if name.parent.name in ("ops", "memory", "layers")
        or (name.parent.name == "samples" and not list((run / "samples").glob(f"{glob.escape(name.stem)}*")))
    ]


def changed_files(run: Path, checksums: dict[str, Any]) -> list[str]:
    """Return which packed files hold something else than was noted of them."""
    there = {name: stated for name, stated in checksums.items() if isinstance(stated, list) and (run / name).is_file()}
    return [name for name, stated in there.items() if file_checksum(run / name) != stated]


def _write_checksums(run: Path, stated: dict[str, Any]) -> None:
    replace_json(run / CHECKSUMS, {name: stated[name] for name in sorted(stated)}, whole=True)


def read_checksums(run: Path) -> dict[str, Any]:
    """Return what was noted, by file."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        content = json.loads(check_and_strip_checksum(read_regular(run / CHECKSUMS, MOST_BYTES))[0])
        if isinstance(content, dict):
            return content
    return {}


def file_checksum(path: Path) -> list[int]:
    """Return size and CRC32 of a file, read a piece at a time."""
    size = crc = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            size, crc = size + len(piece), zlib.crc32(piece, crc)
    return [size, crc]


def matches_checksum(content: bytes, stated: Any) -> bool:
    """Return whether a file holds what was noted of it; True where nothing that can be compared was."""
    if not (isinstance(stated, list) and len(stated) == 2):
        return True
    return [len(content), zlib.crc32(content)] == stated
