"""Other load: how many cores were kept busy by others than this training while a block of steps ran."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from pathlib import Path

from stepscope.clock import monotonic_ns

_PROC = Path("/proc")
_BUSY = (0, 1, 2, 5, 6, 7)  # of the times of all cores: user, nice, system, interrupts, stolen by the host
_GROUP, _TIMES = 2, slice(11, 15)  # of /proc/PID/stat behind the name: process group; CPU time, of ended children too
_MORE_CORES = 0.3  # than in quiet blocks
_FEWEST = 6  # blocks, before which nothing tells what is quiet


class OtherLoad:
    """Watch over one block: `begin`, then `cores`. The training are all processes of this one's group."""

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc
        self._began: tuple[int, float] | None = None

    def begin(self) -> None:
        """Begin a block."""
        self._began = self._read()

    def busy_cores_of_others(self) -> float | None:
        """Return how many cores others kept busy since then, on average; None where the kernel does not tell."""
        began, ended = self._began, self._read()
        if began is None or ended is None or ended[0] <= began[0]:
            return None
        return max(0.0, (ended[1] - began[1]) / ((ended[0] - began[0]) / 1e9))

    def _read(self) -> tuple[int, float] | None:
        """The time, ns, and the CPU time of others so far, s."""
        try:
            fields = (self._proc / "stat").read_bytes().split(b"\n", 1)[0].split()[1:]
            busy = sum(int(fields[place]) for place in _BUSY)
            return monotonic_ns(), (busy - sum(self._own_ticks())) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            return None

    def _own_ticks(self) -> Iterator[int]:
        group = str(os.getpgrp()).encode()
        for process in self._proc.iterdir():
            if not process.name.isdigit():
                continue
            try:
                fields = (process / "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:  # it has ended
                continue
            if fields[_GROUP] == group:
                yield sum(map(int, fields[_TIMES]))


class QuietLevel:
    """Level of other load in an experiment: `disturbed` says whether a pair had more beside it than quiet blocks."""

    def __init__(self) -> None:
        self._seen: list[float] = []
        self._taken = 0
        self.set_aside = 0  # pairs

    def should_repeat_pair(self, cores: tuple[float | None, float | None]) -> bool:
        """Return whether to make this pair of blocks again. Where most would be, load is how it is: none is then."""
        loads = [value for value in cores if value is not None]
        self._seen += loads
        if not loads or len(self._seen) < _FEWEST:
            self._taken += 1
            return False
        quiet = statistics.quantiles(self._seen, n=4)[0]
        if max(loads) <= quiet + _MORE_CORES or self.set_aside >= self._taken:
            self._taken += 1
            return False
        self.set_aside += 1
        return True
