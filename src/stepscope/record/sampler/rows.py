"""The sampler's files: rows of one sensor and lines of events, appended, and sound after a full disk or a crash."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepscope.clock import Clock, monotonic_ns
from stepscope.privacy import cleaned

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class RowFile:
    """samples/<sensor>.rows: two time stamps (i64) and one float64 a channel, little endian; NaN is "not read"."""

    def __init__(self, path: Path, channels: int) -> None:
        row = struct.Struct(f"<qq{channels}d")
        self.pack = row.pack
        self.row_bytes = row.size
        self.waiting = bytearray()
        self._path = path
        self._file: int | None = None
        with contextlib.suppress(OSError):  # a full disk: the next flush says so, or opens it
            self._file = os.open(path, _APPEND, 0o644)

    def flush(self) -> None:
        """Bring the waiting rows to the disk. Raises OSError: they are lost, and the file still ends on a whole row."""
        data, self.waiting = self.waiting, bytearray()
        if self._file is None:
            self._file = os.open(self._path, _APPEND, 0o644)
        try:
            while data:
                del data[: os.write(self._file, data)]
        except OSError:
            size = os.fstat(self._file).st_size
            os.ftruncate(self._file, size - size % self.row_bytes)
            raise

    def close(self) -> None:
        """Close the file; flush first."""
        if self._file is not None:
            os.close(self._file)


class EventLog:
    """events.jsonl, shared with the session: one write a line; lines that the disk refuses wait for a better time."""

    def __init__(self, path: Path, clock: Clock = monotonic_ns, keep: int = 1000) -> None:
        self._path = path
        self._clock = clock
        self._waiting: deque[bytes] = deque(maxlen=keep)
        self._one_at_a_time = threading.Lock()  # sensors with a thread of their own write events too

    def write(self, kind: str, message: str, **fields: Any) -> None:
        """Append one event of the sampler."""
        event = {"t_ns": self._clock(), "source": "sampler", "kind": kind, "message": message, **fields}
        self._waiting.append(json.dumps(cleaned(event)).encode() + b"\n")
        self.flush()

    def flush(self) -> bool:
        """Write the lines that wait; False where the disk still refuses."""
        if not self._waiting:
            return True
        with self._one_at_a_time:
            return self._write_waiting()

    def _write_waiting(self) -> bool:
        try:
            file = os.open(self._path, _APPEND, 0o644)
        except OSError:
            return False
        try:
            while self._waiting:
                line = self._waiting[0]
                written = os.write(file, line)
                if written < len(line) and os.write(file, line[written:]) < len(line) - written:
                    os.write(file, b"\n")  # cut off: ends the broken line, so that the next one can be read
                    return False
                self._waiting.popleft()
        except OSError:
            return False
        finally:
            os.close(file)
        return True


def nothing_read(channels: int) -> Sequence[float]:
    """The values of a row in which no channel was read."""
    return [float("nan")] * channels
