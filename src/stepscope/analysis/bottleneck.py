"""The causes of a step's length, each from two pieces of evidence that could have gone against it.

What the system takes (background load, quotas, clocks, memory) comes before what the training does with the rest: where
the training thread does not run, no operator explains the time. A limit of the device is named only against a ceiling
of this device that was measured (`analysis.device.ceilings`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from stepscope.analysis.device.ceilings import Ceilings, attainable, ceilings_of, why_no_ceilings, would_tell
from stepscope.analysis.device.occupancy import NOTHING, Clock, Occupancy, occupancy
from stepscope.analysis.estimate import Estimate, mean_interval
from stepscope.analysis.metrics import accelerator_utilisation
from stepscope.analysis.time.operators import CPU, FRAMEWORK_OVERHEAD
from stepscope.analysis.time.ranks import last_rank
from stepscope.analysis.time.steps import profiled_steps
from stepscope.runfolder import COMMUNICATION, MODULE_CALL
from stepscope.units import amount, bytes_, duration, number, percent, plural, si

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

Bound = Literal[
    "cpu-starved", "throttled", "memory-capacity", "input", "communication", "lock", "idle", "storage",
    "overhead", "compute", "memory-bandwidth", "kernels", "unknown",
]  # fmt: skip
SYSTEM: frozenset[Bound] = frozenset({"cpu-starved", "throttled", "memory-capacity"})
_OF_WORK: frozenset[Bound] = frozenset({"overhead", "compute", "memory-bandwidth", "kernels"})
HIGH, MEDIUM = "high", "medium"
CROWDED = "more threads than cores"  # the training's own

NOTABLE = 0.15  # of the step: what takes less is no cause of its length
_CLEAR = 0.05  # of the time: evidence that something is there at all
_OTHERS = 0.3  # cores of background CPU load
_SLOWER = 0.85  # of the maximum: a clock below that is no fluctuation
_FAULTS, _SWAPPED = 10.0, 1e5  # a second: faults that read a disk; bytes to and from swap
_SATURATED = 0.85  # of the cores that it may use
_LARGEST = 0.4  # of the step, for what the thread does while it runs
_REACHED = 0.4  # of its ceiling, before a limit is called reached
_DOUBTFUL = 0.2  # of the time of an operator; a run that was off by more named another bound than six like it
WORKS_ELSEWHERE = frozenset({"jax"})  # whose operators run in threads of their own, while the training's waits for them
_BUSY, _IDLE = 0.8, 0.5  # of an accelerator


@dataclass(frozen=True)
class Evidence:
    """One observation, as a sentence part with its number: SI units, the 95 % CI where there is one, and the source."""

    text: str
    value: float | None
    low: float | None = None
    high: float | None = None
    source: str = ""


@dataclass(frozen=True)
class Cause:
    """A cause of a share of the step. `name` says which of the causes of a bound; confidence is "high" or "medium".

    share: of the time of the steps, within [low, high] (95 %) where there is an interval.
    """

    bound: Bound
    name: str
    share: float
    low: float | None
    high: float | None
    confidence: str
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True)
class Bottleneck:
    """The causes found, the most important first; where there is none `why` and `would_tell` say what is missing."""

    causes: tuple[Cause, ...]
    why: str = ""
    would_tell: tuple[str, ...] = ()


def bottleneck(run: Run) -> Bottleneck:
    """Return the causes of the step's length in this run, by share of the step; system causes before operators."""
    seen, phases = occupancy(run), _phases(run)
    system = sorted(_system(seen), key=lambda cause: -cause.share)
    busiest = max((row.value or 0.0 for row in accelerator_utilisation(run) if row.source == "ops"), default=None)
    loaders = bool(run.self_times["name"].str.contains("MultiProcessingDataLoader").any())
    elsewhere = busiest is not None or run.framework in WORKS_ELSEWHERE
    off_core = [*_off_core(seen, phases, elsewhere, loaders, _late_rank(run))]
    work, why, would_tell = _work(run, seen, phases, busiest)
    waits = max((cause.share for cause in off_core), default=0.0)
    first = [cause for cause in system if cause.share >= waits]
    rest = [*(cause for cause in system if cause.share < waits), *off_core, *work]
    return Bottleneck((*first, *sorted(rest, key=_rank)), why, would_tell)


