"""Downloads: each mirror in turn, resumed where they broke off, kept only with the right checksum."""

from __future__ import annotations

import contextlib
import errno
import http.client
import importlib
import importlib.util
import logging
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.errors import DataUnavailable, MissingDependency
from stepscope.workloads.data import cache
from stepscope.workloads.data.cache import DataSet, RemoteFile

Progress = Callable[[str, int, int | None], None]  # file, bytes so far, bytes in all where known
_BLOCK = 1 << 16
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
    where = cache.path(dataset, file)
    failures = []
    for url in file.urls:
        try:
            return _from_one(url, where, file, progress)
        except ValueError:  # pooch's word for a wrong checksum; it has removed what it downloaded
            failures.append(f"{url}: the checksum is wrong: the file there has changed, or is not the file any more")
        except _BROKEN as error:
            if getattr(error, "errno", None) in _NO_ROOM:
                raise _no_room(where, error) from error
            failures.append(f"{url}: {_said(error)}")
    raise DataUnavailable(
        f"'{file.name}' of {dataset.name} could not be downloaded\n  " + "\n  ".join(failures),
        f"with no network, copy the file from another machine to {where}, then: stepscope data verify {dataset.name}",
    )


def _from_one(url: str, where: Path, file: RemoteFile, progress: Progress) -> Path:
    pooch = importlib.import_module("pooch")
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # it tells on stderr what our own progress shows
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        kept = pooch.retrieve(
            url,
            known_hash=file.checksum,
            fname=where.name,
            path=where.parent,
            downloader=_resuming(where.with_name(where.name + ".part"), file, progress),
        )
    finally:
        logger.setLevel(level)
    return Path(kept)


def _resuming(part: Path, file: RemoteFile, progress: Progress) -> Callable[[str, str, Any], None]:
    """A downloader for pooch that goes on with what an earlier try has left in `part`."""

    def download(url: str, output_file: str, _: Any) -> None:
        _continue(url, part, file, progress)
        shutil.move(part, output_file)

    return download


def _continue(url: str, part: Path, file: RemoteFile, progress: Progress) -> None:
    """Append to `part` what is missing of the file at `url`; a server that knows no ranges starts over."""
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "stepscope", "Range": f"bytes={done}-"})
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        with contextlib.closing(error):
            if error.code == 416 and done:  # nothing is missing; the checksum decides whether that is so
                return
            raise
    with answer, part.open("ab" if answer.status == 206 else "wb") as opened:
        done = done if answer.status == 206 else 0
        left = answer.headers.get("Content-Length")
        size = done + int(left) if left else file.size
        while block := answer.read(_BLOCK):
            opened.write(block)
            done += len(block)
            progress(file.name, done, size)
        if left and done < int(size or 0):
            raise ConnectionError(f"the connection broke off after {done} of {size} bytes")


def _said(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return f"no connection ({error.reason})"
    return str(error) or type(error).__name__


def _no_room(where: Path, error: Exception) -> DataUnavailable:
    return DataUnavailable(
        f"'{where}' cannot be written: {error}", "free some room there, or choose another folder: STEPSCOPE_DATA=/path"
    )
