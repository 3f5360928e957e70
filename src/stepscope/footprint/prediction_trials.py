"""The prediction against this device: batch after batch in child processes, and each allocator in turns.

A child is the first that the kernel kills when memory runs out, and its death is a result. How far a measured peak lay
outside what was predicted is kept, and widens later answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.analysis.memory.limits import ACCOUNTS, ADDRESSES, ALLOCATORS, DATA, RESIDENT, Limit, ProcessPeak
from stepscope.errors import StepscopeError
from stepscope.footprint.result import FitResult
from stepscope.footprint.simulator import Simulator
from stepscope.record.c_allocators import child_environment
from stepscope.record.dry.allocator_costs import AllocatorCost, StepCost, compare_allocators
from stepscope.units import bytes_

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
    def error_ratio(self) -> float:
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
        trial = _train_batch_in_child(command(batch), batch, predict(batch), allocator)
        yield trial
        if trial.peak_bytes is None or (limit is not None and trial.peak_bytes > limit):
            high = batch
        else:
            low = batch
        if high is not None and high - low <= max(1, low // 16):
            return
        batch = 2 * low if high is None else (low + high) // 2


def _train_batch_in_child(command: list[str], batch: int, predicted: ProcessPeak, allocator: str) -> Trial:
    environment = child_environment(allocator)
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return Trial(batch, None, f"took longer than {_TIMEOUT_S:.0f} s", predicted)
    if process.returncode:
        return Trial(batch, None, _reason_of_failure(process), predicted)
    return Trial(batch, int(json.loads(process.stdout.splitlines()[-1])["peak_bytes"]), None, predicted)


def _reason_of_failure(process: subprocess.CompletedProcess[str]) -> str:
    if process.returncode < 0:
        return (
            "killed by the kernel, as when memory runs out"
            if process.returncode == -9
            else f"signal {-process.returncode}"
        )
    return (process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]


def train_in_child(command: Sequence[str], allocator: str, wrapped: Sequence[str] = ()) -> StepCost:
    """Return what a child that makes real steps says of them. StepscopeError where it fails, with why."""
    environment = child_environment(allocator)
    try:
        process = subprocess.run(
            [*wrapped, *command], capture_output=True, text=True, check=False, env=environment, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise StepscopeError(f"took longer than {_TIMEOUT_S:.0f} s", "give a smaller batch") from None
    if process.returncode:
        raise StepscopeError(_reason_of_failure(process), "give a smaller batch")
    return StepCost(**json.loads(process.stdout.splitlines()[-1]))


# Runs a command under a limit of its own: argv is the kind of limit, its bytes, and the command.
_UNDER = """
import os, resource, sys
kind, size = sys.argv[1], int(sys.argv[2])
if kind in ("address-space", "data"):
    number = resource.RLIMIT_AS if kind == "address-space" else resource.RLIMIT_DATA
    resource.setrlimit(number, (size, size))
else:
    open(os.path.join(kind, "cgroup.procs"), "w").write(str(os.getpid()))
