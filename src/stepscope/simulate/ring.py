"""A ring in shared memory: the trainer writes (time, state) marks without a lock, the board's process reads them all.

A slot is two int64: CLOCK_MONOTONIC ns, and (number of the mark + 1) << 16 | state. The number says which lap of the
ring a slot belongs to, so that the reader sees what is not written yet and what was overwritten before it was read.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.clock import Clock, monotonic_ns

SLOTS = 1 << 16
STATES = 1 << 16
_SLOT = struct.Struct("<qq")
_CHUNK = 256

Ints = np.ndarray[Any, np.dtype[np.int64]]
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
                self._skip_to(int(words[0] >> 16) - SLOTS // 2)  # half a ring away from where the writer is
                continue
            times.append(chunk[:count, 0])
            states.append(words[:count] & (STATES - 1))
            self._taken += count
            if count < len(fresh):
                return (times[0], states[0]) if len(times) == 1 else (np.concatenate(times), np.concatenate(states))

    def _skip_to(self, number: int) -> None:
        self.lost += number - self._taken
        self._taken = number
