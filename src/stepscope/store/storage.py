"""A store: reading and writing below one address through fsspec, each operation with a time limit."""

from __future__ import annotations

import contextlib
import importlib
import os
import posixpath
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from stepscope.errors import MissingDependency, StoreError, UsageError
from stepscope.files import atomic_write, sync

CHUNK_BYTES = 8 << 20
TIMEOUT_S = 30.0
PART = ".part"  # ends the hidden name of a file that is being written
_LOCAL = {"file", "local"}
T = TypeVar("T")


class RefusedFile(StoreError):
    """Error: a file in a store that is no plain one, too large, or says what cannot be; the store itself answers."""


class StoreUnavailable(StoreError):
    """Error: a store that does not answer, or that the system refuses: there is no use in asking it again."""


@dataclass(frozen=True)
class Store:
    """A file system of fsspec and the folder of the store in it; every wait ends after `timeout_s`."""

    fs: Any
    root: str
    address: str
    timeout_s: float = TIMEOUT_S
    made: set[str] = field(default_factory=set, compare=False)  # folders that are known to be there

    @property
    def is_local(self) -> bool:
        """Return whether it is a folder of this machine."""
        names = self.fs.protocol if isinstance(self.fs.protocol, (tuple, list)) else (self.fs.protocol,)
        return bool(_LOCAL & set(names))

    def full_path(self, path: str) -> str:
        """The full path of a path within the store."""
        return posixpath.join(self.root, path)

    def read(self, path: str, most_bytes: int) -> bytes:
        """The content of a small file; FileNotFoundError where there is none, StoreError above `most_bytes`."""
        data = bytes(self._call_with_timeout(lambda: self._content(path, most_bytes + 1), path))
        if len(data) > most_bytes:
            raise RefusedFile(f"'{path}' in {self.address} is larger than {most_bytes:,} bytes: it is not read")
        return data

    def _content(self, path: str, most_bytes: int) -> Any:
        if not self.is_local:
            return self.fs.cat_file(self.full_path(path), start=0, end=most_bytes)
        file_path = Path(self.full_path(path))
        if not stat.S_ISREG(file_path.stat().st_mode):  # a pipe would be waited for
            raise RefusedFile(f"'{path}' in {self.address} is not a regular file: it is not read")
        with file_path.open("rb") as file:
            return file.read(most_bytes)

    def chunks(self, path: str, size: int) -> Iterator[bytes]:
        """The content of a file in pieces, never more than `size` bytes and one."""
        file = self._call_with_timeout(lambda: self.fs.open(self.full_path(path), "rb"), path)
        remaining = size + 1
        try:
            while remaining > 0:
                most = min(CHUNK_BYTES, remaining)
                piece = self._call_with_timeout(partial(file.read, most), path)
                if not piece:
                    return
                remaining -= len(piece)
                yield bytes(piece)
        finally:
            file.close()

    def write(self, path: str, data: bytes) -> None:
        """Write a small file; a folder of this machine gets it by renaming, an object store as one object."""
        self._make_parent(path)
        if not self.is_local:
            self._call_with_timeout(lambda: self.fs.pipe_file(self.full_path(path), data), path)
            return
        self._call_with_timeout(lambda: _replace(Path(self.full_path(path)), data), path)

    def send(self, path: str, pieces: Iterator[bytes]) -> None:
        """Write a file from pieces; a folder of this machine gets it by renaming, an object store as one object."""
        self._make_parent(path)
        folder, name = posixpath.split(self.full_path(path))
        part = f".{name}.{time.monotonic_ns():x}.{os.getpid()}{PART}" if self.is_local else name
        file = self._call_with_timeout(lambda: self.fs.open(posixpath.join(folder, part), "wb"), path)
        try:
            for piece in pieces:
                self._call_with_timeout(lambda: file.write(piece), path)  # noqa: B023
            self._call_with_timeout(file.close, path)
            if self.is_local:
                self._call_with_timeout(lambda: _put_in_place(Path(folder, part), Path(folder, name)), path)
        except BaseException:
            _discard_partial_file(file)
            if self.is_local:
                with contextlib.suppress(OSError, StoreError):
                    self._call_with_timeout(Path(folder, part).unlink, path)
            raise

    def list_folder(self, folder: str, prefix: str = "") -> list[str]:
        """Names of what lies in a folder and begins so, without links; empty where there is none."""
        try:
            names = self._call_with_timeout(lambda: self._names(self.full_path(folder)), folder)
        except FileNotFoundError:
            return []
        return sorted(name for name in names if name.startswith(prefix))

    def _names(self, folder: str) -> list[str]:
        if self.is_local:
            with os.scandir(folder) as entries:
                return [entry.name for entry in entries if not entry.is_symlink()]
        return [posixpath.basename(str(name).rstrip("/")) for name in self.fs.ls(folder, detail=False, refresh=True)]

    def sizes(self, folder: str) -> dict[str, int]:
        """Size of every file below a folder by its path in that folder."""
        start = self.full_path(folder)
        try:
            files = self._files(folder)
        except FileNotFoundError:
            return {}
        cut = len(self.fs._strip_protocol(start)) + 1
        return {str(name)[cut:]: int(info.get("size") or 0) for name, info in files.items()}

    def age_s(self, folder: str) -> float | None:
        """Seconds since the youngest file below a folder was written; None where the store does not say."""
        try:
            files = self._files(folder)
        except FileNotFoundError:
            return None
        stamps = [_written_s(info) for info in files.values()]
        dated = [stamp for stamp in stamps if stamp is not None]
        return time.time() - max(dated) if dated and len(dated) == len(stamps) else None

    def remove(self, path: str, recursive: bool = False) -> None:
        """Remove a file or a folder; what is not there is as wanted."""
        prefix = f"{self.full_path(path)}/"
        self.made.difference_update([folder for folder in self.made if f"{folder}/".startswith(prefix)])
        try:
            self._call_with_timeout(lambda: self.fs.rm(self.full_path(path), recursive=recursive), path)
        except FileNotFoundError:
            return

    def _make_parent(self, path: str) -> None:
        parent = posixpath.dirname(self.full_path(path))
        if self.is_local or parent not in self.made:  # another process may have removed a folder since
            try:
                self._call_with_timeout(lambda: self.fs.makedirs(parent, exist_ok=True), path)
            except FileNotFoundError as error:  # a file stands where a folder should
                raise StoreUnavailable(
                    f"'{self.address}' is not a folder", "give a folder, or s3://bucket/runs"
                ) from error
            self.made.add(parent)

    def _files(self, folder: str) -> dict[str, dict[str, Any]]:
        start = self.full_path(folder)
        return self._call_with_timeout(
            lambda: _walk_files(start) if self.is_local else self.fs.find(start, detail=True), folder
        )  # fsspec follows links, also in a circle

    def _call_with_timeout(self, call: Callable[[], T], path: str) -> T:
        def ask() -> T:
            if self.is_local:
                self._refuse_links(path)
            return call()

        return call_with_timeout(self.timeout_s, ask, f"{self.address} ({path})")

    def _refuse_links(self, path: str) -> None:
        """Raise StoreError where a part of a path is a link: it could lead to any file of this user."""
        folder = Path(self.root)
        for part in path.split("/"):
            folder /= part
            if folder.is_symlink():
                raise RefusedFile(f"'{path}' in {self.address} is a link, which no push makes: it is not followed")


