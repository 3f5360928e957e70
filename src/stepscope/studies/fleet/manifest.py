"""What a run folder on a device holds, and whether such a list can be written here: names, sizes and hashes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from stepscope.errors import RunDamaged

MOST_FILES = 20_000
MOST_BYTES = 64_000_000_000
_MOST_NAME = 255  # bytes: what file systems take
_SHA256 = re.compile(r"[0-9a-f]{64}")
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Listed:
    """A file: its path below the folder with forward slashes, its size, and its SHA-256."""

    name: str
    size_bytes: int
    sha256: str


def listed(folder: Path) -> list[Listed]:
    """Every plain file below a folder. Links and devices are left out: they have no meaning elsewhere."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    return [Listed(path.relative_to(folder).as_posix(), path.stat().st_size, sha256_of(path)) for path in found]


def checked(content: Iterable[Mapping[str, Any]]) -> list[Listed]:
    """A list that came from elsewhere; RunDamaged where a file would leave the folder, or it is beyond measure."""
    files: list[Listed] = []
    for each in content:
        if len(files) == MOST_FILES:
            raise _refused(f"more than {MOST_FILES} files")
        files.append(_checked(each))
    if sum(file.size_bytes for file in files) > MOST_BYTES:
        raise _refused(f"more than {MOST_BYTES / 1e9:.0f} GB")
    names = {file.name.lower() for file in files}  # two that differ in case alone are one on some disks
    parents = {str(parent).lower() for file in files for parent in PurePosixPath(file.name).parents}
    if len(names) < len(files) or names & parents:
        raise _refused("two files of one name, or a file that is also a folder")
    return files


def inside(folder: Path, name: object) -> Path:
    """What lies below a folder under a name that came from elsewhere; RunDamaged where that would leave it."""
    if not isinstance(name, str) or not _is_inside(name):
        raise _refused(f"the name {name!r}")
    return folder / name


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in _blocks(file):
            digest.update(block)
    return digest.hexdigest()


def _checked(content: Mapping[str, Any]) -> Listed:
    try:
        name, size, digest = content["name"], content["size_bytes"], content["sha256"]
    except (KeyError, TypeError) as error:
        raise _refused("no name, size or hash") from error
    if not isinstance(name, str) or not _is_inside(name):
        raise _refused(f"the name {name!r}")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise _refused(f"the size {size!r} of {name!r}")
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise _refused(f"the hash {digest!r} of {name!r}")
    return Listed(name, size, digest)


def _is_inside(name: str) -> bool:
    """Whether a name is the plain, relative path of a file below the folder, on any system."""
    parts = name.split("/")
    plain = all(part not in ("", ".", "..") and len(part.encode("utf-8", "replace")) <= _MOST_NAME for part in parts)
    return plain and name.isprintable() and not set(name) & set('\\:*?"<>|')


def _blocks(file: Any) -> Iterator[bytes]:
    while block := file.read(_BLOCK):
        yield block


def _refused(what: str) -> RunDamaged:
    return RunDamaged(f"the device offers a run folder with {what}", "nothing of it was written; look at the device")
