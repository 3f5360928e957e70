"""The files of downloaded data sets on this machine: which there must be, where they lie, whether they are whole.

The folder is $STEPSCOPE_DATA, else stepscope/ in $XDG_CACHE_HOME, else ~/.cache/stepscope. Reading needs no download
library, so that a cache copied from another machine is enough.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import DataUnavailable

_BLOCK = 1 << 20


@dataclass(frozen=True)
class RemoteFile:
    """One file of a data set: its name here, where it can be had, `algorithm:hexdigest`, bytes where known."""

    name: str
    urls: tuple[str, ...]
    checksum: str
    size: int | None = None


@dataclass(frozen=True)
class DataSet:
    """A data set that can be downloaded; `source` says who recorded the checksums."""

    name: str
    summary: str
    licence: str
    files: tuple[RemoteFile, ...]
    source: str


def folder() -> Path:
    """The folder that all data sets are kept in."""
    chosen = os.environ.get("STEPSCOPE_DATA")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "stepscope"


def path(dataset: DataSet, file: RemoteFile) -> Path:
    """Return the path of a file of a data set, there or not."""
    return folder() / dataset.name / file.name


def present(dataset: DataSet) -> bool:
    """Return whether all files are there, by name: their content is checked when fetched and by `verify`."""
    return all(path(dataset, file).is_file() for file in dataset.files)


def read(dataset: DataSet, name: str) -> bytes:
    """The content of one file, checked against its checksum."""
    file = file_of(dataset, name)
    where = path(dataset, file)
    try:
        content = where.read_bytes()
    except OSError as error:
        raise DataUnavailable(f"'{where}' cannot be read: {error.strerror}", _again(dataset)) from error
    algorithm, _, expected = file.checksum.partition(":")
    if hashlib.new(algorithm, content).hexdigest() != expected:
        raise DataUnavailable(f"'{where}' is not what was published: its {algorithm} differs", _again(dataset))
    return content


def verify(dataset: DataSet) -> dict[str, str]:
    """For every file "ok", "missing" or what is wrong with it."""
    return {file.name: _state(path(dataset, file), file.checksum) for file in dataset.files}


def digest_of(where: Path, algorithm: str) -> str:
    """The hex digest of a file that may be larger than memory."""
    digest = hashlib.new(algorithm)
    with where.open("rb") as opened:
        while block := opened.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def file_of(dataset: DataSet, name: str) -> RemoteFile:
    """The file of this name."""
    return next(file for file in dataset.files if file.name == name)


def _state(where: Path, checksum: str) -> str:
    if not where.is_file():
        return "missing"
    algorithm, _, expected = checksum.partition(":")
    try:
        found = digest_of(where, algorithm)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "ok" if found == expected else f"{algorithm} is {found}, expected {expected}"


def _again(dataset: DataSet) -> str:
    return f"stepscope data fetch {dataset.name}"