def _rank(cause: Cause) -> float:
    """The largest share first; that of a wait counts twice, since no work is lost with it."""
    return -cause.share if cause.bound in _OF_WORK else -2 * cause.share


def _phases(run: Run) -> dict[str, Estimate]:
    """Share of the profiled steps in each phase, and outside operators (FRAMEWORK_OVERHEAD)."""
    return {
        row["phase"]: _of_step(row["share"], row["ns"], row["low_ns"], row["high_ns"])
        for row in run.phases().iter_rows(named=True)
    }


def _of_step(share: float, ns: float, low: float | None, high: float | None) -> Estimate:
    """A share with the relative interval of its median time."""
    if not ns or ns <= 0 or low is None or high is None:
        return Estimate(share).clipped()
    return Estimate(share, share * low / ns, share * high / ns).clipped()


def _cause(
    bound: Bound, name: str, share: Estimate, *evidence: Evidence | None, least: float = NOTABLE, clear: bool = True
) -> Iterator[Cause]:
    """Yield the cause where it takes a notable share; two pieces of evidence at least, else none.

    clear: whether it stays the cause where the times of operators are as far off as they may be.
    """
    given = tuple(entry for entry in evidence if entry is not None)
    if share.value < least or len(given) < 2:
        return
    sure = clear and share.low is not None and share.low >= least / 2
    yield Cause(bound, name, share.value, share.low, share.high, HIGH if sure else MEDIUM, given)


def _system(seen: Occupancy) -> Iterator[Cause]:
    yield from _memory_capacity(seen)
    yield from _starved(seen)
    yield from _throttled(seen)


def _said(text: str, share: Estimate | None, source: str, least: float = 0.0) -> Evidence | None:
    """Evidence where it was measured and is at least so much; "{}" is its number as a percentage."""
    if share is None or share.value < least:
        return None
    value, low, high = (percent(ratio, 0) for ratio in (share.value, share.low, share.high))
    between = "" if share.low is None or share.high is None or low == high else f" [{low}, {high}]"
    return Evidence(text.format(f"{value}{between}"), share.value, share.low, share.high, source)


def _rate(text: str, share: Estimate | None, unit: str, source: str, least: float) -> Evidence | None:
    """Return a rate as such a sentence part; "{}" stands for its number with the unit."""
    if share is None or share.value < least:
        return None
    shown = f"{bytes_(share.value)}/s" if unit == "B/s" else amount(share.value, unit)
    return Evidence(text.format(shown), share.value, share.low, share.high, source)


def _memory_capacity(seen: Occupancy) -> Iterator[Cause]:
    """Swap and reclaim: pressure or traffic of the machine, and pages or waits of this very process."""
    machine = [
        _said("the machine stalled for memory {} of the time", seen.pressure.get("memory:some"), "PSI", _CLEAR),
        _rate("{} went to and from swap", seen.swapped, "B/s", "/proc/vmstat", _SWAPPED),
        _rate("programs took back {} of memory before they could go on", seen.reclaimed, "B/s", "/proc/vmstat", 1e6),
        _rate("the memory limit of its cgroup was hit {}", seen.limit_hits, "times/s", "cgroup", 1.0),
    ]
    own = [
        _rate("the training had {} that read a disk", seen.major_faults, "page faults/s", "/proc/PID/stat", _FAULTS),
        _said("the training thread waited for pages {} of the time", seen.waits.get("disk"), "thread", _CLEAR),
    ]
    known_machine, known_own = ([entry for entry in side if entry is not None] for side in (machine, own))
    if not known_machine or not known_own:
        return
    stalled = [seen.pressure.get("memory:some", NOTHING), seen.waits.get("disk", NOTHING)]
    share = max(stalled, key=lambda entry: entry.value)
    yield from _cause("memory-capacity", "swap and reclaim", share, *known_machine, *known_own)


