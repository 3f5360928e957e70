"""Causes off the core: what the system takes from a training (memory, cores, clocks), and what the training waits for.

Its own waits are for data, other ranks, a lock, a disk, or nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepscope.analysis.bottleneck.causes import (
    CLEAR,
    NOTABLE,
    Cause,
    Evidence,
    evidence_above,
    notable_cause,
    rate_evidence,
)
from stepscope.analysis.device.occupancy import NOTHING, OTHERS, QUEUED, Occupancy
from stepscope.analysis.device.throttling import CoreClock
from stepscope.analysis.estimate import Estimate
from stepscope.analysis.time.operators import FRAMEWORK_OVERHEAD
from stepscope.analysis.time.ranks import last_rank
from stepscope.runfolder import COMMUNICATION
from stepscope.units import number, percent, plural

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

CROWDED = "more threads than cores"  # the training's own

_FAULTS, _SWAPPED = 10.0, 1e5  # a second: faults that read a disk; bytes to and from swap
_PAGE, _MOSTLY = 4096, 0.5  # B that a fault reads at least; of what the training read
_SATURATED = 0.85  # of the cores that it may use


def causes_of_system(usage: Occupancy) -> Iterator[Cause]:
    yield from memory_capacity(usage)
    yield from _starvation_causes(usage)
    yield from _throttling_cause(usage)
    yield from _gpu_throttling_cause(usage)


def memory_capacity(usage: Occupancy) -> Iterator[Cause]:
    """Swap and reclaim: pressure or traffic of the machine, and pages or waits of this very process."""
    machine = [
        evidence_above(
            "the machine stalled for memory {} of the time", usage.pressure.get("memory:some"), "PSI", CLEAR
        ),
        rate_evidence("{} went to and from swap", usage.swapped, "B/s", "/proc/vmstat", _SWAPPED),
        rate_evidence(
            "programs took back {} of memory before they could go on", usage.reclaimed, "B/s", "/proc/vmstat", 1e6
        ),
        rate_evidence("the memory limit of its cgroup was hit {}", usage.limit_hits, "times/s", "cgroup", 1.0),
    ]
    own = [
        rate_evidence(
            "the training had {} that read a disk or swap",
            usage.major_faults,
            "page faults/s",
            "/proc/PID/stat",
            _FAULTS,
        ),
        evidence_above("the training thread waited for pages {} of the time", usage.waits.get("disk"), "thread", CLEAR),
        evidence_above("all programs waited for storage {} of the time", _page_fault_stalls(usage), "PSI", CLEAR),
    ]
    known_machine, known_own = ([entry for entry in side if entry is not None] for side in (machine, own))
    if not known_machine or not known_own:
        return
    stalled = [usage.pressure.get("memory:some", NOTHING), usage.waits.get("disk", NOTHING), _page_fault_stalls(usage)]
    share = max(stalled, key=lambda entry: entry.value)
    yield from notable_cause("memory-capacity", "swap and reclaim", share, *known_machine, *known_own)


def _page_fault_stalls(usage: Occupancy) -> Estimate:
    """Time in which everything waited for storage, where page faults of the training are what was read from it."""
    stalled, faults, read = usage.pressure.get("io:full"), usage.major_faults, usage.storage_read
    waits = usage.waits.get("disk", NOTHING).value >= CLEAR  # else it is another program that waits
    if stalled is None or faults is None or read is None or not waits:
        return NOTHING
    if faults.value < max(_FAULTS, _MOSTLY * read.value / _PAGE):
        return NOTHING
    return stalled if stalled.value <= usage.off_core_share else Estimate(usage.off_core_share)


def _starvation_causes(usage: Occupancy) -> Iterator[Cause]:
    """Time in which the training was ready and did not get a core: by a quota, its own affinity, or background load."""
    starvation = usage.starved
    if starvation is None:
        yield from _starved_by_utilisation(usage)
        return
    queue = evidence_above("the training thread was waiting for a CPU core {} of the time", starvation, "schedstat")
    quota = _quota_evidence(usage)
    if quota:
        yield from notable_cause("cpu-starved", "CPU quota", starvation, *quota, queue)
        return
    pinned = _affinity_evidence(usage, starvation)
    if pinned:
        without = 1 - (usage.allowed or 1) / (
            usage.threads or usage.cores
        )  # a core, of threads that compute all the time
        lost = starvation if without <= starvation.value else Estimate(without)
        yield from notable_cause("cpu-starved", "affinity", lost, *pinned, queue if starvation.value >= CLEAR else None)
        return
    stolen = usage.steal_cores
    busy = usage.cores if usage.busy_cores is None else max(usage.busy_cores, 1.0)
    stolen_share = 0.0 if stolen is None else stolen.value / (busy + stolen.value)  # of the time of busy cores
    explains = stolen_share >= NOTABLE or stolen_share >= max(CLEAR, starvation.value / 2)
    if explains and (usage.background_cores or NOTHING).value < OTHERS:
        by_host = rate_evidence("the hypervisor took {}", stolen, "cores", "/proc/stat", 0.0)
        yield from notable_cause(
            "cpu-starved", "hypervisor", Estimate(max(stolen_share, starvation.value)), by_host, queue
        )
        return
    crowded, others = _oversubscription_evidence(usage), _load_evidence(usage)
    name = CROWDED if crowded else "background load"  # of both, which one it waits for is not told apart
    alone = not crowded or (usage.background_cores or NOTHING).value < OTHERS
    yield from notable_cause("cpu-starved", name, starvation, crowded, queue, *others, clear=alone)


def _oversubscription_evidence(usage: Occupancy) -> Evidence | None:
    """More threads that compute than cores: at the end of every operator they wait for each other."""
    cores = min(usage.cores, int(usage.allowed or usage.cores))
    if usage.threads is None or usage.threads <= cores:
        return None
    return Evidence(
        f"it computes with {usage.threads} threads on {plural(cores, 'core')}", usage.threads, source="torch"
    )


def _load_evidence(usage: Occupancy) -> list[Evidence]:
    evidence = [
        rate_evidence("background CPU load of {}", usage.background_cores, "cores", "core and process times", OTHERS),
        evidence_above("programs waited for a core {} of the time", usage.pressure.get("cpu:some"), "PSI", QUEUED),
    ]
    return [entry for entry in evidence if entry is not None]


def _quota_evidence(usage: Occupancy) -> list[Evidence]:
    periods = evidence_above(
        "the CPU quota held the training back in {} of its periods", usage.throttled_periods, "cgroup", 0.1
    )
    if periods is None:
        return []
    allowed = usage.quota and Evidence(f"the quota is {number(usage.quota)} cores", usage.quota, source="cgroup")
    return [periods, *([allowed] if allowed else [])]


def _affinity_evidence(usage: Occupancy, starvation: Estimate) -> list[Evidence]:
    """Fewer cores allowed than there are, all of them used by this training, and threads that wait for one."""
    allowed, used = usage.allowed, usage.process_cores
    if allowed is None or used is None or allowed >= usage.cores or used.value < _SATURATED * allowed:
        return []
    if starvation.value < CLEAR and (usage.threads or usage.cores) <= allowed:
        return []
    threads = "" if usage.threads is None else f", for {plural(usage.threads, 'thread')}"
    may = Evidence(f"it may run on {number(allowed)} of {usage.cores} cores{threads}", allowed, source="affinity")
    uses = Evidence(f"it uses {number(used.value)} cores, all that it may", used.value, used.low, used.high, "CPU time")
    return [may, uses]


def _starved_by_utilisation(usage: Occupancy) -> Iterator[Cause]:
    """Detect CPU starvation in a run without thread times: full CPU utilisation, of which the training gets little."""
    used, others = usage.process_cores, usage.background_cores
    if used is None or others is None or usage.busy_cores is None or usage.busy_cores < 0.9 * usage.cores:
        return
    demand = min(usage.threads or 1, usage.cores)
    lost = Estimate(1 - used.value / demand).clipped()
    got = rate_evidence(
        f"the training got {{}} of the {demand} that its threads ask for", used, "cores", "CPU time", 0.0
    )
    yield from notable_cause("cpu-starved", "background load", lost, got, *_load_evidence(usage), least=0.3)


def _throttling_cause(usage: Occupancy) -> Iterator[Cause]:
    """A clock below its maximum while the thread runs, and a sign that something holds it there, or that it fell."""
    clock = usage.clock
    if clock is None or not clock.is_held_down(usage.runs):
        return
    low, high = (None if end is None else 1 - end for end in (clock.share.high, clock.share.low))
    slow = evidence_above("the fastest core's clock was {} of its maximum", clock.share, "cpufreq")
    signs = [Evidence(sign, None, source="limits and flags") for sign in clock.signs]
    lost = Estimate(1 - clock.share.value, low, high).times(usage.host_alone)
    drop = _clock_drop_evidence(clock)
    yield from notable_cause("throttled", "clock", lost, slow, *signs, drop, clear=clock.is_sure)


def _gpu_throttling_cause(usage: Occupancy) -> Iterator[Cause]:
    """A GPU that says that it is slowed down while it runs kernels; its power cap alone is how it runs under load."""
    slowed, busy = usage.gpu_slowed, Estimate(1 - usage.host_alone)
    flag = evidence_above("the GPU reports a slowdown in {} of the readings", slowed, "NVML", CLEAR)
    used = evidence_above("it was busy {} of the time", busy, "operators, or its own gauge", CLEAR)
    if slowed is not None and flag is not None and used is not None:
        yield from notable_cause("throttled", "GPU clock", slowed.times(busy.value), flag, used)


def _clock_drop_evidence(clock: CoreClock) -> Evidence | None:
    if not clock.has_dropped:
        return None
    text = f"it fell from {percent(clock.first, 0)} in the first steps to {percent(clock.last, 0)} in the last"
    return Evidence(text, clock.last / clock.first, source="cpufreq")


# Waits of its own


def causes_of_waiting(
    usage: Occupancy, phases: dict[str, Estimate], elsewhere: bool, loaders: float, late: Evidence | None
) -> Iterator[Cause]:
    """Yield what the training thread waits for by itself: data, other ranks, a lock, a disk, or nothing.

    elsewhere: operators run on an accelerator, or in threads apart. The thread waits for those, and for the thread that
    backward runs in: neither is a lock or a sleep.
    loaders: the most that processes which load the data can keep it waiting, a share of the time; 0 without any. late:
    the rank that the others wait for.
    """
    data, exposed = phases.get("data", NOTHING), phases.get(COMMUNICATION, NOTHING)
    timed = () if usage.waits_for_interpreter else ("interpreter",)
    if loaders:  # what the thread waits for outside operators is their next batch, in all steps, not the profiled alone
        batch = [usage.waits[name] for name in ("process", *timed) if name in usage.waits]
        data = max((data, *batch), key=lambda share: share.value).clipped(loaders)
    waits = {name: share.value for name, share in usage.waits.items()}
    in_data = _take_from_waits(
        waits, data.value if data.value >= NOTABLE else 0.0, ("disk", "process", "timer", "lock", *timed)
    )
    yield from _data_loading_causes(usage, data, in_data)
    _take_from_waits(waits, exposed.value, ("process", "lock", "interpreter"))
    yield from _communication_cause(usage, exposed, late)
    remaining = {name: _remaining_share(usage.waits[name], value) for name, value in waits.items()}
    if not elsewhere:
        yield from _lock_cause(usage, remaining)
        yield from _sleep_causes(usage, remaining, phases)
    if not any(cause.bound == "memory-capacity" for cause in memory_capacity(usage)):
        disk = evidence_above("the training thread waited for a disk {} of the time", remaining.get("disk"), "thread")
        yield from notable_cause("storage", "disk", remaining.get("disk", NOTHING), disk, *_disk_evidence(usage))


def _take_from_waits(waits: dict[str, float], share: float, kinds: tuple[str, ...]) -> dict[str, float]:
    """Take a share of the step out of the waits, in this order, and return what was taken of each."""
    parts = {}
    for kind in kinds:
        parts[kind] = min(waits.get(kind, 0.0), share)
        share -= parts[kind]
        if kind in waits:
            waits[kind] -= parts[kind]
    return parts


def _remaining_share(share: Estimate, value: float) -> Estimate:
    """A share of which a part was taken: its bounds move with it."""
    reduction = share.value - value
    low, high = (None if end is None else max(end - reduction, 0.0) for end in (share.low, share.high))
    return Estimate(max(value, 0.0), low, high)


def _data_loading_causes(usage: Occupancy, data: Estimate, waits: dict[str, float]) -> Iterator[Cause]:
    loading = evidence_above("loading data takes {} of the steps", data, "operators")
    slept = sum(waits.values())
    disk = waits.get("disk", 0.0)
    pressed = usage.pressure.get("io:some", NOTHING)
    children = usage.children_cores or NOTHING
    on_disk = disk >= max(CLEAR, slept / 2) or (pressed.value >= NOTABLE and children.value < 0.5 and slept >= NOTABLE)
    if on_disk:
        waited = evidence_above(
            "the training thread waited for a disk {} of the time", usage.waits.get("disk"), "thread", CLEAR
        )
        yield from notable_cause("input", "disk", data, loading, waited, *_disk_evidence(usage))
        return
    asleep = Evidence(f"the training thread slept {percent(slept, 0)} of the time meanwhile", slept, source="thread")
    ran = evidence_above("the training thread ran {} of the time: the loading computes", usage.runs, "schedstat", 0.3)
    workers = rate_evidence("loader processes used {}", children, "cores", "CPU time of children", 0.2)
    used = None if usage.runs else rate_evidence("the training used {}", usage.process_cores, "cores", "CPU time", 0.0)
    yield from notable_cause("input", "data loader", data, loading, asleep if slept >= CLEAR else ran, workers, used)


def _disk_evidence(usage: Occupancy) -> list[Evidence]:
    evidence = [
        evidence_above("programs waited for disks {} of the time", usage.pressure.get("io:some"), "PSI", CLEAR),
        rate_evidence("it read {} from storage", usage.storage_read, "B/s", "/proc/PID/io", 1e5),
        rate_evidence("it wrote {} to storage", usage.storage_written, "B/s", "/proc/PID/io", 1e5),
    ]
    return [entry for entry in evidence if entry is not None]


def late_rank(run: Run) -> Evidence | None:
    """The rank that arrives last in most of the steps, from the times that the other processes recorded."""
    late = last_rank(run.rank_table()) if len(run.ranks) > 1 else None
    if late is None:
        return None
    text = f"rank {late.rank} arrives last in {percent(late.share, 0)} of the steps"
    return Evidence(text, late.share, source="ranks")


def _communication_cause(usage: Occupancy, exposed: Estimate, late: Evidence | None) -> Iterator[Cause]:
    collectives = evidence_above(
        "collectives that nothing overlaps take {} of the profiled steps", exposed, "operators"
    )
    waits = Estimate(sum(usage.waits.get(name, NOTHING).value for name in ("process", "lock")))
    slept = evidence_above("the training thread waited for others {} of the time", waits, "thread", CLEAR)
    used = rate_evidence("the training used {}", usage.process_cores, "cores", "CPU time", 0.0)
    yield from notable_cause("communication", "collectives", exposed, collectives, slept or used, late)


def _lock_cause(usage: Occupancy, remaining: dict[str, Estimate]) -> Iterator[Cause]:
    """Sleeps on a lock while other threads of the same process run; those of an operator's own threads do not count."""
    interpreter, lock = remaining.get("interpreter", NOTHING), remaining.get("lock", NOTHING)
    parallel = (usage.threads or 1) > 1 and interpreter.value < NOTABLE
    waited = interpreter if interpreter.value >= lock.value or parallel else lock
    if usage.runs is None or usage.process_cores is None:
        return
    others = Estimate(usage.process_cores.value - usage.runs.value)
    name = "interpreter lock (GIL)" if waited is interpreter and usage.waits_for_interpreter else "lock"
    slept = evidence_above(f"the training thread waited for the {name} {{}} of the time", waited, "thread")
    running = rate_evidence("other threads of the training used {}", others, "cores", "CPU time", 0.2)
    yield from notable_cause("lock", name, waited, slept, running)


def _sleep_causes(usage: Occupancy, remaining: dict[str, Estimate], phases: dict[str, Estimate]) -> Iterator[Cause]:
    outside = phases.get(FRAMEWORK_OVERHEAD, NOTHING)
    nothing_runs = evidence_above("no operator ran in {} of the profiled steps", outside, "operators", NOTABLE)
    used = rate_evidence("the training used {}", usage.process_cores, "cores", "CPU time", 0.0)
    if usage.runs is None or usage.delayed is None:
        cores = usage.process_cores
        if cores is not None and outside.value > 0.3 and cores.value < 1 - outside.value / 2:
            yield from notable_cause("idle", "wait", outside, nothing_runs, used, clear=False)
        return
    timer = remaining.get("timer", NOTHING)
    slept = evidence_above("the training thread slept on a timer {} of the time", timer, "thread")
    yield from notable_cause("idle", "sleep", timer, slept, nothing_runs, used)
    process = remaining.get("process", NOTHING)
    waited = evidence_above(
        "the training thread waited for another process or a socket {} of the time", process, "thread"
    )
    yield from notable_cause("idle", "another process", process, waited, nothing_runs, used)
