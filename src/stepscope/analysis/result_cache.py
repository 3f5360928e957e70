"""Results that are found once: in memory for a run that is open, beside it for the next reader of the same files.

The latter lie in `.cache/` of the run folder, which this module alone writes: no part of the contract, hidden, never
sent to a store, and free to be deleted. A run that goes on keeps its results in memory alone. Each begins with a seal
(HMAC-SHA256 by a key of this user): a run folder comes from anywhere, and what others put there is not read.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import logging
import os
import secrets
from collections.abc import Callable
from functools import cache, cached_property, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import polars as pl

from stepscope import __version__
from stepscope.files import atomic_write, user_cache
from stepscope.runfolder import RunReader
from stepscope.runfolder.validation import read_regular

VERSION = 14  # of what finds the results: those of another are not read
_FOLDER = ".cache"
_SEAL_BYTES = 32
_MOST_BYTES = 1 << 28
_LATE_KEYS = ("status", "reason", "result", "overhead")  # of run.json: stated at the end, and nothing to these results
_log = logging.getLogger(__name__)
T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R", bound=RunReader)


def cached_per_run(find: Callable[Concatenate[R, P], T]) -> Callable[Concatenate[R, P], T]:
    """Return the function so that it finds its result once for a run: a report asks for the same thing many times.

    The result is shared, and must neither be changed nor hold the run.
    """
    shared: WeakKeyDictionary[R, dict[tuple[Any, ...], T]] = WeakKeyDictionary()

    @wraps(find)
    def found(run: R, /, *positional: P.args, **named: P.kwargs) -> T:
        results, arguments = shared.setdefault(run, {}), (*positional, *named.items())
        if arguments not in results:
            results[arguments] = find(run, *positional, **named)
        return results[arguments]

    return found


class ResultCache:
    """Tables and small results of one run; what cannot be read is found anew, what cannot be written costs time."""

    def __init__(self, run: RunReader) -> None:
        self._run = run
        self._tables: dict[str, pl.DataFrame] = {}

    @cached_property
    def key(self) -> str:
        """Hash of what results are found from: this program, run.json, and name, size and time of each other file."""
        run = self._run
        stated = {name: value for name, value in run.meta.items() if name not in _LATE_KEYS}
        parts = [sorted(part.files.items()) for part in run.parts.values() if isinstance(part, RunReader)]
        content = json.dumps([VERSION, __version__, stated, sorted(run.files.items()), parts], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def table(self, name: str, make: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        """Return the table of this name, made where it has not been yet."""
        if name not in self._tables:
            stored = self._read(name, "parquet", pl.read_parquet)
            self._tables[name] = make() if stored is None else stored
            if stored is None:
                buffer = io.BytesIO()
                self._tables[name].write_parquet(buffer)
                self._write(name, "parquet", buffer.getvalue())
        return self._tables[name]

    def load(self, name: str, parse: Callable[[Any], T]) -> T | None:
        """Return what `store` was given under this name, parsed; None where there is none that can be read."""
        return self._read(name, "json", lambda data: parse(json.loads(data)))

    def store(self, name: str, content: Any) -> None:
        """Keep what can be written as JSON under this name."""
        self._write(name, "json", json.dumps(content).encode())

    def _read(self, name: str, form: str, parse: Callable[[bytes], T]) -> T | None:
        path = self._path(name, form)
        try:
            return parse(self._opened(path)) if path.exists() else None
        except (
            OSError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            pl.exceptions.PolarsError,
            pl.exceptions.PanicException,
        ) as error:
            _log.debug("%s is not used: %s", path, error)
            return None

    def _write(self, name: str, form: str, data: bytes) -> None:
        """Write the file as a whole in place of those of other keys."""
        key = _user_key()
        if self._run.status == "running" or key is None:
            return
        path = self._path(name, form)
        try:
            path.parent.mkdir(exist_ok=True)
            if path.parent.is_symlink():
                raise OSError(f"'{path.parent}' leads elsewhere")
            with atomic_write(path) as part:
                part.write_bytes(_seal(key, path.name, data) + data)
            for older in path.parent.glob(f"{name}.*.{form}"):
                if older != path:
                    older.unlink(missing_ok=True)
        except OSError as error:
            _log.debug("%s cannot be written: %s", path, error)

    def _opened(self, path: Path) -> bytes:
        """Return what was written under this name by this user; ValueError where it is somebody else's."""
        content, key = read_regular(path, _MOST_BYTES), _user_key()
        seal, data = content[:_SEAL_BYTES], content[_SEAL_BYTES:]
        if key is None or not hmac.compare_digest(seal, _seal(key, path.name, data)):
            raise ValueError("it has no seal of this user")
        return data

    def _path(self, name: str, form: str) -> Path:
        return self._run.path / _FOLDER / f"{name}.{self.key}.{form}"


def _seal(key: bytes, name: str, data: bytes) -> bytes:
    """The name holds the key of the files that the result was found from: none is taken for that of another run."""
    return hmac.digest(key, name.encode() + b"\0" + data, "sha256")


def user_seal(name: str, data: bytes) -> str | None:
    """Return what nobody but this user can state of these bytes; None where there is no place for a key."""
    key = _user_key()
    return None if key is None else _seal(key, name, data).hex()


@cache
def _user_key() -> bytes | None:
    """Return the secret of this user, made at the first need; None where there is no place for it."""
    try:
        path = user_cache() / "results.key"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (path.is_file() and path.stat().st_size == _SEAL_BYTES):
            _make_key(path)
        key = read_regular(path, _SEAL_BYTES)
    except (OSError, RuntimeError) as error:
        _log.debug("results are kept in memory alone: %s", error)
        return None
    return key if len(key) == _SEAL_BYTES else None


def _make_key(path: Path) -> None:
    """Write a key as a whole: of processes that begin at once the first one's stays, and one that is cut off goes."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(secrets.token_bytes(_SEAL_BYTES))
        if path.exists():
            part.replace(path)
        else:
            _link_or_replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _link_or_replace(part: Path, path: Path) -> None:
    try:
        os.link(part, path)
    except FileExistsError:
        pass  # another process was quicker
    except OSError:  # a disk without links
        part.replace(path)
