"""The files of downloaded data sets on this machine: which there must be, where they lie, whether they are whole.

The folder is $STEPSCOPE_DATA, else stepscope/ in $XDG_CACHE_HOME, else ~/.cache/stepscope; without a home folder
nothing is present. Reading needs no download library, so that a cache copied from another machine is enough.

Downloads: each mirror in turn, resumed where they broke off, kept only with the right checksum.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import http.client
import importlib
import importlib.util
import logging
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.errors import DataUnavailable, MissingDependency
from stepscope.files import user_cache

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


def data_root() -> Path:
    """The folder that all data sets are kept in; DataUnavailable where there is no home to have it."""
    chosen = os.environ.get("STEPSCOPE_DATA")
    try:
        return Path(chosen).expanduser() if chosen else user_cache()
    except RuntimeError as error:
        raise DataUnavailable(f"there is no folder for data: {error}", "name one: STEPSCOPE_DATA=/path") from error


def path(dataset: DataSet, file: RemoteFile) -> Path:
    """Return the path of a file of a data set, there or not."""
    return data_root() / dataset.name / file.name


def is_present(dataset: DataSet) -> bool:
    """Return whether all files are there, by name: their content is checked when fetched and by `verify`."""
    try:
        return all(path(dataset, file).is_file() for file in dataset.files)
    except DataUnavailable:
        return False


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
        digest = digest_of(where, algorithm)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "ok" if digest == expected else f"{algorithm} is {digest}, expected {expected}"


def _again(dataset: DataSet) -> str:
    return f"stepscope data fetch {dataset.name}"


Progress = Callable[[str, int, int | None], None]  # file, bytes so far, bytes in all where known
_FETCHING_BLOCK = 1 << 16
_TIMEOUT_S = 30.0  # without a byte, then the next mirror is tried
_BROKEN = (OSError, http.client.HTTPException)  # urllib's own errors are OSErrors
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


def fetch(dataset: DataSet, progress: Progress = lambda name, done, size: None) -> list[Path]:
    """Every file of a data set, whole and checked; files that are already there are checked and kept."""
    if importlib.util.find_spec("pooch") is None:
        hint = "pip install 'stepscope[data]'"
        raise MissingDependency("downloading data needs pooch, which is not installed", hint)
    return [_fetch_file(dataset, file, progress) for file in dataset.files]


def _fetch_file(dataset: DataSet, file: RemoteFile, progress: Progress) -> Path:
    where = path(dataset, file)
    failures = []
    for url in file.urls:
        try:
            where.parent.mkdir(parents=True, exist_ok=True)
            with _alone_in(where.parent):
                return _resume_or_start_anew(url, where, file, progress)
        except ValueError:  # pooch's word for a wrong checksum; it has removed what it downloaded
            failures.append(f"{url}: the checksum is wrong: the file there has changed, or is not the file any more")
        except _BROKEN as error:
            if getattr(error, "errno", None) in _NO_ROOM:
                raise _no_room(where, error) from error
            failures.append(f"{url}: {_describe_error(error)}")
    raise DataUnavailable(
        f"'{file.name}' of {dataset.name} could not be downloaded\n  " + "\n  ".join(failures),
        f"with no network, copy the file from another machine to {where}, then: stepscope data verify {dataset.name}",
    )


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process fetches into this folder: two would write one part, and the second finds the file."""
    number = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a disk without locks
            fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def _resume_or_start_anew(url: str, where: Path, file: RemoteFile, progress: Progress) -> Path:
    """Return the file, begun anew where what an earlier try has left does not belong to it."""
    resumed = _partial_file(where).exists()
    try:
        return _fetch_from_url(url, where, file, progress)
    except ValueError:
        if not resumed:
            raise
        return _fetch_from_url(url, where, file, progress)


def _partial_file(where: Path) -> Path:
    return where.with_name(where.name + ".part")


def _fetch_from_url(url: str, where: Path, file: RemoteFile, progress: Progress) -> Path:
    pooch = importlib.import_module("pooch")
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # it tells on stderr what our own progress shows
    try:
        fetched_path = pooch.retrieve(
            url,
            known_hash=file.checksum,
            fname=where.name,
            path=where.parent,
            downloader=_resuming_downloader(_partial_file(where), file, progress),
        )
    finally:
        logger.setLevel(level)
    return Path(fetched_path)


def _resuming_downloader(part: Path, file: RemoteFile, progress: Progress) -> Callable[[str, str, Any], None]:
    """A downloader for pooch that goes on with what an earlier try has left in `part`."""

    def download(url: str, output_file: str, _: Any) -> None:
        _append_missing_bytes(url, part, file, progress)
        shutil.move(part, output_file)

    return download


def _append_missing_bytes(url: str, part: Path, file: RemoteFile, progress: Progress) -> None:
    """Append to `part` what is missing of the file at `url`; a server that knows no ranges starts over."""
    present_bytes = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "stepscope", "Range": f"bytes={present_bytes}-"})
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        with contextlib.closing(error):
            if error.code == 416 and present_bytes:  # nothing is missing; the checksum decides whether that is so
                return
            raise
    with answer, part.open("ab" if answer.status == 206 else "wb") as opened:
        present_bytes = present_bytes if answer.status == 206 else 0
        missing_bytes = answer.headers.get("Content-Length")
        size = present_bytes + int(missing_bytes) if missing_bytes else file.size
        while block := answer.read(_FETCHING_BLOCK):
            opened.write(block)
            present_bytes += len(block)
            progress(file.name, present_bytes, size)
        if missing_bytes and present_bytes < int(size or 0):
            raise ConnectionError(f"the connection broke off after {present_bytes} of {size} bytes")


def _describe_error(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return f"no connection ({error.reason})"
    return str(error) or type(error).__name__


def _no_room(where: Path, error: Exception) -> DataUnavailable:
    return DataUnavailable(
        f"'{where}' cannot be written: {error}", "free some room there, or choose another folder: STEPSCOPE_DATA=/path"
    )