def _starved(seen: Occupancy) -> Iterator[Cause]:
    """Time in which the training was ready and did not get a core: by a quota, its own affinity, or background load."""
    held = starved_share(seen)
    if held is None:
        yield from _starved_by_utilisation(seen)
        return
    queue = _said("the training thread was waiting for a CPU core {} of the time", held, "schedstat")
    quota = _quota_evidence(seen)
    if quota:
        yield from _cause("cpu-starved", "CPU quota", held, *quota, queue)
        return
    pinned = _pinned(seen)
    if pinned:
        lost = Estimate(max(held.value, 1 - (seen.allowed or 1) / max(seen.threads or 1, seen.cores)))
        yield from _cause("cpu-starved", "affinity", lost, *pinned, queue if held.value >= _CLEAR else None)
        return
    stolen = seen.steal_cores
    if stolen is not None and stolen.value >= NOTABLE and (seen.background_cores or NOTHING).value < _OTHERS:
        by_host = _rate("the hypervisor took {}", stolen, "cores", "/proc/stat", NOTABLE)
        yield from _cause(
            "cpu-starved", "hypervisor", Estimate(max(stolen.value / seen.cores, held.value)), by_host, queue
        )
        return
    crowded, others = _crowded(seen), _load_evidence(seen)
    name = CROWDED if crowded else "background load"  # of both, which one it waits for is not told apart
    alone = not crowded or (seen.background_cores or NOTHING).value < _OTHERS
    yield from _cause("cpu-starved", name, held, crowded, queue, *others, clear=alone)


def _crowded(seen: Occupancy) -> Evidence | None:
    """More threads that compute than cores: at the end of every operator they wait for each other."""
    cores = min(seen.cores, int(seen.allowed or seen.cores))
    if seen.threads is None or seen.threads <= cores:
        return None
    return Evidence(f"it computes with {seen.threads} threads on {plural(cores, 'core')}", seen.threads, source="torch")


def starved_share(seen: Occupancy) -> Estimate | None:
    """Return the share of the time without a core; of operators with threads, also that in which one waits for another.

    None where the kernel's run-queue times were not sampled.
    """
    held = seen.held
    if held is None or (seen.threads or 1) < 2 or not (seen.full and _load_evidence(seen)):
        return held
    lock = seen.waits.get("lock", NOTHING)
    return held if lock.value < _CLEAR else Estimate(held.value + lock.value).clipped()


def _load_evidence(seen: Occupancy) -> list[Evidence]:
    found = [
        _rate("background CPU load of {}", seen.background_cores, "cores", "core and process times", _OTHERS),
        _said("programs waited for a core {} of the time", seen.pressure.get("cpu:some"), "PSI", 2 * _CLEAR),
    ]
    return [entry for entry in found if entry is not None]


def _quota_evidence(seen: Occupancy) -> list[Evidence]:
    periods = _said("the CPU quota held the training back in {} of its periods", seen.throttled_periods, "cgroup", 0.1)
    if periods is None:
        return []
    allowed = seen.quota and Evidence(f"the quota is {number(seen.quota)} cores", seen.quota, source="cgroup")
    return [periods, *([allowed] if allowed else [])]


def _pinned(seen: Occupancy) -> list[Evidence]:
    """Fewer cores allowed than there are, and all of them used by this training."""
    allowed, used = seen.allowed, seen.process_cores
    if allowed is None or used is None or allowed >= seen.cores or used.value < _SATURATED * allowed:
        return []
    threads = "" if seen.threads is None else f", for {plural(seen.threads, 'thread')}"
    may = Evidence(f"it may run on {number(allowed)} of {seen.cores} cores{threads}", allowed, source="affinity")
    uses = Evidence(f"it uses {number(used.value)} cores, all that it may", used.value, used.low, used.high, "CPU time")
    return [may, uses]