def open_store(address: str | Path, timeout_s: float = TIMEOUT_S) -> Store:
    """The store behind a folder or an address such as s3://bucket/runs; nothing is written yet."""
    if not timeout_s > 0:
        raise UsageError("the time limit of a store must be above 0 s", "for example --timeout 30")
    try:
        fsspec = importlib.import_module("fsspec.core")
    except ImportError as error:
        raise MissingDependency(
            "a store of runs needs fsspec, which is not installed", "pip install 'stepscope[store]'"
        ) from error
    text = str(address)
    try:
        fs, root = call_with_timeout(timeout_s, lambda: fsspec.url_to_fs(text), text)
    except ImportError as error:
        raise MissingDependency(
            f"the store '{text}' needs a library: {error}", "install the one that it names"
        ) from error
    except ValueError as error:
        raise UsageError(f"'{text}' is not a store address: {error}", "give a folder, or s3://bucket/runs") from error
    return Store(fs, str(root).rstrip("/") or "/", text, timeout_s)


def call_with_timeout(seconds: float, call: Callable[[], T], what: str) -> T:
    """The answer of a call; StoreError where it fails or does not come in time. FileNotFoundError passes.

    A thread of its own, since a dead network mount answers to no signal; it is left behind and ends with the process.
    """
    answers: list[T] = []
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            answers.append(call())
        except BaseException as error:  # it is raised in the thread that waits
            failures.append(error)

    thread = threading.Thread(target=ask, daemon=True, name="stepscope-store")
    thread.start()
    thread.join(min(seconds, threading.TIMEOUT_MAX))
    if answers:
        return answers[0]
    if not failures:
        raise StoreUnavailable(
            f"the store did not answer within {seconds:g} s: {what}", "check the network, or wait longer: --timeout 120"
        )
    if isinstance(failures[0], NotADirectoryError):
        raise FileNotFoundError(str(failures[0])) from failures[0]
    if isinstance(failures[0], (FileNotFoundError, ImportError, ValueError, StoreError)):
        raise failures[0]
    if not isinstance(failures[0], Exception):
        raise failures[0]
    complaint = getattr(failures[0], "strerror", None) or failures[0]
    raise StoreUnavailable(
        f"the store refused: {what}: {complaint}", "check address, credentials and space"
    ) from failures[0]


def _discard_partial_file(file: Any) -> None:
    """Give up a file that is half written: no object comes of it where the store can tell."""
    discard = getattr(file, "discard", None)
    if discard is not None and not getattr(file, "autocommit", False):
        discard()
    with contextlib.suppress(OSError):
        file.close()


def _written_s(info: dict[str, Any]) -> float | None:
    for name in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = info.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, datetime):
            return value.timestamp()
    return None


def refuse_unreadable(error: OSError) -> None:
    """Raise what a walk would pass over: a folder that cannot be read is not empty."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _walk_files(start: str) -> dict[str, dict[str, Any]]:
    files: dict[str, dict[str, Any]] = {}
    for parent, folders, names in os.walk(start, onerror=refuse_unreadable):
        for path in (posixpath.join(parent, name) for name in (*names, *folders)):
            about = os.lstat(path)
            if not stat.S_ISDIR(about.st_mode):
                files[path] = {"size": about.st_size, "mtime": about.st_mtime}
    return files


def _put_in_place(part: Path, path: Path) -> None:
    sync(part)
    part.replace(path)


def _replace(path: Path, data: bytes) -> None:
    with atomic_write(path, durable=True) as part:
        part.write_bytes(data)
