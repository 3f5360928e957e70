"""Where the training thread's time went, and what the system took from it: shares of the steps, from sampled counters.

Unprofiled steps count as well: nothing here needs the profiler, so that it can confirm, or refute, what that shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.channels import Series, board_computes, resolved_ns, series_of, windows
from stepscope.analysis.estimate import Estimate, mean_interval
from stepscope.analysis.metrics import background_cpu_load, core_utilisation, process_cpu_utilisation
from stepscope.analysis.processes import CHILDREN, OWN, several
from stepscope.analysis.time.steps import span_ns
from stepscope.arrays import Floats
from stepscope.runfolder import RunReader

if TYPE_CHECKING:
    from stepscope.analysis.metrics import Measured

_WINDOWS = 40  # windows of a span that an interval is taken from
_THROTTLE_BITS = 0x4 | 0x8 | 0x20 | 0x40 | 0x80  # of NVML: power cap, slowdown, thermal, power brake
_NEAR_TRIP = 3.0  # degrees below a passive trip point
_SOME_PERIODS = 0.05  # of a quota, in which it held the training back
_STEADY = 0.97  # of its limit: a clock that reaches it
_FULL = 0.75  # of all cores


NOTHING = Estimate(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Clock:
    """The clock of the fastest core while steps ran, as a share of the hardware's maximum, and signs of throttling."""

    share: Estimate
    first: float  # of the first fifth of the steps
    last: float
    signs: tuple[str, ...]  # sentences: a limit below the maximum, flags, cooling, trip points


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
    clock: Clock | None

    @property
    def full(self) -> bool:
        """Tell whether so few cores are idle that one of several threads may wait for one; so where that is not known.

        With idle cores a thread that waits for another waits for its work: for autograd's own thread of a GPU, say.
        """
        fewer = self.allowed is not None and self.allowed < self.cores
        return fewer or self.busy_cores is None or self.busy_cores >= _FULL * self.cores

    @property
    def held(self) -> Estimate | None:
        """Share of the time in which the training thread was ready to run and did not get a core."""
        if self.delayed is None or self.runs is None:
            return None
        if self.throttled_periods is None or self.throttled_periods.value < _SOME_PERIODS:
            return self.delayed
        left = 1 - self.runs.value - sum(share.value for share in self.waits.values())  # a quota takes threads off
        return self.delayed if left <= self.delayed.value else Estimate(left).clipped()

    @property
    def asleep(self) -> float:
        """Share of the time in which the training thread waited for something other than a core."""
        if self.runs is None or self.delayed is None:
            return 0.0
        known = sum(share.value for share in self.waits.values())
        return min(max(1 - self.runs.value - (self.held or NOTHING).value, min(known, 1.0), 0.0), 1.0)


def occupancy(run: RunReader) -> Occupancy:
    """Read all of it from a run; of one whose training processes are not the watched one, what is of the machine."""
    span = span_ns(run)
    single_process = not several(run)
    utilised = core_utilisation(run)
    used = [] if span is None else process_cpu_utilisation(run)
    own = next((row for row in used if row.scope in OWN), None)
    whole = single_process and not run.part_folders and not board_computes(run)
    background = background_cpu_load([*utilised, *used]) if whole else []
    threads = run.meta.get("threads")
    online = [core for core in run.device.get("cores") or [] if core.get("online", True)]
    return Occupancy(
        cores=len(utilised) or len(online) or 1,
        threads=threads if isinstance(threads, int) else None,
        runs=_rate(run, "thread_cpu_time", "thread", 1.0) if single_process else None,
        delayed=_rate(run, "run_delay", "thread", 1.0) if single_process else None,
        waits=_waits(run, span) if single_process else {},
        process_cores=_share(own),
        children_cores=_share(next((row for row in used if row.scope == CHILDREN), None)),
        background_cores=_share(background[0]) if background else None,
        busy_cores=sum(row.value or 0.0 for row in utilised) if utilised else None,
        pressure={series.scope: found.clipped() for series in series_of(run, "stall_time")
                  if (found := _growth(run, series, 1.0)) is not None},
        throttled_periods=_throttled_periods(run),
        quota=_typical(run, "cpu_quota", span),
        allowed=_typical(run, "allowed_cores", span) if single_process else None,
        steal_cores=_rate(run, "steal_time", "system", 1.0),
        major_faults=_rate(run, "major_faults", "process", 1e9) if single_process else None,
        swapped=_sum([_rate(run, name, "system", 1e9) for name in ("swap_in", "swap_out")]),
        reclaimed=_rate(run, "direct_reclaim", "system", 1e9),
        limit_hits=_rate(run, "memory_limit_hits", "cgroup", 1e9),
        storage_read=_rate(run, "storage_read", "process", 1e9) if single_process else None,
        storage_written=_rate(run, "storage_written", "process", 1e9) if single_process else None,
        clock=None if span is None or board_computes(run) else _clock(run, span),
    )  # fmt: skip


