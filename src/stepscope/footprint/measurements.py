"""The prediction against this device: batch after batch in child processes, and each allocator in turns.

A child is the first that the kernel kills when memory runs out, and its death is a result. How far a measured peak lay
outside what was predicted is kept, and widens later answers.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from stepscope.analysis.memory.limits import ALLOCATORS, Limit, ProcessPeak
from stepscope.footprint.result import FitResult
from stepscope.footprint.simulator import Simulator
from stepscope.record.allocators import child_environment
from stepscope.record.dry.allocator_costs import AllocatorCost, compare_allocators

_TRIES = 12
_TIMEOUT_S = 1800.0
Command = Callable[[int], list[str]]  # the command that makes real steps with so many samples
Predict = Callable[[int], ProcessPeak]


@dataclass(frozen=True)
class Trial:
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


def probe_batches(
    command: Command, predict: Predict, start: int, limit: float | None, allocator: str = "default"
) -> Iterator[Trial]:
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


def _try(command: list[str], batch: int, predicted: ProcessPeak, allocator: str) -> Trial:
    environment = child_environment(allocator)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return Trial(batch, None, f"took longer than {_TIMEOUT_S:.0f} s", predicted)
    if done.returncode:
        return Trial(batch, None, _why(done), predicted)
    return Trial(batch, int(json.loads(done.stdout.splitlines()[-1])["peak_bytes"]), None, predicted)


def _why(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode < 0:
        return (
            "killed by the kernel, as when memory runs out" if done.returncode == -9 else f"signal {-done.returncode}"
        )
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


TIMED_STEPS = 5  # of each process, after its warm-up
ROUNDS = 3


@dataclass(frozen=True)
class AllocatorTrade:
    """One allocator: what it cost (medians and spread over processes) and what was predicted of its peak, B."""

    cost: AllocatorCost
    predicted: tuple[int, int]
    within_limit: bool | None  # of every process; None without a limit, or where it was not measured


def trade_allocators(
    command: Sequence[str],
    found: FitResult,
    simulator: Simulator,
    rounds: int = ROUNDS,
    progress: Callable[[str], None] = lambda now: None,
) -> list[AllocatorTrade]:
    """Each allocator in turns, in child processes that run `command`; the first is the default."""
    costs = compare_allocators(command, rounds=rounds, progress=progress)
    return [
        AllocatorTrade(cost, _interval(found, simulator, cost.allocator), _within(cost.peak_high, found.limit))
        for cost in costs
    ]


def trade_dicts(traded: Sequence[AllocatorTrade]) -> list[dict[str, Any]]:
    """For JSON."""
    return [{**asdict(each.cost), "predicted": each.predicted, "within_limit": each.within_limit} for each in traded]


def trade_frame(traded: Sequence[AllocatorTrade]) -> pl.DataFrame:
    """For the chart: allocator, peak_mb, peak_low, peak_high, step_ms, step_low, step_high; measured ones only."""
    costs = [each.cost for each in traded if each.cost.peak_bytes is not None]
    rows = [
        (cost.allocator, *_scaled(1e-6, cost.peak_bytes, cost.peak_low, cost.peak_high),
         *_scaled(1e3, cost.step_s, cost.step_low_s, cost.step_high_s))
        for cost in costs
    ]  # fmt: skip
    names = ("peak_mb", "peak_low", "peak_high", "step_ms", "step_low", "step_high")
    return pl.DataFrame(rows, schema={"allocator": pl.String, **dict.fromkeys(names, pl.Float64)}, orient="row")


def _scaled(factor: float, *values: float | None) -> list[float | None]:
    return [None if value is None else value * factor for value in values]


def _interval(found: FitResult, simulator: Simulator, name: str) -> tuple[int, int]:
    process = simulator.process(found.live, ALLOCATORS[name])
    return process.low, process.high


def _within(peak: int | None, limit: Limit | None) -> bool | None:
    return None if peak is None or limit is None else peak <= limit.bytes