os.execvp(sys.argv[3], sys.argv[3:])
"""
_GROUPS = (  # the file of the limit, and that of swap with what forbids it
    ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    ("sys/fs/cgroup", "memory.max", "memory.swap.max"),
)


def prove_under_limit(command: Sequence[str], allocator: str, limit: Limit, root: Path = Path("/")) -> str:
    """Train for real under a limit that the kernel keeps, where it can; what came of it, in words."""
    try:
        kind, cost = train_under_limit(command, allocator, limit, root)
    except StepscopeError as error:
        return f"it failed under the limit: {error}"
    if kind is None:
        side = "within" if cost.peak_bytes <= limit.bytes else "above"
        return f"trained, {bytes_(cost.peak_bytes)} resident at its peak: {side} the limit, which nothing enforced here"
    by = ACCOUNTS.get(kind, "a control group")
    took = f"{bytes_(cost.peak_bytes)} resident, {cost.step_s:.3g} s of processor time a step"
    if limit.account == RESIDENT and cost.peak_bytes > limit.bytes:
        files = "pages of files that others had read are not charged to it"
        return f"trained in {by} of that size, but {took}: above the limit by what is resident, since {files}"
    return f"trained under the limit, kept by the kernel ({by}); {took}"


def train_under_limit(
    command: Sequence[str], allocator: str, limit: Limit, root: Path = Path("/")
) -> tuple[str | None, StepCost]:
    """Return what keeps the limit (an account, a control group's folder, None: nothing) and what the steps took.

    StepscopeError where the training fails.
    """
    with _memory_account(limit, root) as kind:
        wrapped = () if kind is None else (sys.executable, "-c", _UNDER, kind, str(limit.bytes))
        return kind, train_in_child(command, allocator, wrapped)


@contextlib.contextmanager
def _memory_account(limit: Limit, root: Path) -> Iterator[str | None]:
    """The account that a resource limit keeps, or the folder of a new control group; None where neither can be."""
    if limit.account in (ADDRESSES, DATA):
        yield limit.account
        return
    for mounted, name, swap in _GROUPS:
        group = root / mounted / f"stepscope-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / name).write_text(str(limit.bytes))
        except OSError:
            group.rmdir()
            continue
        with contextlib.suppress(OSError):  # this kernel counts none
            (group / swap).write_text("0" if swap == "memory.swap.max" else str(limit.bytes))
        try:
            yield str(group)
        finally:
            with contextlib.suppress(OSError):
                group.rmdir()
        return
    yield None


TIMED_STEPS = 5  # of each process, after its warm-up
ROUNDS = 3


@dataclass(frozen=True)
class AllocatorTrade:
    """One allocator: what it cost (medians and spread over processes) and what was predicted of its peak, B."""

    cost: AllocatorCost
    predicted: tuple[int, int]
    within_limit: bool | None  # of every process; None without a limit on RAM, or where it was not measured


def trade_allocators(
    command: Sequence[str],
    answer: FitResult,
    simulator: Simulator,
    rounds: int = ROUNDS,
    progress: Callable[[str], None] = lambda now: None,
) -> list[AllocatorTrade]:
    """Each allocator in turns, in child processes that run `command`; the first is the default."""
    costs = compare_allocators(command, rounds=rounds, progress=progress)
    return [
        AllocatorTrade(
            cost, _process_interval(answer, simulator, cost.allocator), _keeps_limit(cost.peak_high, answer.limit)
        )
        for cost in costs
    ]


def trade_dicts(trades: Sequence[AllocatorTrade]) -> list[dict[str, Any]]:
    """Return the rows as dictionaries for JSON."""
    return [
        {**asdict(trade.cost), "predicted": trade.predicted, "within_limit": trade.within_limit} for trade in trades
    ]


def trade_frame(trades: Sequence[AllocatorTrade]) -> pl.DataFrame:
    """Return measured allocators as a frame: allocator, peak_mb, peak_low, peak_high, step_ms, step_low, step_high."""
    costs = [trade.cost for trade in trades if trade.cost.peak_bytes is not None]
    rows = [
        (cost.allocator, *_scale_values(1e-6, cost.peak_bytes, cost.peak_low, cost.peak_high),
         *_scale_values(1e3, cost.step_s, cost.step_low_s, cost.step_high_s))
        for cost in costs
    ]  # fmt: skip
    names = ("peak_mb", "peak_low", "peak_high", "step_ms", "step_low", "step_high")
    return pl.DataFrame(rows, schema={"allocator": pl.String, **dict.fromkeys(names, pl.Float64)}, orient="row")


def _scale_values(factor: float, *values: float | None) -> list[float | None]:
    return [None if value is None else value * factor for value in values]


def _process_interval(answer: FitResult, simulator: Simulator, name: str) -> tuple[int, int]:
    allocator = simulator.allocator if simulator.allocator.name == name else ALLOCATORS[name]
    process = simulator.peak_of_process(answer.live, allocator)
    return process.low, process.high


def _keeps_limit(peak: int | None, limit: Limit | None) -> bool | None:
    """Return whether a resident peak keeps a limit; None where another account decides, which it says nothing of."""
    return None if peak is None or limit is None or limit.account != RESIDENT else peak <= limit.bytes
