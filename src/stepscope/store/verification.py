"""Every file of a store compared with what was pushed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stepscope.errors import RunNotFound, StoreError
from stepscope.store import manifest as manifests
from stepscope.store.index import FOLDER, INDEX, find, refuse_folder_of_runs
from stepscope.store.manifest import FileEntry
from stepscope.store.storage import RefusedFile, Store


@dataclass(frozen=True)
class Verified:
    """A run of a store: how many files and bytes were read, and what is wrong with which file, by its path."""

    id: str
    files: int
    bytes: int
    wrong: dict[str, str]


def verify(
    store: Store, run_ids: Iterable[str] | None = None, done: Callable[[Verified], None] | None = None
) -> list[Verified]:
    """Read every file of runs (None: of all) and compare size and SHA-256 with the manifest; nothing is changed.

    `done` is told of each run. A manifest that cannot be read is a run of its own, with its name. Raises RunNotFound
    where a run or the store is not there, StoreError where the store fails, UsageError for a folder of runs that is
    no store.
    """
    refuse_folder_of_runs(store)
    if not _all_ids(store) and INDEX not in store.list_folder(""):
        raise RunNotFound(f"there is no store at '{store.address}'", "stepscope runs push RUN --store ... makes one")
    results: list[Verified] = []
    for run_id in _all_ids(store) if run_ids is None else run_ids:
        results.append(_verified(store, run_id))
        if done is not None:
            done(results[-1])
    return results


def _all_ids(store: Store) -> list[str]:
    return sorted(
        {run_id for name in store.list_folder(FOLDER) if (run_id := manifests.run_id_of_file_name(name)) is not None}
    )


def _verified(store: Store, run_id: str) -> Verified:
    try:
        _, manifest = find(store, run_id)
    except RunNotFound:
        if run_id not in _all_ids(store):
            raise
        return Verified(run_id, 0, 0, {FOLDER: "the manifest is damaged"})
    except RefusedFile as error:
        return Verified(run_id, 0, 0, {FOLDER: str(error)})
    sizes = store.sizes(manifest.folder)
    named = {file.path for file in manifest.files}
    wrong = dict.fromkeys(sorted(sizes.keys() - named), "no manifest names it")
    for file in manifest.files:
        if (damage := _damage_of_file(store, f"{manifest.folder}/{file.path}", file, sizes.get(file.path))) is not None:
            wrong[file.path] = damage
    return Verified(run_id, len(manifest.files), manifest.bytes, wrong)


def _damage_of_file(store: Store, path: str, file: FileEntry, size: int | None) -> str | None:
    if size is None:
        return "missing"
    if size != file.bytes:
        return f"{size:,} bytes, {file.bytes:,} were pushed"
    digest = hashlib.sha256()
    try:
        for piece in store.chunks(path, file.bytes):
            digest.update(piece)
    except FileNotFoundError:
        return "missing"
    except StoreError as error:
        return str(error)
    return None if digest.hexdigest() == file.sha256 else "another content than was pushed: its SHA-256 differs"
