"""Where the training thread's time went, and what the system took from it: shares of the steps, from sampled counters.

Unprofiled steps count as well: nothing here needs the profiler, so that it can confirm, or refute, what that shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.channels import Series, board_computes, growth_windows, series_of, shortest_window_ns
from stepscope.analysis.device.throttling import CoreClock, clock_of, gpu_slowdown
from stepscope.analysis.estimate import Estimate, mean_of_stretches, mean_over_time
from stepscope.analysis.metrics import (
    accelerator_utilisation,
    background_load_of,
    background_warning,
    core_utilisation,
    process_cpu_utilisation,
)
from stepscope.analysis.process_scopes import CHILDREN, OWN, has_several_processes
from stepscope.analysis.result_cache import cached_per_run
from stepscope.analysis.time.steps import cut_pauses, is_in_steps, span_ns, stretches_of_steps
from stepscope.analysis.unused_cards import is_of_unused_card
from stepscope.runfolder import RunReader
from stepscope.units import number

if TYPE_CHECKING:
    from stepscope.analysis.metrics import Measured

_WINDOWS = 40  # windows of a span that an interval is taken from
_OWN_MASK = 1.1  # of the allowed cores: a process that uses more is not confined to them
_SOME_PERIODS = 0.05  # of a quota, in which it held the training back
_FULL = 0.75  # of all cores
OTHERS = 0.3  # cores of background CPU load
QUEUED = 0.1  # of the time, in which some program waited for a core
_WAKES = 100.0  # a second of waiting for Python's lock, at least
_SEEN = 0.05  # of the time: that waits for a lock are there at all


NOTHING = Estimate(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Occupancy:
    """Shares of the time of the steps after warm-up; null is not measured. Rates are a second.

    runs, delayed, waits: of the training thread; held: delayed, or neither running nor waiting (a quota).
    """

    cores: int
    threads: int | None
    runs: Estimate | None
    delayed: Estimate | None
    waits: dict[str, Estimate]
    switches: Estimate | None  # by which the training thread gave its core up
    process_cores: Estimate | None
    children_cores: Estimate | None
    background_cores: Estimate | None
    busy_cores: float | None
    pressure: dict[str, Estimate]  # "cpu:some", "memory:some", "memory:full", "io:some", "io:full"
    throttled_periods: Estimate | None
    quota: float | None
    allowed: float | None
    steal_cores: Estimate | None
    major_faults: Estimate | None
    swapped: Estimate | None  # B/s, in and out
    reclaimed: Estimate | None  # B/s
    limit_hits: Estimate | None
    storage_read: Estimate | None  # B/s
    storage_written: Estimate | None
    clock: CoreClock | None
    gpu_slowed: Estimate | None  # share of the readings at which a used GPU says that it is slowed down
    host_alone: float  # share of the steps in which no accelerator is busy: of its kernels, else by its own gauge

    @property
    def are_cores_full(self) -> bool:
        """Tell whether so few cores are idle that one of several threads may wait for one; so where that is not known.

        With idle cores a thread that waits for another waits for its work: for autograd's own thread of a GPU, say.
        """
        fewer = self.allowed is not None and self.allowed < self.cores
        return fewer or self.busy_cores is None or self.busy_cores >= _FULL * self.cores

    @property
    def waits_for_interpreter(self) -> bool:
        """Tell whether its waits with a time limit are for Python's lock: such a waiter wakes every 5 ms.

        One for an event or a queue sleeps through. Where its switches were not read, or too few, it is said to be so.
        """
        if self.switches is None:
            return True
        most = max(self.switches.value, self.switches.high or 0.0)
        return most >= _WAKES * self.waits.get("interpreter", NOTHING).value

    @property
    def run_queue_share(self) -> Estimate | None:
        """Share of the time in which the training thread was ready to run and did not get a core."""
        if self.delayed is None or self.runs is None:
            return None
        if self.throttled_periods is None or self.throttled_periods.value < _SOME_PERIODS:
            return self.delayed
        off_core = 1 - self.runs.value - sum(share.value for share in self.waits.values())  # a quota takes threads off
        return self.delayed if off_core <= self.delayed.value else Estimate(off_core).clipped()

    @property
    def starved(self) -> Estimate | None:
        """Share of the time without a core; of operators with threads, also that in which one waits for another.

        None where the kernel's run-queue times were not sampled.
        """
        queue, lock = self.run_queue_share, self.waits.get("lock", NOTHING)
        others = (self.background_cores or NOTHING).value >= OTHERS
        loaded = others or self.pressure.get("cpu:some", NOTHING).value >= QUEUED
        alone = (self.threads or 1) < 2 or not (self.are_cores_full and loaded) or lock.value < _SEEN
        return queue if queue is None or alone else Estimate(queue.value + lock.value).clipped()

    @property
    def off_core_share(self) -> float:
        """Share of the time in which the training thread neither ran nor was ready to; 0 where that is not known."""
        if self.runs is None or self.delayed is None:
            return 0.0
        return max(1 - self.runs.value - (self.run_queue_share or NOTHING).value, 0.0)

    @property
    def asleep(self) -> float:
        """Share of the time in which the training thread waited for something other than a core."""
        if self.runs is None or self.delayed is None:
            return 0.0
        waits = sum(share.value for share in self.waits.values())
        return min(max(self.off_core_share, min(waits, 1.0)), 1.0)


@cached_per_run
def occupancy(run: RunReader) -> Occupancy:
    """Read all of it from a run; of one whose training processes are not the watched one, what is of the machine."""
    span = span_ns(run)
    single_process = not has_several_processes(run)
    is_machine = not board_computes(run)  # else the cores that were read, and stated, are a simulated board's
    utilised = core_utilisation(run) if is_machine else []
    used = [] if span is None else process_cpu_utilisation(run)
    own = next((row for row in used if row.scope in OWN), None)
    background = background_load_of(run) if single_process else []
    threads = stated if isinstance(stated := run.meta.get("threads"), int) else None
    allowed = _allowed_cores(run, span, own) if single_process else None
    online = sum(core.get("online", True) for core in run.device.get("cores") or [])
    return Occupancy(
        cores=(len(utilised) or online if is_machine else int(allowed or threads or 1)) or 1,
        threads=threads,
        runs=_thread_share(run, "thread_cpu_time") if single_process else None,
        delayed=_thread_share(run, "run_delay") if single_process else None,
        waits=_sleep_shares_by_wait(run) if single_process else {},
        switches=_channel_rate(run, "voluntary_switches", "thread", 1e9) if single_process else None,
        process_cores=_estimate_of_row(own),
        children_cores=_estimate_of_row(next((row for row in used if row.scope == CHILDREN), None)),
        background_cores=_estimate_of_row(background[0]) if background else None,
        busy_cores=sum(row.value or 0.0 for row in utilised) if utilised else None,
        pressure={series.scope: share.clipped() for series in series_of(run, "stall_time")
                  if (share := _mean_growth(run, series, 1.0)) is not None},
        throttled_periods=_throttled_periods(run),
        quota=_median_of_gauge(run, "cpu_quota", span),
        allowed=allowed,
        steal_cores=_channel_rate(run, "steal_time", "system", 1.0),
        major_faults=_channel_rate(run, "major_faults", "process", 1e9) if single_process else None,
        swapped=_sum_of_estimates([_channel_rate(run, name, "system", 1e9) for name in ("swap_in", "swap_out")]),
        reclaimed=_channel_rate(run, "direct_reclaim", "system", 1e9),
        limit_hits=_channel_rate(run, "memory_limit_hits", "cgroup", 1e9),
        storage_read=_channel_rate(run, "storage_read", "process", 1e9) if single_process else None,
        storage_written=_channel_rate(run, "storage_written", "process", 1e9) if single_process else None,
        clock=clock_of(run) if is_machine else None,
        gpu_slowed=gpu_slowdown(run),
        host_alone=1 - max((busy or 0.0 for busy in _accelerator_shares(run)), default=0.0),
    )  # fmt: skip


def usable_cores(run: RunReader) -> int:
    """Return how many cores the training may use: those online, less what its affinity or CPU quota withholds."""
    usage = occupancy(run)
    return max(math.ceil(min(limit for limit in (usage.cores, usage.allowed, usage.quota) if limit is not None)), 1)


def _accelerator_shares(run: RunReader) -> list[float | None]:
    """Return the share of the steps in which each accelerator of this machine that the training used was busy."""
    is_own = run.meta.get("simulated") is None
    rows = [row for row in accelerator_utilisation(run) if is_own or row.source == "ops"]
    return [row.value for row in rows if not is_of_unused_card(run, row.scope)]


def _estimate_of_row(row: Measured | None) -> Estimate | None:
    return None if row is None or row.value is None else Estimate(row.value, row.low, row.high)


def _sum_of_estimates(shares: Iterable[Estimate | None]) -> Estimate | None:
    values = [share for share in shares if share is not None]
    return Estimate(sum(share.value for share in values)) if values else None


def _channel_rate(run: RunReader, quantity: str, scope: str, factor: float) -> Estimate | None:
    """Growth a ns, times a factor, of the one channel of a quantity and scope."""
    series = next((series for series in series_of(run, quantity) if series.scope == scope), None)
    return None if series is None else _mean_growth(run, series, factor)


def _thread_share(run: RunReader, quantity: str) -> Estimate | None:
    share = _channel_rate(run, quantity, "thread", 1.0)
    return None if share is None else share.clipped()


def _mean_growth(run: RunReader, series: Series, factor: float) -> Estimate | None:
    """Mean growth over the steps, without the pauses between them, with Student's interval over windows of them."""
    stretches = stretches_of_steps(run)
    if not len(stretches):
        return None
    counted, begin, end = cut_pauses(series, stretches)
    windows = growth_windows(counted, begin, end, max(shortest_window_ns(series), (end - begin) / _WINDOWS))
    mean = mean_over_time(windows.rates * factor)
    return mean if mean is None or mean.low is None else Estimate(mean.value, max(mean.low, 0.0), mean.high)