def _starved_by_utilisation(seen: Occupancy) -> Iterator[Cause]:
    """Detect CPU starvation in a run without thread times: full CPU utilisation, of which the training gets little."""
    used, others = seen.process_cores, seen.background_cores
    if used is None or others is None or seen.busy_cores is None or seen.busy_cores < 0.9 * seen.cores:
        return
    wanted = min(seen.threads or 1, seen.cores)
    lost = Estimate(1 - used.value / wanted).clipped()
    got = _rate(f"the training got {{}} of the {wanted} that its threads ask for", used, "cores", "CPU time", 0.0)
    yield from _cause("cpu-starved", "background load", lost, got, *_load_evidence(seen), least=0.3)


def _throttled(seen: Occupancy) -> Iterator[Cause]:
    """A clock below its maximum while the thread runs, and a sign that something holds it there, or that it fell."""
    clock = seen.clock
    if clock is None or clock.share.value > _SLOWER or (seen.runs is not None and seen.runs.value < 0.3):
        return
    low, high = (None if end is None else 1 - end for end in (clock.share.high, clock.share.low))
    slow = _said("the fastest core's clock was {} of its maximum", clock.share, "cpufreq")
    signs = [Evidence(sign, None, source="limits and flags") for sign in clock.signs]
    yield from _cause("throttled", "clock", Estimate(1 - clock.share.value, low, high), slow, *signs, _fell(clock))


def _fell(clock: Clock) -> Evidence | None:
    if clock.last > _SLOWER * clock.first:
        return None
    text = f"it fell from {percent(clock.first, 0)} in the first steps to {percent(clock.last, 0)} in the last"
    return Evidence(text, clock.last / clock.first, source="cpufreq")


def _off_core(
    seen: Occupancy, phases: dict[str, Estimate], elsewhere: bool, loaders: bool, late: Evidence | None
) -> Iterator[Cause]:
    """What the training thread waits for by itself: data, other ranks, a lock, a disk, or nothing.

    elsewhere: operators run on an accelerator, or in threads apart. The thread waits for those, and for the thread that
    backward runs in: neither is a lock or a sleep.
    loaders: the data is loaded by processes of its own. late: the rank that the others wait for.
    """
    data, exposed = phases.get("data", NOTHING), phases.get(COMMUNICATION, NOTHING)
    if loaders:  # what the thread waits for outside operators is their next batch, in all steps, not the profiled alone
        data = max(data, seen.waits.get("process", NOTHING), key=lambda share: share.value)
    waits = {name: share.value for name, share in seen.waits.items()}
    in_data = _taken(waits, data.value if data.value >= NOTABLE else 0.0, ("disk", "process", "timer", "lock"))
    yield from _input(seen, data, in_data)
    _taken(waits, exposed.value, ("process", "lock", "interpreter"))
    yield from _communication(seen, exposed, late)
    left = {name: _rest(seen.waits[name], value) for name, value in waits.items()}
    if not elsewhere:
        yield from _lock(seen, left)
        yield from _sleeping(seen, left, phases)
    if not any(cause.bound == "memory-capacity" for cause in _memory_capacity(seen)):
        disk = _said("the training thread waited for a disk {} of the time", left.get("disk"), "thread")
        yield from _cause("storage", "disk", left.get("disk", NOTHING), disk, *_disk_evidence(seen))


def _taken(waits: dict[str, float], share: float, kinds: tuple[str, ...]) -> dict[str, float]:
    """Take a share of the step out of the waits, in this order, and return what was taken of each."""
    taken = {}
    for kind in kinds:
        taken[kind] = min(waits.get(kind, 0.0), share)
        share -= taken[kind]
        if kind in waits:
            waits[kind] -= taken[kind]
    return taken


def _rest(share: Estimate, value: float) -> Estimate:
    """A share of which a part was taken: its bounds move with it."""
    gone = share.value - value
    low, high = (None if end is None else max(end - gone, 0.0) for end in (share.low, share.high))
    return Estimate(max(value, 0.0), low, high)


