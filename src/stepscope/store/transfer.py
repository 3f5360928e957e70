"""Runs into a store and out of it, their tags, and what is removed; the manifest is written last and removed first."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from stepscope.errors import OutputNotWritable, RunError, StepscopeError, StoreError, UsageError
from stepscope.files import sync
from stepscope.liveness import is_running
from stepscope.runfolder import RunReader
from stepscope.runfolder.checksums import CHECKSUMS, changed_files, read_checksums
from stepscope.store import manifest as manifests
from stepscope.store.index import FOLDER, find, read_manifests, refuse_folder_of_runs, run_facts, write_index
from stepscope.store.manifest import SHORT, FileEntry, Manifest, digest_of
from stepscope.store.redaction import files_of, redacted_run
from stepscope.store.storage import CHUNK_BYTES, Store, StoreUnavailable

Outcome = Literal["pushed", "replaced", "already there"]


@dataclass(frozen=True)
class Pushed:
    """Outcome of one run; left: files of its folder that were not pushed, since they could say a secret."""

    id: str
    outcome: Outcome
    bytes: int
    left: tuple[str, ...] = ()


def push(
    store: Store, paths: Iterable[Path], tags: Iterable[str] = (), done: Callable[[Pushed], None] | None = None
) -> list[Pushed]:
    """Push run folders; a run that is there with the same content is left as it is. `done` is told of each.

    Raises UsageError for a run that is still being written, StoreError where the store holds another run of the same
    name, once the others are pushed, and StoreFails at once; what was pushed stays and is listed.
    """
    refuse_folder_of_runs(store)
    pushed: list[Pushed] = []
    refused: list[StepscopeError] = []
    try:
        for path in paths:
            try:
                pushed.append(_push_one(store, RunReader(path), tuple(tags)))
            except StoreUnavailable:
                raise
            except StepscopeError as error:
                refused.append(error)
            else:
                if done is not None:
                    done(pushed[-1])
    finally:
        if any(entry.outcome != "already there" for entry in pushed):
            write_index(store)
    if len(refused) > 1:
        text = "; ".join(map(str, refused))
        raise StoreError(f"{len(refused)} runs were not pushed: {text}", refused[0].hint) from refused[0]
    if refused:
        raise refused[0]
    return pushed


def entries_of(folder: Path) -> tuple[FileEntry, ...]:
    """Every file of a run folder with its checksum; hidden ones are parts of a write and excluded.

    Raises RunDamaged for a link or a special file: a run folder holds plain files alone.
    """
    return tuple(FileEntry(path.relative_to(folder).as_posix(), *_size_and_sha256(path)) for path in files_of(folder))


def _size_and_sha256(path: Path) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    for piece in _read_pieces(path):
        digest.update(piece)
        size += len(piece)
    return size, digest.hexdigest()


def _read_pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            yield piece


def _push_one(store: Store, stated: RunReader, tags: tuple[str, ...]) -> Pushed:
    if stated.status == "running":
        raise UsageError(f"the run {stated.id} is still being written", "push it when it has ended")
    with redacted_run(stated) as (run, omitted):
        return replace(_push_redacted(store, run, tags), left=omitted)


def _push_redacted(store: Store, run: RunReader, tags: tuple[str, ...]) -> Pushed:
    names = [name for name in store.list_folder(FOLDER) if manifests.run_id_of_file_name(name) == run.id]
    stored = max(read_manifests(store, names).values(), key=lambda entry: entry.revision, default=None)
    revision = 0 if stored is None else stored.revision
    old_tags = () if stored is None else stored.tags
    new = Manifest(run.id, entries_of(run.path), run_facts(run), (), time.time(), revision)
    new = manifests.with_tags(new, (*old_tags, *tags), ())
    manifests.check_manifest(new)
    if stored is not None:
        _refuse_another_run(store, stored, new)
        if stored.digest == new.digest and stored.tags == new.tags and _is_complete(store, stored):
            return Pushed(run.id, "already there", stored.bytes)
        _refuse_damaged_copy(store, stored, new, run)
    _send_files(store, run.path, new)
    save_manifest(store, new, names)
    return Pushed(run.id, "pushed" if stored is None else "replaced", new.bytes)


def save_manifest(store: Store, manifest: Manifest, older: Iterable[str]) -> None:
    """Write a manifest, and then remove those that it replaces; of two that are written at once, the tags of both stay.

    Raises StoreFails where others go on changing it.
    """
    replaced = set(older)
    for _ in range(_MOST_MERGES):
        name, content = manifests.to_file(manifest)
        store.write(f"{FOLDER}/{name}", content)
        for other in replaced - {name}:
            store.remove(f"{FOLDER}/{other}")
        meanwhile = [
            other
            for other in store.list_folder(FOLDER)
            if manifests.run_id_of_file_name(other) == manifest.id and other != name
        ]
        rivals = [
            rival
            for rival in read_manifests(store, meanwhile, {}).values()
            if rival.digest == manifest.digest
            and rival.revision >= manifest.revision  # an older one is what is replaced
        ]
        if all(set(rival.tags) <= set(manifest.tags) for rival in rivals):
            return
        newest = max([manifest, *rivals], key=lambda entry: entry.revision)
        manifest = manifests.with_tags(newest, [tag for rival in (manifest, *rivals) for tag in rival.tags], ())
        replaced = {name, *meanwhile}
    raise StoreUnavailable(f"'{manifest.id}' is being changed by others all the time", "try again when they have ended")


def _refuse_another_run(store: Store, stored: Manifest, new: Manifest) -> None:
    if stored.facts.get("started_s") != new.facts.get("started_s"):
        raise StoreError(
            f"{store.address} holds another run named '{new.id}': it began at another time",
            "rename the folder and the id in its run.json, or remove the other: stepscope runs rm",
        )


def _refuse_damaged_copy(store: Store, stored: Manifest, new: Manifest, run: RunReader) -> None:
    """Raise StoreError where files that the store has are damaged or gone here."""
    here = {file.path: file.sha256 for file in new.files}
    differ = {file.path for file in stored.files if here.get(file.path) != file.sha256}
    noted = read_checksums(run.path)
    damaged = {text.partition(":")[0] for text in run.damaged_files()} | set(changed_files(run.path, noted))
    worse = sorted(differ & (damaged | ({*noted, CHECKSUMS} - set(here))))
    if worse:
        raise StoreError(
            f"{store.address} holds '{new.id}' already, and this copy of it is damaged: {', '.join(worse[:3])}",
            f"keep that one: stepscope runs pull {new.id}; or remove it first: stepscope runs rm {new.id}",
        )


def _is_complete(store: Store, manifest: Manifest) -> bool:
    sizes = store.sizes(manifest.folder)
    return all(sizes.get(file.path) == file.bytes for file in manifest.files)


def _send_files(store: Store, folder: Path, manifest: Manifest) -> None:
    there = store.sizes(manifest.folder)
    for file in manifest.files:
        # Of a push that was broken off: the folder's name is the content's. A loss of power can leave the size alone.
        if there.get(file.path) == file.bytes and (not store.is_local or _has_same_content(store, manifest, file)):
            continue
        digest = hashlib.sha256()
        store.send(f"{manifest.folder}/{file.path}", _read_hashing(folder / file.path, digest))
        if digest.hexdigest() != file.sha256:
            store.remove(f"{manifest.folder}/{file.path}")
            raise UsageError(f"'{folder / file.path}' has changed while it was pushed", "push it again")


def _has_same_content(store: Store, manifest: Manifest, file: FileEntry) -> bool:
    path = Path(store.full_path(f"{manifest.folder}/{file.path}"))
    return not path.is_symlink() and _size_and_sha256(path) == (file.bytes, file.sha256)


def _read_hashing(path: Path, digest: hashlib._Hash) -> Iterator[bytes]:
    for piece in _read_pieces(path):
        digest.update(piece)
        yield piece


MOST_BYTES = 16 << 30
_MOST_MERGES = 5  # of a run that several push or tag at once
_PULLED = ".pull-"  # a run on its way


def pull(store: Store, run_ids: Iterable[str], out: str | Path, most_bytes: int = MOST_BYTES) -> list[Path]:
    """Fetch runs into `out`; one that is there with the same content is left as it is. Returns their folders.

    Raises StoreError for a run whose files are not what its manifest says, that could write elsewhere or is larger than
    `most_bytes`; OutputNotWritable where `out` has no space or holds another run of the name.
    """
    return [_pull_one(store, run_id, Path(out), most_bytes) for run_id in run_ids]


def _pull_one(store: Store, run_id: str, out: Path, most_bytes: int) -> Path:
    _, manifest = find(store, run_id)
    target = out / manifest.id
    if target.exists():
        return _existing_if_identical(target, manifest)
    if manifest.bytes > most_bytes:
        raise StoreError(
            f"the run '{run_id}' is {manifest.bytes:,} bytes, more than {most_bytes:,}", "allow it: --max-size 100GB"
        )
    _remove_leftovers(out)
    part = out / f"{_PULLED}{manifest.id}-{secrets.token_hex(4)}.{os.getpid()}"
    try:
        part.mkdir(parents=True)
        _refuse_a_full_disk(out, manifest)
        for file in manifest.files:
            _fetch_file(store, manifest, file, part / file.path)
        _refuse_no_run(part, manifest)
        part.rename(target)
        sync(out)
    except OSError as error:
        raise _not_writable(out, error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def _fetch_file(store: Store, manifest: Manifest, file: FileEntry, target: Path) -> None:
    digest, size = hashlib.sha256(), 0
    target.parent.mkdir(parents=True, exist_ok=True)
    path = f"{manifest.folder}/{file.path}"
    try:
        with target.open("xb") as written:
            for piece in store.chunks(path, file.bytes):
                digest.update(piece)
                size += len(piece)
                if size <= file.bytes:
                    written.write(piece)
        sync(target)  # a loss of power leaves the run as it was pushed, or none
    except FileNotFoundError as error:
        raise StoreError(f"'{path}' is missing in {store.address}", "push the run again") from error
    if (size, digest.hexdigest()) != (file.bytes, file.sha256):
        raise StoreError(
            f"'{path}' in {store.address} is not what was pushed: its checksum differs",
            "push the run again from where it was recorded",
        )


def _remove_leftovers(out: Path) -> None:
    """Remove what pulls that were killed had begun."""
    for part in out.glob(f"{_PULLED}*"):
        pid = part.suffix[1:]
        if pid.isdecimal() and not is_running(int(pid)):
            shutil.rmtree(part, ignore_errors=True)


def _existing_if_identical(target: Path, manifest: Manifest) -> Path:
    try:
        if digest_of(entries_of(target)) == manifest.digest:
            return target
    except (OSError, RunError) as error:
        raise OutputNotWritable(
            f"'{target}' is there and cannot be compared: {error}", "choose another --out"
        ) from error
    raise OutputNotWritable(
        f"'{target}' is there with other content than in the store", "move it away, or choose another --out"
    )


def _refuse_a_full_disk(out: Path, manifest: Manifest) -> None:
    free = shutil.disk_usage(out).free
    if free < manifest.bytes:
        raise OSError(errno.ENOSPC, f"{manifest.bytes:,} bytes are needed and {free:,} are free")


def _refuse_no_run(part: Path, manifest: Manifest) -> None:
    try:
        run = RunReader(part)
    except RunError as error:
        raise StoreError(f"what the store holds as '{manifest.id}' is no run: {error}", error.hint) from error
    if run.id != manifest.id:
        raise StoreError(f"the store holds the run '{run.id}' under the name '{manifest.id}'")


def _not_writable(out: Path, error: OSError) -> OutputNotWritable:
    full = error.errno == errno.ENOSPC
    hint = "free some space, or choose another folder with --out" if full else "choose a folder that you can write"
    return OutputNotWritable(f"cannot write below '{out}': {error.strerror or error}", hint)


def tag(
    store: Store, run_ids: Iterable[str], add: Iterable[str] = (), drop: Iterable[str] = ()
) -> dict[str, tuple[str, ...]]:
    """Add and drop tags of runs; returns the tags of each. RunNotFound where one is not there."""
    add, drop = tuple(add), tuple(drop)
    tags = {}
    try:
        for run_id in run_ids:
            name, manifest = find(store, run_id)
            new = manifests.with_tags(manifest, add, drop)
            if new.tags != manifest.tags:
                save_manifest(store, new, [name])
            tags[run_id] = new.tags
    finally:
        write_index(store)
    return tags


def remove(store: Store, run_ids: Iterable[str]) -> list[str]:
    """Remove runs from a store, manifest first, so that no run is listed whose files are being removed."""
    removed = []
    try:
        for run_id in run_ids:
            manifests.check_id(run_id)
            names = [name for name in store.list_folder(FOLDER) if manifests.run_id_of_file_name(name) == run_id]
            if not names:
                find(store, run_id)  # it says what is there
            for name in names:
                store.remove(f"{FOLDER}/{name}")
            store.remove(f"runs/{run_id}", recursive=True)
            removed.append(run_id)
    finally:
        write_index(store)
    return removed


def _run_id_of(name: str) -> str:
    """Return the run of a manifest's file name, or of a path below runs/."""
    return name.partition("~")[0].partition("/")[0]


