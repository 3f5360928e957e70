"""Waits of a training's own: for data, other ranks, a lock, a disk, or nothing."""

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
from stepscope.analysis.bottleneck.system_causes import memory_capacity
from stepscope.analysis.device.occupancy import NOTHING, Occupancy
from stepscope.analysis.estimate import Estimate
from stepscope.analysis.time.operators import FRAMEWORK_OVERHEAD
from stepscope.analysis.time.ranks import last_rank
from stepscope.runfolder import COMMUNICATION
from stepscope.units import percent

if TYPE_CHECKING:
    from stepscope.analysis.run import Run


def causes_of_waiting(
    seen: Occupancy, phases: dict[str, Estimate], elsewhere: bool, loaders: bool, late: Evidence | None
) -> Iterator[Cause]:
    """Yield what the training thread waits for by itself: data, other ranks, a lock, a disk, or nothing.

    elsewhere: operators run on an accelerator, or in threads apart. The thread waits for those, and for the thread that
    backward runs in: neither is a lock or a sleep.
    loaders: the data is loaded by processes of its own. late: the rank that the others wait for.
    """
    data, exposed = phases.get("data", NOTHING), phases.get(COMMUNICATION, NOTHING)
    timed = () if seen.waits_for_interpreter else ("interpreter",)
    if loaders:  # what the thread waits for outside operators is their next batch, in all steps, not the profiled alone
        batch = [seen.waits[name] for name in ("process", *timed) if name in seen.waits]
        data = max(data, *batch, key=lambda share: share.value)
    waits = {name: share.value for name, share in seen.waits.items()}
    in_data = _take_from_waits(
        waits, data.value if data.value >= NOTABLE else 0.0, ("disk", "process", "timer", "lock", *timed)
    )
    yield from _data_loading_causes(seen, data, in_data)
    _take_from_waits(waits, exposed.value, ("process", "lock", "interpreter"))
    yield from _communication_cause(seen, exposed, late)
    left = {name: _remaining_share(seen.waits[name], value) for name, value in waits.items()}
    if not elsewhere:
        yield from _lock_cause(seen, left)
        yield from _sleep_causes(seen, left, phases)
    if not any(cause.bound == "memory-capacity" for cause in memory_capacity(seen)):
        disk = evidence_above("the training thread waited for a disk {} of the time", left.get("disk"), "thread")
        yield from notable_cause("storage", "disk", left.get("disk", NOTHING), disk, *_disk_evidence(seen))


def _take_from_waits(waits: dict[str, float], share: float, kinds: tuple[str, ...]) -> dict[str, float]:
    """Take a share of the step out of the waits, in this order, and return what was taken of each."""
    taken = {}
    for kind in kinds:
        taken[kind] = min(waits.get(kind, 0.0), share)
        share -= taken[kind]
        if kind in waits:
            waits[kind] -= taken[kind]
    return taken


def _remaining_share(share: Estimate, value: float) -> Estimate:
    """A share of which a part was taken: its bounds move with it."""
    gone = share.value - value
    low, high = (None if end is None else max(end - gone, 0.0) for end in (share.low, share.high))
    return Estimate(max(value, 0.0), low, high)


def _data_loading_causes(seen: Occupancy, data: Estimate, waits: dict[str, float]) -> Iterator[Cause]:
    loading = evidence_above("loading data takes {} of the steps", data, "operators")
    slept = sum(waits.values())
    disk = waits.get("disk", 0.0)
    pressed = seen.pressure.get("io:some", NOTHING)
    children = seen.children_cores or NOTHING
    on_disk = disk >= max(CLEAR, slept / 2) or (pressed.value >= NOTABLE and children.value < 0.5 and slept >= NOTABLE)
    if on_disk:
        waited = evidence_above(
            "the training thread waited for a disk {} of the time", seen.waits.get("disk"), "thread", CLEAR
        )
        yield from notable_cause("input", "disk", data, loading, waited, *_disk_evidence(seen))
        return
    asleep = Evidence(f"the training thread slept {percent(slept, 0)} of the time meanwhile", slept, source="thread")
    ran = evidence_above("the training thread ran {} of the time: the loading computes", seen.runs, "schedstat", 0.3)
    workers = rate_evidence("loader processes used {}", children, "cores", "CPU time of children", 0.2)
    used = None if seen.runs else rate_evidence("the training used {}", seen.process_cores, "cores", "CPU time", 0.0)
    yield from notable_cause("input", "data loader", data, loading, asleep if slept >= CLEAR else ran, workers, used)


