"""The trade of memory against time by allocator, measured on the user's own step, beside what was predicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from stepscope.analysis.memory_model import ALLOCATORS, Limit
from stepscope.record.allocator_trade import AllocatorCost, allocator_trade
from stepscope.studies.fit.result import FitResult
from stepscope.studies.fit.simulator import Simulator

TIMED_STEPS = 5  # of each process, after its warm-up
ROUNDS = 3


@dataclass(frozen=True)
class Traded:
    """One allocator: what it cost (medians and spread over processes) and what was predicted of its peak, B."""

    cost: AllocatorCost
    predicted: tuple[int, int]
    within_limit: bool | None  # of every process; None without a limit, or where it was not measured


def trade(
    command: Sequence[str],
    found: FitResult,
    simulator: Simulator,
    rounds: int = ROUNDS,
    progress: Callable[[str], None] = lambda now: None,
) -> list[Traded]:
    """Each allocator in turns, in child processes that run `command`; the first is the default."""
    costs = allocator_trade(command, rounds=rounds, progress=progress)
    return [
        Traded(cost, _interval(found, simulator, cost.allocator), _within(cost.peak_high, found.limit))
        for cost in costs
    ]


def as_dicts(traded: Sequence[Traded]) -> list[dict[str, Any]]:
    """For JSON."""
    return [{**asdict(each.cost), "predicted": each.predicted, "within_limit": each.within_limit} for each in traded]


def as_frame(traded: Sequence[Traded]) -> pl.DataFrame:
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
