"""Files that are replaced as a whole; standard library only."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stepscope.liveness import is_running


@contextlib.contextmanager
def replaced(path: Path, durable: bool = False, whole: bool = False) -> Iterator[Path]:
    """Give a new file beside `path` to write, and move it into its place: a reader or a crash sees the old or the new.

    Nothing of it stays where the writing raises; an OSError names `path`. durable: the disk has content and name when
    this returns (fsync(2)). whole: it has the content before the name, so that no loss of power leaves an empty file.
    """
    part = path.with_name(f".{path.name}.{time.monotonic_ns():x}.{os.getpid()}.part")
    try:
        yield part
        if durable or whole:
            sync(part)
        part.replace(path)
        if durable:
            sync(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)  # a full disk needs the room
        if isinstance(error, OSError) and error.filename == str(part):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def user_cache() -> Path:
    """Return this user's folder for what can be made anew, below XDG_CACHE_HOME; RuntimeError without a home."""
    return _user_folder("XDG_CACHE_HOME", ".cache")


def user_data() -> Path:
    """Return this user's folder for what is to stay, below XDG_DATA_HOME; RuntimeError without a home."""
    return _user_folder("XDG_DATA_HOME", ".local/share")


def _user_folder(variable: str, default: str) -> Path:
    """Return a folder as the freedesktop.org base directories define it: a relative path counts as unset."""
    stated = Path(os.environ.get(variable, ""))
    return (stated if stated.is_absolute() else Path.home() / default) / "stepscope"


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty where it is missing, damaged or no object."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def store_object(path: Path, content: Mapping[str, Any]) -> bool:
    """Write a JSON object into a cache and make its folder; False where that cannot be, which is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_json(path, content)
    except OSError:
        return False
    return True


def replace_json(path: Path, content: object, durable: bool = False, whole: bool = False) -> None:
    """Write a value as indented JSON in the place of a file; what JSON does not know becomes text."""
    with replaced(path, durable, whole) as part:
        part.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")


def clear_parts(folder: Path) -> None:
    """Remove what writers that were killed had begun, here and in the folders below."""
    for part in [*folder.glob(".*.part"), *folder.glob("*/.*.part")]:
        pid = part.name.split(".")[-2]
        if pid.isdecimal() and not is_running(int(pid)):
            part.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Return when the disk has the content of a file, or the names in a folder (fsync(2))."""
    mode = os.O_RDONLY if path.is_dir() else os.O_RDWR
    file = os.open(path, mode | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def digest_of(files: Iterable[Path]) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of the contents, in this order."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