def _input(seen: Occupancy, data: Estimate, waits: dict[str, float]) -> Iterator[Cause]:
    loading = _said("loading data takes {} of the steps", data, "operators")
    slept = sum(waits.values())
    disk = waits.get("disk", 0.0)
    pressed = seen.pressure.get("io:some", NOTHING)
    children = seen.children_cores or NOTHING
    on_disk = disk >= max(_CLEAR, slept / 2) or (pressed.value >= NOTABLE and children.value < 0.5 and slept >= NOTABLE)
    if on_disk:
        waited = _said("the training thread waited for a disk {} of the time", seen.waits.get("disk"), "thread", _CLEAR)
        yield from _cause("input", "disk", data, loading, waited, *_disk_evidence(seen))
        return
    asleep = Evidence(f"the training thread slept {percent(slept, 0)} of the time meanwhile", slept, source="thread")
    ran = _said("the training thread ran {} of the time: the loading computes", seen.runs, "schedstat", 0.3)
    workers = _rate("loader processes used {}", children, "cores", "CPU time of children", 0.2)
    used = None if seen.runs else _rate("the training used {}", seen.process_cores, "cores", "CPU time", 0.0)
    yield from _cause("input", "data loader", data, loading, asleep if slept >= _CLEAR else ran, workers, used)


def _disk_evidence(seen: Occupancy) -> list[Evidence]:
    found = [
        _said("programs waited for disks {} of the time", seen.pressure.get("io:some"), "PSI", _CLEAR),
        _rate("it read {} from storage", seen.storage_read, "B/s", "/proc/PID/io", 1e5),
        _rate("it wrote {} to storage", seen.storage_written, "B/s", "/proc/PID/io", 1e5),
    ]
    return [entry for entry in found if entry is not None]


def _late_rank(run: Run) -> Evidence | None:
    """The rank that arrives last in most of the steps, from the times that the other processes recorded."""
    late = last_rank(run.rank_table()) if len(run.ranks) > 1 else None
    if late is None:
        return None
    text = f"rank {late.rank} arrives last in {percent(late.share, 0)} of the steps"
    return Evidence(text, late.share, source="ranks")


def _communication(seen: Occupancy, exposed: Estimate, late: Evidence | None) -> Iterator[Cause]:
    collectives = _said("collectives that nothing overlaps take {} of the profiled steps", exposed, "operators")
    waits = Estimate(sum(seen.waits.get(name, NOTHING).value for name in ("process", "lock")))
    slept = _said("the training thread waited for others {} of the time", waits, "thread", _CLEAR)
    used = _rate("the training used {}", seen.process_cores, "cores", "CPU time", 0.0)
    yield from _cause("communication", "collectives", exposed, collectives, slept or used, late)


def _lock(seen: Occupancy, left: dict[str, Estimate]) -> Iterator[Cause]:
    """Sleeps on a lock while other threads of the same process run; those of an operator's own threads do not count."""
    interpreter, lock = left.get("interpreter", NOTHING), left.get("lock", NOTHING)
    parallel = (seen.threads or 1) > 1 and interpreter.value < NOTABLE
    waited = interpreter if interpreter.value >= lock.value or parallel else lock
    if seen.runs is None or seen.process_cores is None:
        return
    others = Estimate(seen.process_cores.value - seen.runs.value)
    name = "interpreter lock (GIL)" if waited is interpreter else "lock"
    slept = _said(f"the training thread waited for the {name} {{}} of the time", waited, "thread")
    running = _rate("other threads of the training used {}", others, "cores", "CPU time", 0.2)
    yield from _cause("lock", name, waited, slept, running)


def _sleeping(seen: Occupancy, left: dict[str, Estimate], phases: dict[str, Estimate]) -> Iterator[Cause]:
    outside = phases.get(FRAMEWORK_OVERHEAD, NOTHING)
    nothing_runs = _said("no operator ran in {} of the profiled steps", outside, "operators", NOTABLE)
    used = _rate("the training used {}", seen.process_cores, "cores", "CPU time", 0.0)
    if seen.runs is None or seen.delayed is None:
        cores = seen.process_cores
        if cores is not None and outside.value > 0.3 and cores.value < 1 - outside.value / 2:
            yield from _cause("idle", "sleep", outside, nothing_runs, used)
        return
    timer = left.get("timer", NOTHING)
    slept = _said("the training thread slept on a timer {} of the time", timer, "thread")
    yield from _cause("idle", "sleep", timer, slept, nothing_runs, used)
    process = left.get("process", NOTHING)
    waited = _said("the training thread waited for another process or a socket {} of the time", process, "thread")
    yield from _cause("idle", "another process", process, waited, nothing_runs, used)


