"""A run folder comes home: in pieces, each file checked by its hash, and there as a whole or not at all."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepscope.errors import OutputNotWritable, RunDamaged
from stepscope.studies.fleet.manifest import Listed, checked, sha256_of
from stepscope.studies.suite.state import SweepFolder, write_durably, writing

Piece = tuple[str, int, int]  # file, offset, size in bytes
Fetch = Callable[[Sequence[Piece]], Awaitable[Sequence[bytes]]]
PIECE_BYTES = 1 << 22
_MOST_IN_ONE = 500  # files
_LEAST_FREE_BYTES = 64_000_000


async def gather(folder: SweepFolder, where: Path, offered: Sequence[Mapping[str, Any]], fetch: Fetch) -> None:
    """Fetch the files that a device offers for the run folder `where`; what an earlier try has fetched is kept.

    RunDamaged where the list is hostile or a file does not have its hash; OutputNotWritable where there is no room.
    """
    files = checked(offered)
    coming = folder.path / "runs" / f".coming-{where.name}"
    with writing(folder.path, _no_room):
        _prepare(coming, files)
        if shutil.disk_usage(folder.path).free < sum(file.size_bytes for file in files) + _LEAST_FREE_BYTES:
            raise _no_room(folder.path)
        missing = list(_batches(_missing(coming / "files", files)))
    for batch in missing:
        contents = await fetch(batch)
        with writing(folder.path, _no_room):
            _write(coming / "files", batch, contents)
    with writing(folder.path, _no_room):
        _verify(coming, files)
        shutil.rmtree(where, ignore_errors=True)
        (coming / "files").replace(where)
        shutil.rmtree(coming, ignore_errors=True)


def _no_room(path: Path) -> OutputNotWritable:
    return OutputNotWritable(
        f"the disk of '{path}' is full: the sweep has stopped; every run is kept, here or on its device",
        "make room, then: stepscope suite run --fleet ... --resume --out DIR",
    )


def _prepare(coming: Path, files: Sequence[Listed]) -> None:
    """What was begun is gone on with only if the device still offers the same."""
    wanted = {"files": [asdict(file) for file in files]}
    with contextlib.suppress(OSError, ValueError):
        if json.loads((coming / "offered.json").read_text(encoding="utf-8")) == wanted:
            return
    shutil.rmtree(coming, ignore_errors=True)
    (coming / "files").mkdir(parents=True)
    write_durably(coming / "offered.json", wanted)


def _missing(folder: Path, files: Sequence[Listed]) -> Iterator[Piece]:
    for file in files:
        path = folder / file.name
        have = min(path.stat().st_size, file.size_bytes) if path.exists() else 0
        if file.size_bytes == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        for offset in range(have, file.size_bytes, PIECE_BYTES):
            yield file.name, offset, min(PIECE_BYTES, file.size_bytes - offset)


def _batches(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    """Small files travel together."""
    batch: list[Piece] = []
    for piece in pieces:
        if batch and (len(batch) == _MOST_IN_ONE or sum(size for *_, size in batch) + piece[2] > PIECE_BYTES):
            yield batch
            batch = []
        batch.append(piece)
    if batch:
        yield batch


def _write(folder: Path, batch: Sequence[Piece], contents: Sequence[bytes]) -> None:
    if len(contents) != len(batch):
        raise RunDamaged("the device answered with other pieces than those asked for", "look at the device")
    for (name, offset, size), content in zip(batch, contents, strict=True):
        if len(content) != size:
            raise RunDamaged(f"the device sent {len(content)} bytes of '{name}' in the place of {size}", "try again")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if path.exists() else "wb") as file:
            file.seek(offset)
            file.truncate()
            file.write(content)


def _verify(coming: Path, files: Sequence[Listed]) -> None:
    wrong = [file.name for file in files if sha256_of(coming / "files" / file.name) != file.sha256]
    if wrong:
        shutil.rmtree(coming, ignore_errors=True)
        raise RunDamaged(f"'{wrong[0]}' did not arrive as the device has it: another SHA-256", "try again")
