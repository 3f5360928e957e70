"""The sampler's files: rows of one sensor and lines of events, appended, and sound after a full disk or a crash.

Rows go on in another part each hour; what was closed is packed by a process beside the sampling one.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import stepscope
from stepscope.clock import Clock, monotonic_ns
from stepscope.files import add_checksum
from stepscope.part_names import next_number, rows_file_name
from stepscope.privacy import clean_and_redact

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
PART_NS = 3_600_000_000_000  # a part of samples is closed after an hour
PART_BYTES = 256_000_000  # or when all sensors together have written so much


class CurrentPart:
    """The part of the samples that is being written: all sensors go on to the next one together.

    most_bytes: of the rows of a part, all sensors together.
    """

    def __init__(self, folder: Path, clock: Clock = monotonic_ns, most_bytes: int = PART_BYTES) -> None:
        names: list[str] = []
        with contextlib.suppress(OSError):
            names = [path.name for path in folder.iterdir()]
        self.number = next_number(names)
        self.bytes = 0  # that were written of this part
        self._clock, self._most_bytes = clock, most_bytes
        self._due_ns = clock() + PART_NS

    def advance_if_full(self) -> bool:
        """Close the part where it is full; return whether it was."""
        now_ns = self._clock()
        if now_ns < self._due_ns and self.bytes < self._most_bytes:
            return False
        self.number, self.bytes, self._due_ns = self.number + 1, 0, now_ns + PART_NS
        return True


class RowFile:
    """samples/<sensor>.rows: two time stamps (i64) and one float64 a channel, little endian; NaN is "not read".

    It goes on in another file with each part of `turn`.
    """

    def __init__(self, path: Path, channels: int, turn: CurrentPart | None = None) -> None:
        row = struct.Struct(f"<qq{channels}d")
        self.pack = row.pack
        self.row_bytes = row.size
        self.waiting = bytearray()
        self._folder, self._stem, self._turn = path.parent, path.name.removesuffix(".rows"), turn
        self._file: int | None = None
        self._open()

    def flush(self) -> None:
        """Bring the waiting rows to the disk. Raises OSError: they are lost, and the file still ends on a whole row."""
        data, self.waiting = self.waiting, bytearray()
        if self._turn is not None and self._turn.number != self._number:
            self.close()
            self._open()
        if self._file is None:
            self._file = os.open(self._path, _APPEND, 0o644)
        if self._turn is not None:
            self._turn.bytes += len(data)
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
            self._file = None

    def _open(self) -> None:
        """Open the file of the present part; where the disk is full, the next flush says so, or opens it."""
        self._number = 0 if self._turn is None else self._turn.number
        self._path = self._folder / rows_file_name(self._stem, self._number)
        with contextlib.suppress(OSError):
            self._file = os.open(self._path, _APPEND, 0o644)


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
        self._waiting.append(add_checksum(json.dumps(clean_and_redact(event))).encode() + b"\n")
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


def nan_values(channels: int) -> Sequence[float]:
    """The values of a row in which no channel was read."""
    return [float("nan")] * channels


AFTER_NS = 5_000_000_000  # the streams have gone on to the next part by then
_OF_ROOM = 8  # the open parts may take so much of what the run may take on the disk
_LEAST_BYTES = 1_000_000


class Process(Protocol):
    """The part of subprocess.Popen that is needed."""

    def poll(self) -> int | None: ...
    def kill(self) -> None: ...
    def wait(self) -> int: ...


def part_bytes(max_disk: int | None) -> int:
    """Return how much the open parts of the samples may hold, bytes."""
    return PART_BYTES if max_disk is None else min(PART_BYTES, max(max_disk // _OF_ROOM, _LEAST_BYTES))


class PartPacking:
    """Starts a packing process when a part was closed: one of the chores of the sampling process."""

    def __init__(
        self,
        run: Path,
        turn: CurrentPart,
        max_disk: int | None = None,
        clock: Clock = monotonic_ns,
        start: Callable[[Sequence[str]], Process] | None = None,
    ) -> None:
        self._command = [sys.executable, "-m", "stepscope.runfolder.disk_limit", str(run.absolute())]
        self._command += [] if max_disk is None else ["--max-disk", str(max_disk)]
        self._turn, self._clock, self._start = turn, clock, _started if start is None else start
        self._process: Process | None = None
        self._due_ns: int | None = None

    def start_packing_if_due(self) -> None:
        """Close the part that is full, and have closed ones packed; one process at a time."""
        if self._process is not None and self._process.poll() is not None:
            self._process = None
        if self._turn.advance_if_full():
            self._due_ns = self._clock() + AFTER_NS
        if self._due_ns is not None and self._clock() >= self._due_ns and self._process is None:
            self._due_ns = None
            with contextlib.suppress(OSError):  # no memory for it: the next part, or the end of the run
                self._process = self._start(self._command)

    def stop(self) -> None:
        """Kill the packing process; its unfinished work has no effect, and is done at the end of the run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _started(command: Sequence[str]) -> Process:
    nothing = subprocess.DEVNULL
    folder = Path(stepscope.__file__).parent.parent  # as for the sampling process: no module of the user's comes first
    environment = {
        **os.environ,
        **dict.fromkeys(("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    }
    return subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, cwd=folder, env=environment)