@dataclass(frozen=True)
class _Sums:
    """Time of a step, ns, by what limits the operators that took it; each with what it could take at the ceilings."""

    step_ns: float
    dispatch: float
    python: float
    arithmetic: float
    memory: float
    shares: dict[str, Estimate]  # of the step in operators of each limit
    arithmetic_best: float
    memory_best: float
    unknown: float
    calls: float
    farthest: tuple[str, float, float] | None  # operator with the most to gain, its time, and at the ceilings
    doubt: float  # of the time of an operator: what was calibrated away without a known cause, relative


def _work(
    run: Run, seen: Occupancy, phases: dict[str, Estimate], busiest: float | None
) -> tuple[list[Cause], str, tuple[str, ...]]:
    """What the time is spent on in which the training runs; else why that cannot be told, and what would tell."""
    if run.step_times.is_empty:
        return [], "no operator was profiled", ("profile steps: --record adaptive or all, for at least 30 steps",)
    limits = ceilings_of(run)
    if busiest is not None:
        return _accelerated(run, seen, limits, busiest)
    outside = phases.get(FRAMEWORK_OVERHEAD, NOTHING)
    asleep = 0.0 if seen.runs is None else max(seen.asleep - phases.get("data", NOTHING).value, 0.0)
    if run.framework in WORKS_ELSEWHERE:  # it sleeps while operators run
        asleep = max(asleep - (1 - outside.value), 0.0)
    python = Estimate(max(outside.value - asleep - (seen.held or NOTHING).value * outside.value, 0.0))
    if limits is None:
        ran = _said("the training thread ran {} of the time", seen.runs, "schedstat", 0.6)
        idle = _said("no operator ran in {} of the profiled steps", outside, "operators")
        causes = [*_cause("overhead", "Python", python, idle, ran, least=_LARGEST)]
        if run.framework != "torch":
            return causes, why_no_ceilings(run), ()
        return causes, why_no_ceilings(run), (would_tell(run),)
    sums = _sums(run, limits, python.value)
    reached = [*_device_bound(sums)]
    causes = [*_overhead(sums, limits), *reached, *(() if reached else _kernels(sums, seen))]
    kernels = (sums.arithmetic + sums.memory + sums.unknown) / sums.step_ns
    best = (sums.arithmetic_best + sums.memory_best) / sums.step_ns
    if sums.unknown > 0.5 * sums.step_ns:
        unknown = percent(sums.unknown / sums.step_ns, 0)
        return causes, f"operators whose FLOPs and bytes are not known take {unknown} of the step", ()
    why = (
        f"operators take {percent(kernels, 0)} of the step, and the device could do their arithmetic and traffic "
        f"in {percent(best, 0)} of it: neither ceiling is near"
    )
    return causes, why, ("the roofline and the operators' share of the attainable show which are far from it",)


def _sums(run: Run, limits: Ceilings, python: float) -> _Sums:
    rows = attainable(run, limits).filter(~pl.col("phase").is_in(["data", COMMUNICATION]))
    step_ns = run.step_times.step_ns
    in_python = pl.col("name").str.starts_with(MODULE_CALL) | pl.col("name").str.starts_with("Optimizer.")

    def total(column: str, *where: pl.Expr) -> float:
        return float(rows.filter(*where)[column].sum())

    dispatch, arithmetic, memory = (pl.col("limit") == name for name in ("dispatch", "arithmetic", "memory"))
    return _Sums(
        step_ns=max(step_ns, 1.0),
        dispatch=total("self_ns", dispatch, ~in_python),
        python=total("self_ns", dispatch, in_python) + python * step_ns,
        arithmetic=total("self_ns", arithmetic),
        memory=total("self_ns", memory),
        shares=_shares(run, rows),
        arithmetic_best=total("attainable_ns", arithmetic),
        memory_best=total("attainable_ns", memory),
        unknown=total("self_ns", pl.col("limit").is_null()),
        calls=total("calls"),
        farthest=_farthest(rows),
        doubt=2 * run.step_times.uneven,
    )


