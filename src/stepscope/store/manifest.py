"""The manifest of a run in a store: its files with their checksums, its facts and tags; what it says is checked.

A manifest comes from wherever the store is, so nothing in it is believed: names that lead out of a folder, sizes
beyond the limits and texts of the wrong kind are refused before anything is written. A store that has one is a store.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from stepscope.errors import RunNotFound, StoreError, UsageError
from stepscope.run_paths import run_folders
from stepscope.runfolder.writer import is_run_id
from stepscope.store.storage import RefusedFile, Store
from stepscope.units import escape_control_characters

FOLDER, INDEX = "manifests", "index.parquet"  # in a store
MAKES_ONE = "stepscope runs push RUN --store ... makes one"
FORMAT = 1
MOST_FILES = 100_000
MOST_BYTES = 64 << 30
MOST_MANIFEST_BYTES = 64 << 20
_DEEPEST = 8
_LATEST = 1 << 62  # what the index has room for
_PART = re.compile(r"[^/\\:\x00-\x1f\x7f]{1,255}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=/+-]{0,99}")
_MOST_TAGS, _MOST_FACT = 1000, 1000  # characters of a fact
SHORT = 16  # hexadecimal digits of a digest in a name
Fact = str | int | float | bool | None


@dataclass(frozen=True)
class FileEntry:
    """One file of a run folder: its path in it, with slashes, and what it must hold."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """A run in a store; `revision` grows with each change, so that of two the later one counts."""

    id: str
    files: tuple[FileEntry, ...]
    facts: dict[str, Fact]
    tags: tuple[str, ...] = ()
    pushed_s: float = 0.0
    revision: int = 1

    @property
    def digest(self) -> str:
        """SHA-256 over paths, sizes and checksums: the content of the run."""
        return digest_of(self.files)

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def folder(self) -> str:
        """Return where the files lie in the store: a folder of its own for each content, so that no pull sees a
        mixture.
        """
        return f"runs/{self.id}/{self.digest[:SHORT]}"


def digest_of(files: Iterable[FileEntry]) -> str:
    """SHA-256 of the content of a run, whatever the order of its files."""
    lines = sorted(f"{file.path}\0{file.bytes}\0{file.sha256}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def to_file(manifest: Manifest) -> tuple[str, bytes]:
    """Name and content of the manifest's file; the name holds the content's digest, so half a file is seen."""
    content = (json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1, sort_keys=True) + "\n").encode()
    return f"{manifest.id}~{hashlib.sha256(content).hexdigest()[:SHORT]}.json", content


def run_id_of_file_name(name: str) -> str | None:
    """The run that a manifest's file name speaks of; None for another file."""
    run_id, tilde, suffix = name.partition("~")
    return run_id if tilde and suffix.endswith(".json") and is_run_id(run_id) else None


def run_id_of(name: str) -> str:
    """Return the run of a manifest's file name, or of a path below runs/."""
    return name.partition("~")[0].partition("/")[0]


def decode_manifest(name: str, content: bytes) -> Manifest | None:
    """The manifest in a file; None where it is cut off; raises StoreError for what could harm."""
    if f"~{hashlib.sha256(content).hexdigest()[:SHORT]}." not in name:
        return None
    try:
        stated = json.loads(content)
        if stated["format"] > FORMAT:
            raise StoreError(f"'{name}' was written by a newer Stepscope", "pip install --upgrade stepscope")
        manifest = _manifest(stated)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise StoreError(f"'{name}' is not a manifest of a run: {error}") from error
    if manifest.id != run_id_of_file_name(name):
        raise StoreError(f"'{name}' speaks of another run, '{manifest.id}'")
    return manifest


def _manifest(stated: dict[str, Any]) -> Manifest:
    if not isinstance(stated["files"], list) or len(stated["files"]) > MOST_FILES:
        raise StoreError(f"a manifest that lists more than {MOST_FILES:,} files")
    files = tuple(FileEntry(str(f["path"]), int(f["bytes"]), str(f["sha256"])) for f in stated["files"])
    tags = tuple(checked_tag(str(tag)) for tag in list(stated["tags"])[:_MOST_TAGS])
    facts = {escape_control_characters(str(key)): _checked_fact(value) for key, value in dict(stated["facts"]).items()}
    manifest = Manifest(str(stated["id"]), files, facts, tags, float(stated["pushed_s"]), int(stated["revision"]))
    check_manifest(manifest)
    return manifest


def check_manifest(manifest: Manifest) -> None:
    """Raise StoreError where a manifest would write outside of its folder, or more than the limits."""
    check_id(manifest.id)
    paths: set[str] = set()
    for file in manifest.files:
        check_path(file.path)
        if file.path.casefold() in paths:
            raise StoreError(f"the run '{manifest.id}' names '{file.path}' twice")
        paths.add(file.path.casefold())
        if file.bytes < 0 or _SHA256.fullmatch(file.sha256) is None:
            raise StoreError(f"the run '{manifest.id}' states no size or checksum of '{file.path}'")
    if manifest.bytes > MOST_BYTES or len(manifest.files) > MOST_FILES:
        raise StoreError(f"the run '{manifest.id}' is larger than {MOST_BYTES >> 30} GiB or {MOST_FILES:,} files")
    if not 0 <= manifest.revision < _LATEST:
        raise StoreError(f"the run '{manifest.id}' has no revision {manifest.revision:.3g}")
    if "run.json" not in paths:
        raise StoreError(f"the run '{manifest.id}' holds no run.json")


