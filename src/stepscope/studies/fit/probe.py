"""The prediction against this device: real steps in child processes, with more and more samples, until one fails.

A child is the first that the kernel kills when memory runs out, and its death is a result. How far a measured peak lay
outside what was predicted is kept, and widens later answers.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stepscope.analysis.memory_model import ProcessPeak
from stepscope.record.allocators import child_environment

_TRIES = 12
_TIMEOUT_S = 1800.0
Command = Callable[[int], list[str]]  # the command that makes real steps with so many samples
Predict = Callable[[int], ProcessPeak]


@dataclass(frozen=True)
class Tried:
    """One batch, really trained: the process's peak in B, or why it failed; and what was predicted."""

    batch: int
    peak_bytes: int | None
    failure: str | None
    predicted: ProcessPeak

    @property
    def off(self) -> float:
        """The measured peak over the nearer end of the predicted interval; 1 within it."""
        if self.peak_bytes is None or self.predicted.low <= self.peak_bytes <= self.predicted.high:
            return 1.0
        nearer, empty = (
            (self.predicted.high, self.predicted.empty_process[1])
            if self.peak_bytes > self.predicted.high
            else (self.predicted.low, self.predicted.empty_process[0])
        )
        return max(0.0, self.peak_bytes - empty) / max(1, nearer - empty)


def probe(
    command: Command, predict: Predict, start: int, limit: float | None, allocator: str = "default"
) -> Iterator[Tried]:
    """Twice the batch until one fails (or its peak is above the limit), then halfway between; each as it is known."""
    low, high, batch = 0, None, start
    for _ in range(_TRIES):
        tried = _try(command(batch), batch, predict(batch), allocator)
        yield tried
        if tried.peak_bytes is None or (limit is not None and tried.peak_bytes > limit):
            high = batch
        else:
            low = batch
        if high is not None and high - low <= max(1, low // 16):
            return
        batch = 2 * low if high is None else (low + high) // 2


def _try(command: list[str], batch: int, predicted: ProcessPeak, allocator: str) -> Tried:
    environment = child_environment(allocator)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return Tried(batch, None, f"took longer than {_TIMEOUT_S:.0f} s", predicted)
    if done.returncode:
        return Tried(batch, None, _why(done), predicted)
    return Tried(batch, int(json.loads(done.stdout.splitlines()[-1])["peak_bytes"]), None, predicted)


def _why(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode < 0:
        return (
            "killed by the kernel, as when memory runs out" if done.returncode == -9 else f"signal {-done.returncode}"
        )
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