def _shares(run: Run, rows: pl.DataFrame) -> dict[str, Estimate]:
    """Share of the profiled steps in operators of each limit, with Student's interval over the steps."""
    times = run.step_times
    steps = pl.DataFrame({"step": times.steps.cast(pl.Int64)})
    limits = rows.select("phase", "module", "name", "limit").drop_nulls("limit")
    table = times.table.filter(pl.col("device") == CPU).join(limits, on=["phase", "module", "name"])
    found = {}
    for (limit,), part in table.group_by("limit"):
        summed = steps.join(part.group_by("step").agg(pl.col("self_ns").sum()), on="step", how="left").fill_null(0)
        step_share = summed["self_ns"].to_numpy() / max(times.step_ns, 1.0)
        mean, low, high = mean_interval(step_share)
        found[str(limit)] = Estimate(mean) if np.isnan(low) else Estimate(mean, low, high).clipped()
    return found


def _overhead(sums: _Sums, limits: Ceilings) -> Iterator[Cause]:
    """Time in calls that compute nothing: how many there are and cost here, and how little the rest would need."""
    calls_take = sums.shares.get("dispatch", NOTHING)
    outside = max((sums.dispatch + sums.python) / sums.step_ns - calls_take.value, 0.0)
    bounds = (None if end is None else end + outside for end in (calls_take.low, calls_take.high))
    share = Estimate(calls_take.value + outside, *bounds).clipped()
    name = "dispatch" if sums.dispatch >= sums.python else "Python"
    least_ns = sums.calls * limits.op_ns
    calls = Evidence(
        f"a step makes {number(sums.calls)} calls, and one costs {duration(limits.op_ns)} at least on this device: "
        f"{duration(least_ns)} of {duration(sums.step_ns)}",
        least_ns / sums.step_ns, source="operators, ceilings",
    )  # fmt: skip
    needed = (sums.arithmetic_best + sums.memory_best) / sums.step_ns
    little = Evidence(
        f"the device could do the arithmetic and traffic of the step in {percent(needed, 0)} of its time",
        needed, source="ceilings",
    )  # fmt: skip
    spent = _said("dispatch, autograd and Python take {} of the profiled steps", share, "operators")
    if needed < 0.5:
        yield from _cause("overhead", name, share, spent, calls, little, least=_LARGEST)


def _device_bound(sums: _Sums) -> Iterator[Cause]:
    """Operators near a ceiling of the device: their time, and the share of it that the ceiling alone explains."""
    kinds: tuple[tuple[Bound, str, str, float, float], ...] = (
        ("compute", "arithmetic", "arithmetic", sums.arithmetic, sums.arithmetic_best),
        ("memory-bandwidth", "memory traffic", "memory", sums.memory, sums.memory_best),
    )
    for bound, name, limit, spent_ns, best_ns in kinds:
        share, reached = sums.shares.get(limit, NOTHING), best_ns / max(spent_ns, 1.0)
        if reached < _REACHED:
            continue
        spent = _said(f"operators limited by {name} take {{}} of the profiled steps", share, "operators")
        near = Evidence(
            f"they reach {percent(min(reached, 1.0), 0)} of what this device does with calls of their size",
            min(reached, 1.0), source="ceilings",
        )  # fmt: skip
        clear = sums.doubt <= _DOUBTFUL and reached >= _REACHED * (1 + sums.doubt)
        yield from _cause(bound, name, share, spent, near, least=_LARGEST, clear=clear)


