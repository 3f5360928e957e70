"""Upkeep of a store: every file compared with what was pushed, and what no manifest names removed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stepscope.errors import RunNotFound, StoreError
from stepscope.store.index import write_index
from stepscope.store.manifest import (
    FOLDER,
    SHORT,
    FileEntry,
    find,
    manifest_names,
    read_manifests,
    refuse_no_store,
    run_id_of,
)
from stepscope.store.storage import PART, RefusedFile, Store


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
    refuse_no_store(store)
    results: list[Verified] = []
    for run_id in sorted(set(map(run_id_of, manifest_names(store)))) if run_ids is None else run_ids:
        results.append(_verified(store, run_id))
        if done is not None:
            done(results[-1])
    return results


def _verified(store: Store, run_id: str) -> Verified:
    try:
        _, manifest = find(store, run_id)
    except RunNotFound:
        if not manifest_names(store, run_id):
            raise
        return Verified(run_id, 0, 0, {FOLDER: "the manifest is damaged"})
    except RefusedFile as error:
        return Verified(run_id, 0, 0, {FOLDER: str(error)})
    sizes = store.sizes(manifest.folder)
    named = {file.path for file in manifest.files}
    wrong = {path: "no manifest names it" for path in sorted(sizes.keys() - named) if not path.endswith(PART)}
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


DAY_S = 86400.0
_OURS = re.compile(f"[0-9a-f]{{{SHORT}}}")  # a folder of runs that is no store has others, and keeps them


@dataclass(frozen=True)
class Collected:
    """Removed files (or those to remove): folders and manifests, bytes, and what is too young to be judged."""

    removed: tuple[str, ...]
    bytes: int
    too_young: tuple[str, ...]
    runs: int  # that the index has afterwards


def _half_written(store: Store, folder: str) -> dict[str, int]:
    """Return what pushes that were killed left beside the files of a run, with their sizes."""
    sizes = store.sizes(folder) if store.is_local else {}  # elsewhere a file is there as a whole, or not at all
    return {f"{folder}/{path}": size for path, size in sizes.items() if path.endswith(PART)}


def collect(store: Store, older_than_s: float = DAY_S, dry_run: bool = False) -> Collected:
    """Remove what no manifest names and nobody has written to for `older_than_s`: a push may still be going on."""
    names = manifest_names(store)
    if not names:
        refuse_no_store(store)
    refused: dict[str, StoreError] = {}
    by_name = read_manifests(store, names, refused)
    latest = {entry.id: entry.revision for entry in sorted(by_name.values(), key=lambda entry: entry.revision)}
    # A later version may know what a refused one names; a damaged one may be the only one that names intact files.
    protected = set(map(run_id_of, refused)) | (set(map(run_id_of, set(names) - set(by_name))) - set(latest))
    stale = [
        name
        for name in set(names) - set(refused)
        if (by_name[name].revision < latest[by_name[name].id] if name in by_name else run_id_of(name) in latest)
    ]
    named = {entry.folder for entry in by_name.values() if entry.revision == latest[entry.id]}
    removed, young, freed = [f"{FOLDER}/{name}" for name in stale], list[str](), 0
    for run_id in set(store.list_folder("runs")) - protected:
        for content in store.list_folder(f"runs/{run_id}"):
            folder = f"runs/{run_id}/{content}"
            if _OURS.fullmatch(content) is None:
                continue
            sizes = {folder: sum(store.sizes(folder).values())} if folder not in named else _half_written(store, folder)
            age_s = store.age_s(folder) if sizes else None
            if sizes and older_than_s > 0 and (age_s is None or age_s < older_than_s):
                young += sizes
                continue
            removed += sizes
            freed += sum(sizes.values())
    if dry_run:
        return Collected(tuple(removed), freed, tuple(young), len(latest))
    changed = set(map(run_id_of, set(store.list_folder(FOLDER)) - set(names)))  # tagged or pushed meanwhile
    removed = [path for path in removed if run_id_of(path.partition("/")[2]) not in changed]
    for path in removed:
        store.remove(path, recursive=not path.startswith(FOLDER))
    return Collected(tuple(removed), freed, tuple(young), write_index(store))