def thread_shares(run: RunReader) -> tuple[float | None, float | None]:
    """Shares of the steps in which the training thread ran, and in which it waited for a core; None: not sampled."""
    if several(run):
        return None, None
    runs, delayed = (_rate(run, name, "thread", 1.0) for name in ("thread_cpu_time", "run_delay"))
    return None if runs is None else runs.value, None if delayed is None else delayed.value


def _share(row: Measured | None) -> Estimate | None:
    return None if row is None or row.value is None else Estimate(row.value, row.low, row.high)


def _sum(shares: Iterable[Estimate | None]) -> Estimate | None:
    known = [share for share in shares if share is not None]
    return Estimate(sum(share.value for share in known)) if known else None


def _rate(run: RunReader, quantity: str, scope: str, factor: float) -> Estimate | None:
    """Growth a ns, times a factor, of the one channel of a quantity and scope."""
    series = next((series for series in series_of(run, quantity) if series.scope == scope), None)
    return None if series is None else _growth(run, series, factor)


def _growth(run: RunReader, series: Series, factor: float) -> Estimate | None:
    """Mean growth over the steps, with Student's interval over windows of them."""
    span = span_ns(run)
    if span is None:
        return None
    rates = windows(series, *span, max(resolved_ns(series), (span[1] - span[0]) / _WINDOWS)).rates * factor
    mean, low, high = mean_interval(rates)
    if np.isnan(mean):
        return None
    return Estimate(mean) if np.isnan(low) else Estimate(mean, max(low, 0.0), high)


def _waits(run: RunReader, span: tuple[int, int] | None) -> dict[str, Estimate]:
    """Share of the readings at which the training thread slept, by what it waited in."""
    found = {}
    for series in series_of(run, "thread_waiting") if span is not None else ():
        assert span is not None
        values = series.values[(series.t_ns >= span[0]) & (series.t_ns <= span[1])]
        if len(values):
            found[series.scope.removeprefix("wait:")] = _mean_of_stretches(values)
    return found


def _mean_of_stretches(values: Floats) -> Estimate:
    """Mean of a gauge; the interval from stretches, since neighbouring readings are alike."""
    _, low, high = mean_interval(np.array([part.mean() for part in np.array_split(values, min(len(values), 20))]))
    return (
        Estimate(float(values.mean()))
        if np.isnan(low)
        else Estimate(float(values.mean()), max(low, 0.0), min(high, 1.0))
    )


def _throttled_periods(run: RunReader) -> Estimate | None:
    """Share of the periods of a CPU quota in which it held the training back; None without a quota."""
    held, all_of = (_rate(run, name, "cgroup", 1e9) for name in ("throttled_periods", "quota_periods"))
    if held is None or all_of is None or all_of.value <= 0:
        return None
    low, high = (None if end is None else end / all_of.value for end in (held.low, held.high))
    return Estimate(held.value / all_of.value, low, high).clipped()


def _typical(run: RunReader, quantity: str, span: tuple[int, int] | None) -> float | None:
    """Median of a gauge over the steps; of one that is read seldom, over the run."""
    for series in series_of(run, quantity) if span is not None else ():
        assert span is not None
        inside = series.values[(series.t_ns >= span[0]) & (series.t_ns <= span[1])]
        return float(np.median(inside if len(inside) else series.values))
    return None


