"""Closed parts become Parquet in a process of low priority, which also keeps the run within its room on the disk."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import stepscope
from stepscope.clock import Clock, monotonic_ns
from stepscope.record.sampler.rows import PART_BYTES, PartTurn

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
    """Starts the process when a part was closed; `look` is one of the chores of the sampling process."""

    def __init__(
        self,
        run: Path,
        turn: PartTurn,
        max_disk: int | None = None,
        clock: Clock = monotonic_ns,
        start: Callable[[Sequence[str]], Process] | None = None,
    ) -> None:
        self._command = [sys.executable, "-m", "stepscope.runfolder.keep", str(run.absolute())]
        self._command += [] if max_disk is None else ["--max-disk", str(max_disk)]
        self._turn, self._clock, self._start = turn, clock, _started if start is None else start
        self._process: Process | None = None
        self._due_ns: int | None = None

    def look(self) -> None:
        """Close the part that is full, and have closed ones packed; one process at a time."""
        if self._process is not None and self._process.poll() is not None:
            self._process = None
        if self._turn.look():
            self._due_ns = self._clock() + AFTER_NS
        if self._due_ns is not None and self._clock() >= self._due_ns and self._process is None:
            self._due_ns = None
            with contextlib.suppress(OSError):  # no memory for it: the next part, or the end of the run
                self._process = self._start(self._command)

    def stop(self) -> None:
        """End it where it runs: whatever it had begun is as it was, and the end of the run goes on with it."""
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
