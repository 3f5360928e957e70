"""Pulling runs out of a store: nothing of a run is seen in the target before every checksum is right."""

from __future__ import annotations

import errno
import hashlib
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path

from stepscope.errors import OutputNotWritable, RunError, StoreError
from stepscope.runfolder import RunReader
from stepscope.store.listing import find
from stepscope.store.manifest import FileEntry, Manifest, digest_of
from stepscope.store.place import Place
from stepscope.store.sending import entries_of

MOST_BYTES = 16 << 30


def pull(place: Place, run_ids: Iterable[str], out: Path, most_bytes: int = MOST_BYTES) -> list[Path]:
    """Fetch runs into `out`; one that is there with the same content is left as it is. Returns their folders.

    Raises StoreError for a run whose files are not what its manifest says, that could write elsewhere or is larger than
    `most_bytes`; OutputNotWritable where `out` has no space or holds another run of the name.
    """
    return [_pull_one(place, run_id, out, most_bytes) for run_id in run_ids]


def _pull_one(place: Place, run_id: str, out: Path, most_bytes: int) -> Path:
    _, manifest = find(place, run_id)
    target = out / manifest.id
    if target.exists():
        return _same(target, manifest)
    if manifest.bytes > most_bytes:
        raise StoreError(
            f"the run '{run_id}' is {manifest.bytes:,} bytes, more than {most_bytes:,}", "allow it: --max-size 100GB"
        )
    part = out / f".pull-{manifest.id}-{secrets.token_hex(4)}"
    try:
        part.mkdir(parents=True)
        _refuse_a_full_disk(out, manifest)
        for file in manifest.files:
            _fetch(place, manifest, file, part / file.path)
        _refuse_no_run(part, manifest)
        part.rename(target)
    except OSError as error:
        raise _not_writable(out, error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def _fetch(place: Place, manifest: Manifest, file: FileEntry, target: Path) -> None:
    digest, size = hashlib.sha256(), 0
    target.parent.mkdir(parents=True, exist_ok=True)
    path = f"{manifest.folder}/{file.path}"
    try:
        with target.open("xb") as written:
            for piece in place.chunks(path, file.bytes):
                digest.update(piece)
                size += len(piece)
                if size <= file.bytes:
                    written.write(piece)
    except FileNotFoundError as error:
        raise StoreError(f"'{path}' is missing in {place.address}", "push the run again") from error
    if (size, digest.hexdigest()) != (file.bytes, file.sha256):
        raise StoreError(
            f"'{path}' in {place.address} is not what was pushed: its checksum differs",
            "push the run again from where it was recorded",
        )


def _same(target: Path, manifest: Manifest) -> Path:
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
