"""Marks of what runs at this moment: a ring in shared memory, and the states that its numbers mean.

A slot is two int64: CLOCK_MONOTONIC ns, and (number of the mark + 1) << 16 | state. The number says which lap of the
ring a slot belongs to, so that the reader sees what is not written yet and what was overwritten before it was read.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from stepscope.arrays import Ints
from stepscope.clock import Clock, monotonic_ns

SLOTS = 1 << 16
STATES = 1 << 16
_SLOT = struct.Struct("<qq")
_CHUNK = 256

Mark = Callable[[int], None]


def create_ring(path: Path) -> None:
    """Make the empty file that both sides map."""
    with path.open("wb") as file:
        file.truncate(SLOTS * _SLOT.size)


def open_writer(path: Path, clock: Clock = monotonic_ns) -> Mark:
    """`mark(state)` for the process that calls this, about 0.5 us; in a forked child it does nothing.

    The mapping lives as long as the function: a hook that outlasts the simulation still has somewhere to write.
    """
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), SLOTS * _SLOT.size)
    take, pack_into, getpid = itertools.count().__next__, _SLOT.pack_into, os.getpid
    owner, last = os.getpid(), SLOTS - 1

    def mark(state: int) -> None:
        if getpid() == owner:
            number = take()  # atomic under the interpreter's lock: marks of two threads never share a slot
            pack_into(memory, (number & last) << 4, clock(), (number + 1) << 16 | state)

    return mark


class RingReader:
    """Every mark in order; `lost` counts those that were overwritten before they were read."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            memory = mmap.mmap(file.fileno(), SLOTS * _SLOT.size, prot=mmap.PROT_READ)
        self._slots = np.frombuffer(memory, dtype="<i8").reshape(SLOTS, 2)
        self._taken = 0
        self._ahead = np.arange(1, _CHUNK + 1)
        self.lost = 0

    def read(self) -> tuple[Ints, Ints]:
        """(t_ns, state) of the marks since the last call."""
        times, states = [], []
        while True:
            start = self._taken & (SLOTS - 1)
            chunk = self._slots[start : start + _CHUNK].copy()
            words = chunk[:, 1]
            fresh = (words >> 16) == self._taken + self._ahead[: len(words)]
            count = len(fresh) if fresh.all() else int(fresh.argmin())
            if count == 0 and words[0] >> 16 > self._taken + 1:
                ahead = int(words[0] >> 16) - SLOTS // 2 - self._taken  # to half a ring away from where the writer is
                self.lost, self._taken = self.lost + ahead, self._taken + ahead
                continue
            times.append(chunk[:count, 0])
            states.append(words[:count] & (STATES - 1))
            self._taken += count
            if count < len(fresh):
                return (times[0], states[0]) if len(times) == 1 else (np.concatenate(times), np.concatenate(states))


# The training process appends each new state to a file before its first mark; the line number is the state's id.


@dataclass(frozen=True)
class State:
    """One kind of work; power differs by `kind` and `phase`, a little by `signature`, and least by `place`."""

    kind: str  # module type or optimizer type
    phase: str
    place: str = ""  # qualified name of the module
    signature: str = ""  # shapes of inputs and parameters
    flops: float = 0.0  # what it has to do, see `training_hooks.Work`
    moved: float = 0.0  # B
    kernels: float = 1.0  # beside those of `cells`
    cells: float = 0.0  # steps of a recurrent layer through its sequence


IDLE, HOST, BETWEEN, OTHER = range(4)
FIXED = (
    State("idle", "other"),
    State("host", "data"),  # between the optimizer's step and the next forward: data loading, the user's own code
    State("between modules", "forward"),
    State("other", "other"),  # of more states than an id can number
)


class StateLog:
    """The side of the training process: ids of states, new ones appended to the file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._count = 0
        for state in FIXED:
            self.add(state)

    def close(self) -> None:
        """No state is added any more."""
        os.close(self._file)

    def add(self, state: State) -> int:
        """The id of a new state, known to the other side from now on; OTHER when there are too many."""
        if self._count == STATES:
            return OTHER
        os.write(self._file, json.dumps(astuple(state)).encode() + b"\n")
        self._count += 1
        return self._count - 1


class StateReader:
    """The simulating side: the states that were appended since the last call, in order of their ids."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._offset = 0

    def read(self) -> list[State]:
        """New states; a line that is still being written waits for the next call."""
        data = os.pread(self._file, os.fstat(self._file).st_size - self._offset, self._offset)
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [State(*json.loads(line)) for line in whole.splitlines()]

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