def check_id(run_id: str) -> None:
    """Raise StoreError for what is no name of a run."""
    if not is_run_id(run_id):
        raise StoreError(f"{run_id[:80]!a} is not a valid name of a run", "letters, digits, dot, dash and underscore")


def check_path(path: str) -> None:
    """Raise StoreError for a path that is not plainly within its folder."""
    parts = path.split("/")
    plain = all(_PART.fullmatch(part) and part.isprintable() and not part.startswith(".") for part in parts)
    if not plain or len(parts) > _DEEPEST:
        raise StoreError(f"{path[:80]!a} is not a path inside a run folder")


def with_tags(manifest: Manifest, add: Iterable[str], drop: Iterable[str]) -> Manifest:
    """The next revision with other tags; raises UsageError for what is no tag."""
    new = tuple(sorted({*manifest.tags, *add} - set(drop)))
    if len(new) > _MOST_TAGS:
        raise StoreError(f"the run '{manifest.id}' has more than {_MOST_TAGS} tags", "--drop some")
    try:
        return replace(manifest, tags=tuple(map(checked_tag, new)), revision=manifest.revision + 1)
    except StoreError as error:
        raise UsageError(str(error), error.hint) from error


def checked_tag(tag: str) -> str:
    """Return a tag; StoreError for what is none."""
    if _TAG.fullmatch(tag) is None:
        raise StoreError(
            f"'{escape_control_characters(tag[:80])}' is not a tag",
            "a letter or digit, then . _ = / + - too, such as baseline or power=15W",
        )
    return tag


def _checked_fact(value: object) -> Fact:
    if isinstance(value, str):
        return escape_control_characters(value[:_MOST_FACT].encode("utf-8", errors="replace").decode())
    if value is None or isinstance(value, (int, float, bool)):
        return value
    raise TypeError("a fact that is neither text nor number")


def refuse_folder_of_runs(store: Store) -> None:
    """Raise UsageError where runs lie in the folder itself: nothing of them was pushed."""
    if store.is_local and not store.list_folder(FOLDER) and run_folders(Path(store.root)):
        raise UsageError(
            f"'{store.address}' holds runs as they were recorded: a store is another folder", "--store store"
        )


def refuse_no_store(store: Store) -> None:
    """Raise UsageError for a folder of runs, and RunNotFound where nothing was pushed: nothing is to be written."""
    refuse_folder_of_runs(store)
    if not store.list_folder(FOLDER) and INDEX not in store.list_folder(""):
        raise RunNotFound(f"there is no store at '{store.address}'", MAKES_ONE)


def manifest_names(store: Store, run_id: str | None = None) -> list[str]:
    """Return the files of the manifests of a run (None: of all); StoreError for what is no name of a run."""
    if run_id is None:
        return [name for name in store.list_folder(FOLDER) if run_id_of_file_name(name) is not None]
    check_id(run_id)
    return [name for name in store.list_folder(FOLDER, f"{run_id}~") if run_id_of_file_name(name) == run_id]


def find(store: Store, run_id: str) -> tuple[str, Manifest]:
    """The latest manifest of a run and the name of its file; RunNotFound where the store holds none."""
    names = manifest_names(store, run_id)
    refused: dict[str, StoreError] = {}
    by_name = read_manifests(store, names, refused)
    for error in refused.values():
        raise RefusedFile(str(error), error.hint) from error
    if not by_name:
        refuse_folder_of_runs(store)
        hint = "stepscope runs list --store ... shows what is there"
        raise RunNotFound(f"the store {store.address} holds no run '{run_id}'", hint)
    return max(by_name.items(), key=lambda item: item[1].revision)


def read_manifests(
    store: Store, names: Iterable[str], refused: dict[str, StoreError] | None = None
) -> dict[str, Manifest]:
    """The manifests in these files; one that is cut off or was just removed is excluded.

    refused: takes what is wrong with each that could harm; without it the first one is raised.
    """
    by_name = {}
    for name in names:
        try:
            manifest = _read(store, name)
        except FileNotFoundError:
            continue
        except RefusedFile as error:
            if refused is None:
                raise
            refused[name] = error
            continue
        if manifest is not None:
            by_name[name] = manifest
    return by_name


def _read(store: Store, name: str) -> Manifest | None:
    content = store.read(f"{FOLDER}/{name}", MOST_MANIFEST_BYTES)
    try:
        return decode_manifest(name, content)
    except StoreError as error:
        raise RefusedFile(str(error), error.hint) from error
