"""Runs into a store and out of it, their tags and removal; the manifest is written last and removed first."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from stepscope.errors import OutputNotWritable, RunDamaged, RunError, StepscopeError, StoreError, UsageError
from stepscope.files import sync
from stepscope.liveness import is_running
from stepscope.runfolder import RunReader
from stepscope.runfolder.checksums import CHECKSUMS, changed_files, read_checksums
from stepscope.store import manifest as manifests
from stepscope.store.index import facts_of_runs, write_index
from stepscope.store.manifest import (
    FOLDER,
    FileEntry,
    Manifest,
    digest_of,
    find,
    manifest_names,
    read_manifests,
    refuse_folder_of_runs,
)
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
            except OSError as error:  # of the run: what the store refuses is no such error any more
                why = f"'{error.filename or path}' cannot be read: {error.strerror or error}"
                refused.append(RunDamaged(why, "push it as the user that recorded it, or from a copy that can be read"))
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
    names = manifest_names(store, run.id)
    stored = max(read_manifests(store, names).values(), key=lambda entry: entry.revision, default=None)
    revision = 0 if stored is None else stored.revision
    old_tags = () if stored is None else stored.tags
    new = Manifest(run.id, entries_of(run.path), facts_of_runs([run])[0], (), time.time(), revision)
    new = manifests.with_tags(new, (*old_tags, *tags), ())
    manifests.check_manifest(new)
    if stored is not None:
        _refuse_another_run(store, stored, new)
        if stored.digest == new.digest and stored.tags == new.tags and _is_complete(store, stored):
            return Pushed(run.id, "already there", stored.bytes)
        _refuse_damaged_copy(store, stored, new, run)
    with contextlib.suppress(FileNotFoundError):  # of a folder that another removes
        _send_files(store, run.path, new)
    if not _is_complete(store, new):
        raise StoreError(f"files of '{run.id}' were removed while it was pushed", "push it again")
    save_manifest(store, new, stored, names)
    return Pushed(run.id, "pushed" if stored is None else "replaced", new.bytes)


def save_manifest(store: Store, manifest: Manifest, base: Manifest | None, older: Iterable[str]) -> Manifest:
    """Write a manifest, and then remove those that it replaces; return what is there in the end.

    Of changes to `base` that are made at once the tags that any of them adds are there, and those that any drops gone.
    Raises StoreUnavailable where others go on changing it.
    """
    replaced, base_tags = set(older), set(() if base is None else base.tags)
    for _ in range(_MOST_MERGES):
        name, content = manifests.to_file(manifest)
        store.write(f"{FOLDER}/{name}", content)
        for other in replaced - {name}:
            store.remove(f"{FOLDER}/{other}")
        meanwhile = [other for other in manifest_names(store, manifest.id) if other != name]
        rivals = [
            rival
            for rival in read_manifests(store, meanwhile, {}).values()
            if rival.revision >= manifest.revision  # an older one is what is replaced
        ]
        if all((rival.tags, rival.digest) == (manifest.tags, manifest.digest) for rival in rivals):
            return manifest
        versions = [set(version.tags) for version in (manifest, *rivals)]
        newest = max([manifest, *rivals], key=lambda entry: (entry.revision, entry.pushed_s))
        dropped = set().union(*(base_tags - version for version in versions))
        manifest = manifests.with_tags(newest, base_tags.union(*versions), dropped)
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


def pull(
    store: Store,
    run_ids: Iterable[str],
    out: str | Path,
    most_bytes: int = MOST_BYTES,
    done: Callable[[Path], None] | None = None,
) -> list[Path]:
    """Fetch runs into `out`; one that is there with the same content is left as it is. Returns their folders.

    Raises RunNotFound where one is not there, before any is fetched, StoreError for a run whose files are not what its
    manifest says, that could write elsewhere or is larger than `most_bytes`; OutputNotWritable where `out` has no space
    or holds another run of the name. `done` is told of each.
    """
    paths: list[Path] = []
    for manifest in [find(store, run_id)[1] for run_id in run_ids]:
        paths.append(_pull_one(store, manifest, Path(out), most_bytes))
        if done is not None:
            done(paths[-1])
    return paths


def _pull_one(store: Store, manifest: Manifest, out: Path, most_bytes: int) -> Path:
    target = out / manifest.id
    if target.exists():
        return _existing_if_identical(target, manifest)
    if manifest.bytes > most_bytes:
        why = f"the run '{manifest.id}' is {manifest.bytes:,} bytes, more than {most_bytes:,}"
        raise StoreError(why, "allow it: --max-size 100GB")
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
        raise StoreError(f"what the store holds as '{manifest.id}' is not a run: {error}", error.hint) from error
    if run.id != manifest.id:
        raise StoreError(f"the store holds the run '{run.id}' under the name '{manifest.id}'")


def _not_writable(out: Path, error: OSError) -> OutputNotWritable:
    full = error.errno == errno.ENOSPC
    hint = "free some space, or choose another folder with --out" if full else "choose a folder that you can write"
    return OutputNotWritable(f"cannot write below '{out}': {error.strerror or error}", hint)


def tag(
    store: Store, run_ids: Iterable[str], add: Iterable[str] = (), drop: Iterable[str] = ()
) -> dict[str, tuple[str, ...]]:
    """Add and drop tags of runs; returns the tags of each. RunNotFound where one is not there: none is changed then."""
    add, drop = tuple(add), tuple(drop)
    stored = {run_id: find(store, run_id) for run_id in run_ids}
    changed = {run_id: manifests.with_tags(manifest, add, drop) for run_id, (_, manifest) in stored.items()}
    try:
        for run_id, (name, manifest) in stored.items():
            if changed[run_id].tags != manifest.tags:
                changed[run_id] = save_manifest(store, changed[run_id], manifest, [name])
    finally:
        write_index(store)
    return {run_id: manifest.tags for run_id, manifest in changed.items()}


def _remove_manifests(store: Store, run_id: str) -> None:
    for name in manifest_names(store, run_id):
        store.remove(f"{FOLDER}/{name}")


def remove(store: Store, run_ids: Iterable[str]) -> list[str]:
    """Remove runs from a store, manifest first, so that no run is listed whose files are being removed.

    RunNotFound where one is not there: none is removed then.
    """
    meant = list(dict.fromkeys(run_ids))
    for run_id in meant:
        if not manifest_names(store, run_id):
            find(store, run_id)  # it says what is there
    try:
        for run_id in meant:
            _remove_manifests(store, run_id)
            store.remove(f"runs/{run_id}", recursive=True)
            _remove_manifests(store, run_id)  # of a push at the same time, whose files have gone with the others
    finally:
        write_index(store)
    return meant
