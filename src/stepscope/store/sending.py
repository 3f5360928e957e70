"""Pushing runs into a store: the files first, the manifest last, so that half a push is never listed."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stepscope.errors import RunDamaged, StoreError, UsageError
from stepscope.runfolder import RunReader
from stepscope.store import manifest as manifests
from stepscope.store.facts import facts_of
from stepscope.store.listing import FOLDER, read_all, write_index
from stepscope.store.manifest import FileEntry, Manifest
from stepscope.store.place import CHUNK_BYTES, Place

Outcome = Literal["pushed", "replaced", "already there"]


@dataclass(frozen=True)
class Pushed:
    """What became of one run."""

    id: str
    outcome: Outcome
    bytes: int


def push(
    place: Place, paths: Iterable[Path], tags: Iterable[str] = (), done: Callable[[Pushed], None] | None = None
) -> list[Pushed]:
    """Push run folders; a run that is there with the same content is left as it is. `done` is told of each.

    Raises UsageError for a run that is still being written, StoreError where the store fails or holds another run of
    the same name; what was pushed before stays and is listed.
    """
    pushed: list[Pushed] = []
    try:
        for path in paths:
            pushed.append(_push_one(place, RunReader(path), tuple(tags)))
            if done is not None:
                done(pushed[-1])
    finally:
        if any(each.outcome != "already there" for each in pushed):
            write_index(place)
    return pushed


def entries_of(folder: Path) -> tuple[FileEntry, ...]:
    """Every file of a run folder with its checksum; hidden ones are parts of a write and left out.

    Raises RunDamaged for a link or a special file: a run folder holds plain files alone.
    """
    return tuple(FileEntry(path.relative_to(folder).as_posix(), *_checked(path)) for path in _files(folder))


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(place, name)
            if name.startswith("."):
                continue
            if not stat.S_ISREG(path.lstat().st_mode):
                raise RunDamaged(f"'{path}' is no plain file", "remove it: a run folder holds neither links nor pipes")
            yield path
        for name in folders:
            if Path(place, name).is_symlink():
                raise RunDamaged(f"'{Path(place, name)}' is a link", "remove it: a run folder holds no links")


def _checked(path: Path) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    for piece in _pieces(path):
        digest.update(piece)
        size += len(piece)
    return size, digest.hexdigest()


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            yield piece


def _push_one(place: Place, run: RunReader, tags: tuple[str, ...]) -> Pushed:
    if run.status == "running":
        raise UsageError(f"the run {run.id} is still being written", "push it when it has ended")
    names = [name for name in place.names(FOLDER) if manifests.id_in(name) == run.id]
    known = max(read_all(place, names).values(), key=lambda each: each.revision, default=None)
    revision = 0 if known is None else known.revision
    kept = () if known is None else known.tags
    new = Manifest(run.id, entries_of(run.path), facts_of(run), (), time.time(), revision)
    new = manifests.tagged(new, (*kept, *tags), ())
    manifests.check(new)
    if known is not None:
        _refuse_another_run(place, known, new)
        if known.digest == new.digest and known.tags == new.tags and _is_whole(place, known):
            return Pushed(run.id, "already there", known.bytes)
    _send_files(place, run.path, new)
    save(place, new, names)
    return Pushed(run.id, "pushed" if known is None else "replaced", new.bytes)


def save(place: Place, manifest: Manifest, older: Iterable[str]) -> None:
    """Write a manifest, and then remove those that it replaces."""
    name, content = manifests.written(manifest)
    place.write(f"{FOLDER}/{name}", content)
    for other in older:
        if other != name:
            place.remove(f"{FOLDER}/{other}")


def _refuse_another_run(place: Place, known: Manifest, new: Manifest) -> None:
    if known.facts.get("started_s") != new.facts.get("started_s"):
        raise StoreError(
            f"{place.address} holds another run named '{new.id}': it began at another time",
            "rename the folder and the id in its run.json, or remove the other: stepscope runs rm",
        )


def _is_whole(place: Place, manifest: Manifest) -> bool:
    sizes = place.sizes(manifest.folder)
    return all(sizes.get(file.path) == file.bytes for file in manifest.files)


def _send_files(place: Place, folder: Path, manifest: Manifest) -> None:
    there = place.sizes(manifest.folder)
    for file in manifest.files:
        if there.get(file.path) == file.bytes:  # of a push that was broken off: the folder's name is the content's
            continue
        digest = hashlib.sha256()
        place.send(f"{manifest.folder}/{file.path}", _hashed(folder / file.path, digest))
        if digest.hexdigest() != file.sha256:
            place.remove(f"{manifest.folder}/{file.path}")
            raise UsageError(f"'{folder / file.path}' has changed while it was pushed", "push it again")


def _hashed(path: Path, digest: hashlib._Hash) -> Iterator[bytes]:
    for piece in _pieces(path):
        digest.update(piece)
        yield piece