def _disk_evidence(seen: Occupancy) -> list[Evidence]:
    found = [
        evidence_above("programs waited for disks {} of the time", seen.pressure.get("io:some"), "PSI", CLEAR),
        rate_evidence("it read {} from storage", seen.storage_read, "B/s", "/proc/PID/io", 1e5),
        rate_evidence("it wrote {} to storage", seen.storage_written, "B/s", "/proc/PID/io", 1e5),
    ]
    return [entry for entry in found if entry is not None]


def late_rank(run: Run) -> Evidence | None:
    """The rank that arrives last in most of the steps, from the times that the other processes recorded."""
    late = last_rank(run.rank_table()) if len(run.ranks) > 1 else None
    if late is None:
        return None
    text = f"rank {late.rank} arrives last in {percent(late.share, 0)} of the steps"
    return Evidence(text, late.share, source="ranks")


def _communication_cause(seen: Occupancy, exposed: Estimate, late: Evidence | None) -> Iterator[Cause]:
    collectives = evidence_above(
        "collectives that nothing overlaps take {} of the profiled steps", exposed, "operators"
    )
    waits = Estimate(sum(seen.waits.get(name, NOTHING).value for name in ("process", "lock")))
    slept = evidence_above("the training thread waited for others {} of the time", waits, "thread", CLEAR)
    used = rate_evidence("the training used {}", seen.process_cores, "cores", "CPU time", 0.0)
    yield from notable_cause("communication", "collectives", exposed, collectives, slept or used, late)


def _lock_cause(seen: Occupancy, left: dict[str, Estimate]) -> Iterator[Cause]:
    """Sleeps on a lock while other threads of the same process run; those of an operator's own threads do not count."""
    interpreter, lock = left.get("interpreter", NOTHING), left.get("lock", NOTHING)
    parallel = (seen.threads or 1) > 1 and interpreter.value < NOTABLE
    waited = interpreter if interpreter.value >= lock.value or parallel else lock
    if seen.runs is None or seen.process_cores is None:
        return
    others = Estimate(seen.process_cores.value - seen.runs.value)
    name = "interpreter lock (GIL)" if waited is interpreter and seen.waits_for_interpreter else "lock"
    slept = evidence_above(f"the training thread waited for the {name} {{}} of the time", waited, "thread")
    running = rate_evidence("other threads of the training used {}", others, "cores", "CPU time", 0.2)
    yield from notable_cause("lock", name, waited, slept, running)


def _sleep_causes(seen: Occupancy, left: dict[str, Estimate], phases: dict[str, Estimate]) -> Iterator[Cause]:
    outside = phases.get(FRAMEWORK_OVERHEAD, NOTHING)
    nothing_runs = evidence_above("no operator ran in {} of the profiled steps", outside, "operators", NOTABLE)
    used = rate_evidence("the training used {}", seen.process_cores, "cores", "CPU time", 0.0)
    if seen.runs is None or seen.delayed is None:
        cores = seen.process_cores
        if cores is not None and outside.value > 0.3 and cores.value < 1 - outside.value / 2:
            yield from notable_cause("idle", "sleep", outside, nothing_runs, used)
        return
    timer = left.get("timer", NOTHING)
    slept = evidence_above("the training thread slept on a timer {} of the time", timer, "thread")
    yield from notable_cause("idle", "sleep", timer, slept, nothing_runs, used)
    process = left.get("process", NOTHING)
    waited = evidence_above(
        "the training thread waited for another process or a socket {} of the time", process, "thread"
    )
    yield from notable_cause("idle", "another process", process, waited, nothing_runs, used)
