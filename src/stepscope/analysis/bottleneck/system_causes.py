"""Causes by which the system takes time from a training: memory, cores, clocks."""

from __future__ import annotations

from collections.abc import Iterator

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
from stepscope.analysis.device.throttling import LEAST_RUNNING, SLOWER, CoreClock
from stepscope.analysis.estimate import Estimate
from stepscope.units import number, percent, plural

CROWDED = "more threads than cores"  # the training's own

_FAULTS, _SWAPPED = 10.0, 1e5  # a second: faults that read a disk; bytes to and from swap
_PAGE, _MOSTLY = 4096, 0.5  # B that a fault reads at least; of what the training read
_SATURATED = 0.85  # of the cores that it may use


def causes_of_system(seen: Occupancy) -> Iterator[Cause]:
    yield from memory_capacity(seen)
    yield from _starvation_causes(seen)
    yield from _throttling_cause(seen)


def memory_capacity(seen: Occupancy) -> Iterator[Cause]:
    """Swap and reclaim: pressure or traffic of the machine, and pages or waits of this very process."""
    machine = [
        evidence_above("the machine stalled for memory {} of the time", seen.pressure.get("memory:some"), "PSI", CLEAR),
        rate_evidence("{} went to and from swap", seen.swapped, "B/s", "/proc/vmstat", _SWAPPED),
        rate_evidence(
            "programs took back {} of memory before they could go on", seen.reclaimed, "B/s", "/proc/vmstat", 1e6
        ),
        rate_evidence("the memory limit of its cgroup was hit {}", seen.limit_hits, "times/s", "cgroup", 1.0),
    ]
    own = [
        rate_evidence(
            "the training had {} that read a disk", seen.major_faults, "page faults/s", "/proc/PID/stat", _FAULTS
        ),
        evidence_above("the training thread waited for pages {} of the time", seen.waits.get("disk"), "thread", CLEAR),
        evidence_above("all programs waited for storage {} of the time", _page_fault_stalls(seen), "PSI", CLEAR),
    ]
    known_machine, known_own = ([entry for entry in side if entry is not None] for side in (machine, own))
    if not known_machine or not known_own:
        return
    stalled = [seen.pressure.get("memory:some", NOTHING), seen.waits.get("disk", NOTHING), _page_fault_stalls(seen)]
    share = max(stalled, key=lambda entry: entry.value)
    yield from notable_cause("memory-capacity", "swap and reclaim", share, *known_machine, *known_own)


def _page_fault_stalls(seen: Occupancy) -> Estimate:
    """Time in which everything waited for storage, where page faults of the training are what was read from it."""
    stalled, faults, read = seen.pressure.get("io:full"), seen.major_faults, seen.storage_read
    waits = seen.waits.get("disk", NOTHING).value >= CLEAR  # else it is another program that waits
    if stalled is None or faults is None or read is None or not waits:
        return NOTHING
    if faults.value < max(_FAULTS, _MOSTLY * read.value / _PAGE):
        return NOTHING
    return stalled if stalled.value <= seen.off_core_share else Estimate(seen.off_core_share)


def _starvation_causes(seen: Occupancy) -> Iterator[Cause]:
    """Time in which the training was ready and did not get a core: by a quota, its own affinity, or background load."""
    held = seen.starved
    if held is None:
        yield from _starved_by_utilisation(seen)
        return
    queue = evidence_above("the training thread was waiting for a CPU core {} of the time", held, "schedstat")
    quota = _quota_evidence(seen)
    if quota:
        yield from notable_cause("cpu-starved", "CPU quota", held, *quota, queue)
        return
    pinned = _affinity_evidence(seen, held)
    if pinned:
        without = 1 - (seen.allowed or 1) / (seen.threads or seen.cores)  # a core, of threads that compute all the time
        lost = held if without <= held.value else Estimate(without)
        yield from notable_cause("cpu-starved", "affinity", lost, *pinned, queue if held.value >= CLEAR else None)
        return
    stolen = seen.steal_cores
    if stolen is not None and stolen.value >= NOTABLE and (seen.background_cores or NOTHING).value < OTHERS:
        by_host = rate_evidence("the hypervisor took {}", stolen, "cores", "/proc/stat", NOTABLE)
        yield from notable_cause(
            "cpu-starved", "hypervisor", Estimate(max(stolen.value / seen.cores, held.value)), by_host, queue
        )
        return
    crowded, others = _oversubscription_evidence(seen), _load_evidence(seen)
    name = CROWDED if crowded else "background load"  # of both, which one it waits for is not told apart
    alone = not crowded or (seen.background_cores or NOTHING).value < OTHERS
    yield from notable_cause("cpu-starved", name, held, crowded, queue, *others, clear=alone)


def _oversubscription_evidence(seen: Occupancy) -> Evidence | None:
    """More threads that compute than cores: at the end of every operator they wait for each other."""
    cores = min(seen.cores, int(seen.allowed or seen.cores))
    if seen.threads is None or seen.threads <= cores:
        return None
    return Evidence(f"it computes with {seen.threads} threads on {plural(cores, 'core')}", seen.threads, source="torch")


def _load_evidence(seen: Occupancy) -> list[Evidence]:
    found = [
        rate_evidence("background CPU load of {}", seen.background_cores, "cores", "core and process times", OTHERS),
        evidence_above("programs waited for a core {} of the time", seen.pressure.get("cpu:some"), "PSI", QUEUED),
    ]
    return [entry for entry in found if entry is not None]


def _quota_evidence(seen: Occupancy) -> list[Evidence]:
    periods = evidence_above(
        "the CPU quota held the training back in {} of its periods", seen.throttled_periods, "cgroup", 0.1
    )
    if periods is None:
        return []
    allowed = seen.quota and Evidence(f"the quota is {number(seen.quota)} cores", seen.quota, source="cgroup")
    return [periods, *([allowed] if allowed else [])]


def _affinity_evidence(seen: Occupancy, held: Estimate) -> list[Evidence]:
    """Fewer cores allowed than there are, all of them used by this training, and threads that wait for one."""
    allowed, used = seen.allowed, seen.process_cores
    if allowed is None or used is None or allowed >= seen.cores or used.value < _SATURATED * allowed:
        return []
    if held.value < CLEAR and (seen.threads or seen.cores) <= allowed:
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
    got = rate_evidence(
        f"the training got {{}} of the {wanted} that its threads ask for", used, "cores", "CPU time", 0.0
    )
    yield from notable_cause("cpu-starved", "background load", lost, got, *_load_evidence(seen), least=0.3)


def _throttling_cause(seen: Occupancy) -> Iterator[Cause]:
    """A clock below its maximum while the thread runs, and a sign that something holds it there, or that it fell."""
    clock = seen.clock
    if clock is None or clock.share.value > SLOWER or (seen.runs is not None and seen.runs.value < LEAST_RUNNING):
        return
    low, high = (None if end is None else 1 - end for end in (clock.share.high, clock.share.low))
    slow = evidence_above("the fastest core's clock was {} of its maximum", clock.share, "cpufreq")
    signs = [Evidence(sign, None, source="limits and flags") for sign in (*clock.acting, *clock.limits)]
    lost = Estimate(1 - clock.share.value, low, high).times(seen.host_alone)
    yield from notable_cause("throttled", "clock", lost, slow, *signs, _clock_drop_evidence(clock))


def _clock_drop_evidence(clock: CoreClock) -> Evidence | None:
    if not clock.has_dropped:
        return None
    text = f"it fell from {percent(clock.first, 0)} in the first steps to {percent(clock.last, 0)} in the last"
    return Evidence(text, clock.last / clock.first, source="cpufreq")
