"""How long a call takes: torch's own benchmark timer, which warms up, waits for an accelerator and sizes its blocks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch.utils import benchmark

from stepscope.analysis.intervals import Floats, known, median_interval

FEWEST = 7  # blocks: of fewer than six no interval of the median can be given
_BARE_ROUNDS = 9
_BLOCK_S = 2e-3  # of a bare loop: long against the cost of reading a clock
Call = Callable[[], Any]


@dataclass(frozen=True)
class Timed:
    """Median time of one call, ns, over the blocks, with the interval of 95 % of that median; null where too few."""

    ns: float
    low_ns: float | None
    high_ns: float | None
    blocks: int
    calls: int  # in each block

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def timed(call: Call, seconds: float, threads: int = 1) -> Timed:
    """Time a call for at least so many seconds and FEWEST blocks; the first calls are not counted."""
    timer = _timer(call, threads)
    first = timer.timeit(1).median
    found = timer.blocked_autorange(min_run_time=max(seconds, FEWEST * first))
    calls, times = found.number_per_run, list(found.times)
    if len(times) < FEWEST:  # a block that was sized for a busy moment lasts as long as all of them should
        calls = max(1, calls // FEWEST)
        times = [timer.timeit(calls).median for _ in range(FEWEST)]
    ns, low, high = median_interval(np.array(times) * 1e9)
    return Timed(float(ns), known(float(low)), known(float(high)), len(times), calls)


def bare_loop_s(call: Call, calls: int) -> float:
    """Seconds a call in a plain loop between two readings of the clock."""
    began = benchmark.timer()
    for _ in range(calls):
        call()
    return float(benchmark.timer() - began) / calls


def against_bare_loop(call: Call, threads: int = 1, clock: Callable[[], float] = benchmark.timer) -> dict[str, Any]:
    """The timer's seconds over those of a bare loop, alternated: ratio, low, high of the median over the rounds.

    clock: what both read, for a test that counts the time of the processor.
    """
    timer = _timer(call, threads, clock)
    calls = max(1, round(_BLOCK_S / max(timer.timeit(1).median, 1e-9)))
    ratios = []
    for _ in range(_BARE_ROUNDS):
        call()  # the timer warms up before each of its blocks as well
        call()
        began = clock()
        for _ in range(calls):
            call()
        bare = (clock() - began) / calls
        ratios.append(timer.timeit(calls).median / bare)
    ratio, low, high = median_interval(np.array(ratios))
    return {"ratio": float(ratio), "low": known(float(low)), "high": known(float(high)), "calls": calls}


def in_turn(calls: Mapping[str, Call], rounds: int, seconds: float) -> dict[str, Floats]:
    """Seconds a call of each, a value a round; every round runs all of them, so that what drifts hits all alike."""
    counts = {name: _calls_for(call, seconds / rounds / len(calls)) for name, call in calls.items()}
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            found[name].append(bare_loop_s(call, counts[name]))
    return {name: np.array(values) for name, values in found.items()}


def _calls_for(call: Call, seconds: float) -> int:
    call()
    once = statistics.median(bare_loop_s(call, 1) for _ in range(3))
    return max(1, round(seconds / max(once, 1e-9)))


def median_ratio(above: Sequence[Floats], below: Floats) -> dict[str, float | None]:
    """Median over the rounds of a sum of times over another time, with its interval of 95 %."""
    ratio, low, high = median_interval(np.sum(above, axis=0) / below)
    return {"ratio": float(ratio), "low": known(float(low)), "high": known(float(high))}


def _timer(call: Call, threads: int, clock: Callable[[], float] = benchmark.timer) -> benchmark.Timer:
    return benchmark.Timer("call()", globals={"call": call}, num_threads=threads, timer=clock)