DAY_S = 86400.0
_OURS = re.compile(f"[0-9a-f]{{{SHORT}}}")  # a folder of runs that is no store has others, and keeps them


@dataclass(frozen=True)
class Collected:
    """Removed files (or those to remove): folders and manifests, bytes, and what is too young to be judged."""

    removed: tuple[str, ...]
    bytes: int
    too_young: tuple[str, ...]
    runs: int  # that the index has afterwards


def collect(store: Store, older_than_s: float = DAY_S, dry_run: bool = False) -> Collected:
    """Remove what no manifest names and nobody has written to for `older_than_s`: a push may still be going on."""
    names = [name for name in store.list_folder(FOLDER) if manifests.run_id_of_file_name(name) is not None]
    refused: dict[str, StoreError] = {}
    by_name = read_manifests(store, names, refused)
    latest = {entry.id: entry.revision for entry in sorted(by_name.values(), key=lambda entry: entry.revision)}
    # A later version may know what a refused one names; a damaged one may be the only one that names intact files.
    protected = set(map(_run_id_of, refused)) | (set(map(_run_id_of, set(names) - set(by_name))) - set(latest))
    stale = [
        name
        for name in set(names) - set(refused)
        if (by_name[name].revision < latest[by_name[name].id] if name in by_name else _run_id_of(name) in latest)
    ]
    named = {entry.folder for entry in by_name.values() if entry.revision == latest[entry.id]}
    removed, young, freed = [f"{FOLDER}/{name}" for name in stale], [], 0
    for run_id in set(store.list_folder("runs")) - protected:
        for content in store.list_folder(f"runs/{run_id}"):
            folder = f"runs/{run_id}/{content}"
            if folder in named or _OURS.fullmatch(content) is None:
                continue
            age_s = store.age_s(folder)
            if older_than_s > 0 and (age_s is None or age_s < older_than_s):
                young.append(folder)
                continue
            removed.append(folder)
            freed += sum(store.sizes(folder).values())
    if dry_run:
        return Collected(tuple(removed), freed, tuple(young), len(latest))
    changed = set(map(_run_id_of, set(store.list_folder(FOLDER)) - set(names)))  # tagged or pushed meanwhile
    removed = [path for path in removed if _run_id_of(path.partition("/")[2]) not in changed]
    for path in removed:
        store.remove(path, recursive=not path.startswith(FOLDER))
    return Collected(tuple(removed), freed, tuple(young), write_index(store))