def _sleep_shares_by_wait(run: RunReader) -> dict[str, Estimate]:
    """Share of the readings in the steps at which the training thread slept, by what it waited in."""
    shares = {}
    for series in series_of(run, "thread_waiting"):
        values = series.values[is_in_steps(run, series.t_ns)]
        if len(values):
            shares[series.scope.removeprefix("wait:")] = mean_of_stretches(values)
    return shares


def _allowed_cores(run: RunReader, span: tuple[int, int] | None, own: Measured | None) -> float | None:
    """Cores that the process may run on, by the mask of its main thread: None where it uses more.

    OpenMP binds each thread to a place of its own (OMP_PROC_BIND), and the main thread with them.
    """
    allowed, used = _median_of_gauge(run, "allowed_cores", span), _estimate_of_row(own)
    return None if allowed is None or (used is not None and used.value > _OWN_MASK * allowed) else allowed


def _throttled_periods(run: RunReader) -> Estimate | None:
    """Share of the periods of a CPU quota in which it held the training back; None without a quota."""
    throttled, all_of = (_channel_rate(run, name, "cgroup", 1e9) for name in ("throttled_periods", "quota_periods"))
    if throttled is None or all_of is None or all_of.value <= 0:
        return None
    low, high = (None if end is None else end / all_of.value for end in (throttled.low, throttled.high))
    return Estimate(throttled.value / all_of.value, low, high).clipped()


def _median_of_gauge(run: RunReader, quantity: str, span: tuple[int, int] | None) -> float | None:
    """Median of a gauge over the steps; of one that is read seldom, over the run."""
    for series in series_of(run, quantity) if span is not None else ():
        assert span is not None
        inside = series.values[(series.t_ns >= span[0]) & (series.t_ns <= span[1])]
        return float(np.median(inside if len(inside) else series.values))
    return None


_NOTABLE_WAIT = 0.05  # of the time


def core_wait_sentence(run: RunReader) -> str:
    """Return that the training had to wait for this machine's cores, whatever cores were sampled; else ""."""
    delayed = occupancy(run).delayed
    if delayed is None or delayed.value < _NOTABLE_WAIT:
        return ""
    return f"background CPU load: the training waited for a core {100 * delayed.value:.0f} % of the time"


def background_load_sentence(run: RunReader) -> str:
    """Return that other processes took a good part of the machine beside this run; else "".

    Cores that were sampled of a simulated board that computes are the board's: the training's own waiting tells.
    """
    if board_computes(run):
        return core_wait_sentence(run)
    load = background_load_of(run)
    return f"background CPU load of {number(load[0].value, 2)} cores" if background_warning(load) else ""
