"""New whole rows of a file that another process appends to; never more of it than is needed."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FIRST_LOOK_BYTES = 65_536  # of a run that has gone on for long, only its end is of interest
_MOST_BYTES = 1_048_576  # a look


class RowTail:
    """Rows of one struct; the file may come later, and once open it is read even when its name is gone."""

    def __init__(self, path: Path, row: struct.Struct) -> None:
        self._path, self._row = path, row
        self._file: int | None = None
        self._at = 0

    @property
    def opened(self) -> bool:
        return self._file is not None

    def new(self) -> Iterator[tuple[Any, ...]]:
        """The rows since the last call; of a long file that is seen first, those at its end."""
        if not self._open():
            return iter(())
        assert self._file is not None
        size, row = os.fstat(self._file).st_size, self._row.size
        most = _MOST_BYTES if self._at else _FIRST_LOOK_BYTES
        end = size - size % row
        begin = max(self._at, end - most // row * row)
        if end <= begin:
            return iter(())
        data = os.pread(self._file, end - begin, begin)
        self._at = begin + len(data) - len(data) % row
        return self._row.iter_unpack(data[: len(data) - len(data) % row])

    def first(self) -> tuple[Any, ...] | None:
        """The first row of all."""
        if not self._open():
            return None
        assert self._file is not None
        data = os.pread(self._file, self._row.size, 0)
        return self._row.unpack(data) if len(data) == self._row.size else None

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> bool:
        if self._file is None:
            try:
                self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return False
        return True


class LineTail:
    """New whole lines of a text file, such as events.jsonl."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def new(self) -> list[str]:
        """The lines since the last call; a line that is still being written waits for the next."""
        try:
            if self._path.stat().st_size <= self._at:
                return []
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read(_MOST_BYTES)
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        return whole.decode("utf-8", errors="replace").splitlines()