def _kernels(sums: _Sums, seen: Occupancy) -> Iterator[Cause]:
    """Operators that compute, and stay far below the ceilings of calls of their size: other kernels may be faster."""
    found = [sums.shares[limit] for limit in ("arithmetic", "memory") if limit in sums.shares]
    ends = [(entry.value if entry.low is None else entry.low, entry.value if entry.high is None else entry.high)
            for entry in found]  # fmt: skip
    share = Estimate(sum(entry.value for entry in found), sum(low for low, _ in ends), sum(high for _, high in ends))
    best = (sums.arithmetic_best + sums.memory_best) / sums.step_ns
    if sums.farthest is None or best >= _REACHED * share.value:
        return
    name, self_ns, best_ns = sums.farthest
    spent = _said("operators that compute take {} of the profiled steps", share, "operators")
    needed = Evidence(f"at the ceilings of this device they would take {percent(best, 0)}", best, source="ceilings")
    farthest = Evidence(
        f"farthest from it is {name}, {duration(self_ns)} where {duration(best_ns)} is attainable",
        self_ns / best_ns, source="ceilings",
    )  # fmt: skip
    ran = _said("the training thread ran {} of the time", seen.runs, "schedstat", 0.6)
    clear = sums.doubt <= _DOUBTFUL and best * (1 + sums.doubt) <= _REACHED * share.value
    yield from _cause(
        "kernels", "far below the ceilings", share.clipped(), spent, needed, farthest, ran, least=_LARGEST, clear=clear
    )


def _farthest(rows: pl.DataFrame) -> tuple[str, float, float] | None:
    """The operator with the most to save at the ceilings: its name, and its time measured and attainable, ns a step."""
    computing = rows.filter(pl.col("limit").is_in(["arithmetic", "memory"]) & (pl.col("attainable_ns") > 0))
    sums = computing.group_by("name", maintain_order=True).agg(pl.col("self_ns").sum(), pl.col("attainable_ns").sum())
    if sums.is_empty():
        return None
    name, self_ns, best_ns = sums.sort(pl.col("self_ns") - pl.col("attainable_ns"), descending=True).row(0)
    return str(name), float(self_ns), float(best_ns)


def _accelerated(
    run: Run, seen: Occupancy, limits: Ceilings | None, busy: float
) -> tuple[list[Cause], str, tuple[str, ...]]:
    """The CPU only asks here: an idle accelerator waits to be asked, a busy one is held against its own ceilings."""
    used = _said("its kernels run in {} of the profiled steps", Estimate(busy), "operators")
    if busy < _IDLE:
        ran = _said("the training thread ran {} of the time", seen.runs, "schedstat", 0.5)
        ran = ran or _rate("the training used {}", seen.process_cores, "cores", "CPU time", 0.5)
        why = f"the accelerator runs kernels in {percent(busy, 0)} of it, and what the CPU did meanwhile is not known"
        return [*_cause("overhead", "dispatch", Estimate(1 - busy), used, ran)], why, ()
    if limits is None:
        return [], why_no_ceilings(run, "this accelerator"), (would_tell(run),)
    if limits.device.partition(":")[0] == CPU:
        return [], "the ceilings of this accelerator were not measured", (would_tell(run),)
    steps = run.self_times["step"].n_unique()
    cpu_ops = run.self_times.filter(pl.col("device") == CPU)
    busy_s = busy * float(profiled_steps(run)["length_ns"].mean() or 1.0) / 1e9  # type: ignore[arg-type]
    causes: list[Cause] = []
    kinds: tuple[tuple[Bound, str, str, str, float], ...] = (
        ("compute", "arithmetic", "flops", "FLOP/s", limits.peak_flops_per_s),
        ("memory-bandwidth", "memory traffic", "bytes", "B/s", limits.peak_bytes_per_s),
    )
    for bound, name, column, unit, peak in kinds:
        rate = float(cpu_ops[column].sum()) / steps / busy_s
        near = Evidence(f"its kernels reach {si(rate, unit)} of {si(peak, unit)}", rate / peak, source="ceilings")
        if rate >= _REACHED * peak and busy >= _BUSY:
            causes += _cause(bound, name, Estimate(busy), used, near)
    return causes, "the accelerator's kernels are near neither of its ceilings", ()