def _clock(run: RunReader, span: tuple[int, int]) -> Clock | None:
    """The highest clock of any core at each reading, as a share of what that core can do."""
    stated = {f"core:{core['core']}": core.get("max_frequency_hz") for core in run.device.get("cores") or []}
    lines = list(series_of(run, "core_frequency"))
    most = {series.scope: stated.get(series.scope) or float(series.values.max()) for series in lines}
    shares = [(series.t_ns, series.values / most[series.scope]) for series in lines if most[series.scope]]
    if not shares:
        return None
    t_ns = shares[0][0]
    inside = (t_ns >= span[0]) & (t_ns <= span[1])
    if not inside.any():
        return None
    top = np.max([np.interp(t_ns[inside], times, values) for times, values in shares], axis=0)
    fifth = max(len(top) // 5, 1)
    share = _mean_of_stretches(top).clipped()
    return Clock(share, float(np.median(top[:fifth])), float(np.median(top[-fifth:])), tuple(_signs(run, span, stated)))


def _signs(run: RunReader, span: tuple[int, int], most: dict[str, int | None]) -> Iterable[str]:
    """Yield what else says that the clock is held down."""
    highest = max((hertz for hertz in most.values() if hertz), default=None)
    limits = [float(np.min(series.values)) for series in series_of(run, "core_frequency_limit")]
    if limits and highest and max(limits) < _STEADY * highest:
        yield f"the clock's limit is {max(limits) / 1e9:.2f} GHz of {highest / 1e9:.2f} GHz"
    for series in series_of(run, "throttle_events"):
        grown = float(series.values[-1] - series.values[0])
        if grown > 0:
            yield f"{series.scope.replace(':', ' ')} was throttled {grown:.0f} times"
            break
    for series in series_of(run, "cooling_state"):
        inside = series.values[(series.t_ns >= span[0]) & (series.t_ns <= span[1])]
        if len(inside) and inside.max() > 0:
            yield f"the kernel cools by {series.scope.removeprefix('cooling:')} (state {inside.max():.0f})"
            break
    yield from _flags(run, span)
    yield from _hot_zones(run, span)
    mode = run.device.get("power_mode")
    if mode and "MAXN" not in str(mode).upper():
        yield f"the power mode is {mode}"


def _flags(run: RunReader, span: tuple[int, int]) -> Iterable[str]:
    """Yield the flags of firmware and GPU that were set while steps ran; those of the past do not count."""
    for series in series_of(run, "throttled"):
        inside = series.values[(series.t_ns >= span[0]) & (series.t_ns <= span[1])]
        name = series.scope.removeprefix("throttle:")
        if len(inside) and inside.max() > 0 and "since" not in name and "occurred" not in name:
            yield f"the firmware reports {name.replace('_', ' ')}"
    for series in series_of(run, "throttle_reasons"):
        inside = series.values[(series.t_ns >= span[0]) & (series.t_ns <= span[1])]
        share = float(np.mean([bool(int(value) & _THROTTLE_BITS) for value in inside])) if len(inside) else 0.0
        if share > 0:
            yield f"the GPU reports throttling in {share:.0%} of the readings"


def _hot_zones(run: RunReader, span: tuple[int, int]) -> Iterable[str]:
    """Yield the zones that came within some degrees of the temperature at which the kernel takes clocks away."""
    trips = run.device.get("trip_points_celsius") or {}
    passive = {zone.rpartition(" (")[0]: kinds.get("passive") for zone, kinds in trips.items()}
    for series in series_of(run, "temperature"):
        zone = series.scope.removeprefix("zone:")
        inside = series.values[(series.t_ns >= span[0]) & (series.t_ns <= span[1])]
        trip = passive.get(zone)
        if trip is not None and len(inside) and inside.max() >= trip - _NEAR_TRIP:
            yield f"zone {zone} reached {inside.max():.0f} °C, and the kernel slows down at {trip:.0f} °C"
