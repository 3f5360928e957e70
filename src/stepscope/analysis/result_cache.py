"""Results that are found once: in memory for a run that is open, beside it for the next reader of the same files.

The latter lie in `.cache/` of the run folder, which this module alone writes: no part of the contract, hidden, never
sent to a store, and free to be deleted. A run that goes on keeps its results in memory alone.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
from collections.abc import Callable
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import polars as pl

from stepscope import __version__
from stepscope.files import replaced
from stepscope.runfolder import RunReader

VERSION = 7  # of what finds the results: those of another are not read
_FOLDER = ".cache"
_LATE_KEYS = ("status", "reason", "result", "overhead")  # of run.json: stated at the end, and nothing to these results
_log = logging.getLogger(__name__)
T = TypeVar("T")
P = ParamSpec("P")


def once_a_run(find: Callable[Concatenate[RunReader, P], T]) -> Callable[Concatenate[RunReader, P], T]:
    """Return the function so that it finds its result once for a run: a report asks for the same thing many times.

    The result is shared, and must neither be changed nor hold the run.
    """
    shared: WeakKeyDictionary[RunReader, dict[tuple[Any, ...], T]] = WeakKeyDictionary()

    @wraps(find)
    def found(run: RunReader, /, *given: P.args, **named: P.kwargs) -> T:
        known, arguments = shared.setdefault(run, {}), (*given, *named.items())
        if arguments not in known:
            known[arguments] = find(run, *given, **named)
        return known[arguments]

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
            kept = self._read(name, "parquet", pl.read_parquet)
            self._tables[name] = make() if kept is None else kept
            if kept is None:
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
            return parse(path.read_bytes()) if path.exists() else None
        except (OSError, ValueError, LookupError, TypeError, AttributeError, pl.exceptions.PolarsError) as error:
            _log.debug("%s is not used: %s", path, error)
            return None

    def _write(self, name: str, form: str, data: bytes) -> None:
        """Write the file as a whole in the place of those of other keys."""
        if self._run.status == "running":
            return
        path = self._path(name, form)
        try:
            path.parent.mkdir(exist_ok=True)
            with replaced(path) as part:
                part.write_bytes(data)
            for older in path.parent.glob(f"{name}.*.{form}"):
                if older != path:
                    older.unlink(missing_ok=True)
        except OSError as error:
            _log.debug("%s cannot be written: %s", path, error)

    def _path(self, name: str, form: str) -> Path:
        return self._run.path / _FOLDER / f"{name}.{self.key}.{form}"
