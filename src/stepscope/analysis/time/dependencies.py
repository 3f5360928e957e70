"""Dependencies between the operators of a step: its critical path, what could overlap, and what a device waits for.

What lies between units is host code. Unit B waits for A where it reads a storage that A wrote last, or writes one that
A read or wrote: `accesses` tell so of one step. Times are those of the profiled steps that ran the same units.

A step replayed with the lanes that it had takes as long as it did, since each unit keeps the delay that it began with
after all that it waits for. Other lanes then tell what could be saved: a schedule what is reached, its bound what no
order of these units goes below. Both take it that operators run as fast side by side as alone, which on cores that they
share already they do not: savings are "at most".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.analysis.device.occupancy import usable_cores
from stepscope.analysis.estimate import mean_interval, null_if_nan
from stepscope.analysis.time.idleness import IDLE, idle_causes
from stepscope.analysis.time.operators import CPU
from stepscope.analysis.time.schedule import (
    Schedule,
    Tasks,
    longest_paths_from_start,
    longest_paths_to_end,
    lower_bound_ns,
    schedule,
)
from stepscope.analysis.time.step_units import StepUnits, kernels_by_unit, units_of, waits_for_device
from stepscope.analysis.time.steps import shown_steps
from stepscope.arrays import Flags, Floats, Ints
from stepscope.runfolder import RunReader

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

HOST, WORK = "host", "work"
NO_ACCESSES = "no step was profiled with the shapes and allocations that tell which operator needs which"
NO_STEP = "no profiled step ran the operators of the step whose tensors were noted"
_MOST_STEPS, _MOST_READ = 12, 60  # whose times are taken, and that are read to find these
_MOST_AHEAD = 100  # steps: so far a host may run ahead of its accelerator
UNITS: dict[str, Any] = {
    **dict.fromkeys(("name", "module", "phase", "device"), pl.String),
    **dict.fromkeys(("start_ns", "duration_ns"), pl.Float64),
    "after": pl.List(pl.Int64),
    "critical": pl.Boolean,
}
SPANS = {"schedule": pl.String, "lane": pl.String, "phase": pl.String, "t0_ns": pl.Float64, "t1_ns": pl.Float64}
OVERLAPS = {"what": pl.String, "lanes": pl.Int64, "reached_ns": pl.Float64, "reached_low_ns": pl.Float64,
            "reached_high_ns": pl.Float64, "most_ns": pl.Float64, "share": pl.Float64, "steps": pl.Int64}  # fmt: skip
DATA_BESIDE = "data loading beside the rest"
HOST_BESIDE = "host code beside operators"
NO_SYNC = "no waiting of the host for the accelerator"
BRANCHES = "independent operators side by side, host code beside them"


@dataclass(frozen=True)
class Dependencies:
    """Dependencies of the units of a step, and what follows from them; `why`: what is missing where there is nothing.

    units: name, module, phase, device, start_ns, duration_ns, after (rows that it waits for), critical.
    overlap: what could run side by side: saving of a schedule with its 95 % CI over steps, and the most that any order
    saves, ns a step; share: `most_ns` of the step. idle: device, cause, ns a step, share. timeline: recorded and
    rescheduled units. critical_path_ns: along data alone, without host code.
    """

    units: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=UNITS))
    overlap: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=OVERLAPS))
    idle: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=IDLE))
    timeline: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=SPANS))
    step_ns: float = 0.0
    critical_path_ns: float = 0.0
    work_ns: float = 0.0
    why: str = ""


def dependencies(run: Run) -> Dependencies:
    """Return the dependencies of this run's step, ns of a step as it runs unprofiled."""
    accesses = run.accesses
    if accesses.is_empty():
        return Dependencies(why=NO_ACCESSES)
    noted = _units_of_step(run, int(accesses["step"][0]))
    if noted is None:
        return Dependencies(why=NO_STEP)
    steps = _same_steps(run, noted)
    edges = data_edges(noted, accesses)
    middle = sorted(steps, key=lambda step: step.length_ns)[len(steps) // 2]
    step_ns = run.step_times.step_ns or middle.length_ns
    scale = step_ns / middle.length_ns
    path, own = Tasks(), _work_ns(middle)
    for unit, before in enumerate(edges):
        path.add(float(own[unit]), WORK, before)
    return Dependencies(
        units=_unit_frame(middle, edges, path, scale),
        overlap=_overlap_table(steps, edges, step_ns, usable_cores(run)),
        idle=idle_causes(run, steps, step_ns),
        timeline=_timeline(middle, edges, scale, usable_cores(run)),
        step_ns=step_ns,
        critical_path_ns=float(longest_paths_to_end(path).max(initial=0.0)) * scale,
        work_ns=sum(path.duration) * scale,
    )


def _work_ns(units: StepUnits) -> Floats:
    """Time of each unit as work: of one that launched kernels, these have it."""
    own = units.t1 - units.t0
    launching = np.unique(units.launched_by[units.launched_by >= 0])
    own[launching] = 0.0
    return own


# Units of a step


def _units_of_step(run: RunReader, step: int) -> StepUnits | None:
    ops = run.scan_ops().filter(pl.col("step") == step).collect()
    span = run.steps.filter(pl.col("step") == step)
    if ops.is_empty() or span.is_empty():
        return None
    t0_ns = int(span["t0_ns"][0])
    units = units_of(ops, t0_ns, int(span["t1_ns"][0]))
    before = run.steps.filter(pl.col("step").cast(pl.Int64) == step - 1, "recorded")
    if units is None or before.is_empty() or not units.kernel.any():
        return units
    earlier = run.scan_ops().filter(
        pl.col("step").cast(pl.Int64).is_between(step - _MOST_AHEAD, step - 1),
        pl.col("device").cast(pl.String) != CPU,
        pl.col("t1_ns") > t0_ns,
    )
    times = (pl.col(f"{end}_ns").cast(pl.Float64).alias(end) - t0_ns for end in ("t0", "t1"))
    return replace(units, earlier=earlier.select(pl.col("device").cast(pl.String), *times).collect())


def _same_steps(run: RunReader, noted: StepUnits) -> list[StepUnits]:
    """The first profiled steps that ran the units of the one that was noted; that one alone where no other did."""
    matches = []
    for step in shown_steps(run)["step"].head(_MOST_READ).to_list():
        units = _units_of_step(run, step)
        if units is not None and units.signature == noted.signature:
            matches.append(units)
        if len(matches) == _MOST_STEPS:
            break
    return matches or [noted]


def data_edges(units: StepUnits, accesses: pl.DataFrame) -> list[list[int]]:
    """Return for each unit the earlier ones that it waits for; kernels wait for those of the units before."""
    count = len(units.name)
    reads: list[dict[int, None]] = [{} for _ in range(count)]
    writes: list[dict[int, None]] = [{} for _ in range(count)]
    rows = accesses.select("row", "storage", "written").rows()
    for row, storage, written in rows:
        unit = int(units.row_unit[row]) if row < len(units.row_unit) else -1
        # What a custom function reads is noted of it alone: any of its operators may have read it.
        for of in [unit] if unit >= 0 else units.inside.get(row, ()):
            (writes if written else reads)[of][storage] = None
    last_writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    edges: list[list[int]] = [[] for _ in range(count)]
    kernels = kernels_by_unit(units)
    for unit in range(count):
        before: dict[int, None] = {}
        for storage in (*reads[unit], *writes[unit]):
            if storage in last_writer:
                before[last_writer[storage]] = None
        for storage in writes[unit]:
            before.update(dict.fromkeys(readers.get(storage, ())))
        before.pop(unit, None)
        edges[unit] = [earlier for earlier in before if units.lane[earlier].startswith("cpu:")]
        for storage in reads[unit]:
            readers.setdefault(storage, []).append(unit)
        for storage in writes[unit]:
            last_writer[storage], readers[storage] = unit, []
    for unit, launched in kernels.items():  # data are where the kernels are
        needed = [kernels[earlier][-1] for earlier in edges[unit] if earlier in kernels]
        edges[launched[0]] = [*needed, unit]
        for earlier, later in pairwise(launched):
            edges[later] = [earlier]
    return edges


# Replay, and other schedules


def replay_tasks(units: StepUnits, beside: Flags | None = None, waits: bool = True) -> tuple[Tasks, Ints]:
    """Return the tasks of a step with the order and the delays that it had, and the task of each unit.

    beside: units that are taken out of the order of the host. waits: whether the host waits for kernels where it did.
    """
    tasks, of_unit = Tasks(), np.full(len(units.name), -1, dtype=np.int64)
    kernels = kernels_by_unit(units)
    ended: dict[str, float] = {}  # of a lane: when its last task ended, as recorded
    last: dict[str, int] = {}
    reached, final = 0.0, -1  # of the host: its last unit, in any thread
    host = [unit for unit in range(len(units.name)) if units.lane[unit].startswith("cpu:")]
    for unit in host:
        lane, t0, t1 = units.lane[unit], float(units.t0[unit]), float(units.t1[unit])
        is_beside = beside is not None and bool(beside[unit])
        before = [last[lane]] if lane in last else []
        work_end = ended.get(lane, 0.0)
        if reached <= t0 and final >= 0:  # another thread has handed over
            before.append(final)
            work_end = max(work_end, reached)
        gap = tasks.add(max(t0 - work_end, 0.0), HOST, before)
        end, work, needs = t1, t1 - t0, [gap]
        for kernel in kernels.get(unit, ()):
            stream = units.lane[kernel]
            free = ended.get(stream, 0.0)
            follows = [last[stream]] if stream in last else []
            begins = float(units.t0[kernel])
            delay = tasks.add(max(begins - max(free, t0), 0.0), (stream, "delay"), [gap, *follows])
            of_unit[kernel] = last[stream] = tasks.add(float(units.t1[kernel]) - begins, stream, [delay])
            ended[stream] = float(units.t1[kernel])
        launched = kernels.get(unit, ())
        if launched and waits and waits_for_device(units, unit, launched):
            needs.append(int(of_unit[launched[-1]]))
            work = max(t1 - float(units.t1[launched[-1]]), 0.0)
        elif launched and not waits and waits_for_device(units, unit, launched):
            work = max(t1 - float(units.t1[launched[-1]]), 0.0)
        task = tasks.add(0.0 if is_beside else work, HOST, needs)
        of_unit[unit], ended[lane], last[lane] = task, end, task
        if end >= reached:
            reached, final = end, task
    tasks.add(max(units.length_ns - reached, 0.0), HOST, [] if final < 0 else [final])
    return tasks, of_unit


def earliest_end_ns(tasks: Tasks) -> float:
    """Return when the last task ends where each begins as soon as all that it waits for has ended."""
    return float((longest_paths_from_start(tasks) + np.array(tasks.duration)).max(initial=0.0))


def tasks_with_host(units: StepUnits, edges: list[list[int]]) -> Tasks:
    """Return the tasks of a step on a CPU whose operators a queue takes, while host code goes on in its order.

    Where the host needs a number (`aten::item`), it waits for it.
    """
    tasks, of_unit = Tasks(), np.full(len(units.name), -1, dtype=np.int64)
    code, reached = -1, 0.0
    needs: list[int] = []
    for unit in range(len(units.name)):
        before = ([code] if code >= 0 else []) + needs
        code = tasks.add(max(float(units.t0[unit]) - reached, 0.0), HOST, before)
        reached = max(reached, float(units.t1[unit]))
        after = [code, *(int(of_unit[earlier]) for earlier in edges[unit] if of_unit[earlier] >= 0)]
        of_unit[unit] = tasks.add(float(units.t1[unit] - units.t0[unit]), WORK, after)
        needs = [int(of_unit[unit])] if "aten::item" in units.name[unit] or units.phase[unit] == "data" else []
    tasks.add(max(units.length_ns - reached, 0.0), HOST, ([code] if code >= 0 else []) + needs)
    return tasks


def _overlap_table(steps: list[StepUnits], edges: list[list[int]], step_ns: float, cores: int) -> pl.DataFrame:
    savings: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for units in steps:
        scale = step_ns / units.length_ns
        for what, lanes, reached, most in _savings(units, edges, cores):
            savings.setdefault((what, lanes), []).append((reached * scale, most * scale))
    rows = []
    for (what, lanes), pairs in savings.items():
        values = np.array(pairs)
        mean, low, high = mean_interval(values[:, 0])
        most = float(values[:, 1].mean())
        ends = (null_if_nan(max(low, 0.0)), null_if_nan(high))
        rows.append((what, lanes, mean, *ends, most, most / step_ns, len(pairs)))
    return pl.DataFrame(rows, schema=OVERLAPS, orient="row")


def _savings(units: StepUnits, edges: list[list[int]], cores: int) -> Iterator[tuple[str, int, float, float]]:
    """Yield what could overlap, on how many lanes, and what a schedule and any order at all would save, ns."""
    whole = units.length_ns
    kernel = units.kernel
    loads = np.array([phase == "data" for phase in units.phase]) & ~kernel
    loading = float((units.t1 - units.t0)[loads].sum())
    if loading > 0:
        without_loading = earliest_end_ns(replay_tasks(units, beside=loads)[0])
        saved = whole - max(without_loading, loading)  # the next step's data are loaded meanwhile
        yield DATA_BESIDE, 1, max(saved, 0.0), min(loading, whole - loading)
    if kernel.any():
        free = earliest_end_ns(replay_tasks(units, waits=False)[0])
        own, lane_of = units.t1 - units.t0, np.array(units.lane)
        busiest = max(float(own[lane_of == lane].sum()) for lane in set(lane_of[kernel]))
        yield NO_SYNC, 1, max(whole - free, 0.0), max(whole - busiest, 0.0)
        return
    tasks = tasks_with_host(units, edges)
    queue = schedule(tasks, {HOST: 1, WORK: 1}, in_order=True).length_ns
    yield HOST_BESIDE, 1, max(whole - queue, 0.0), max(whole - lower_bound_ns(tasks, {HOST: 1, WORK: 1}), 0.0)
    for lanes in sorted({2, max(cores, 2)}):
        groups = {HOST: 1, WORK: lanes}
        length = min(queue, schedule(tasks, groups).length_ns)
        yield BRANCHES, lanes, max(whole - length, 0.0), max(whole - lower_bound_ns(tasks, groups), 0.0)


# Frames


def _unit_frame(units: StepUnits, edges: list[list[int]], path: Tasks, scale: float) -> pl.DataFrame:
    """A row a unit; critical: on the longest way along data."""
    earliest, longest = longest_paths_from_start(path), longest_paths_to_end(path)
    whole = float(longest.max(initial=0.0))
    critical = (earliest + longest >= whole * (1 - 1e-9)) & (np.array(path.duration) > 0)
    return pl.DataFrame(
        {
            "name": units.name,
            "module": units.module,
            "phase": units.phase,
            "device": [lane.rpartition(":")[0] for lane in units.lane],
            "start_ns": units.t0 * scale,
            "duration_ns": (units.t1 - units.t0) * scale,
            "after": [sorted(before) for before in edges],
            "critical": critical,
        },
        schema=UNITS,
    )


def _timeline(units: StepUnits, edges: list[list[int]], scale: float, cores: int) -> pl.DataFrame:
    """Spans of work as recorded and as rescheduled: schedule, lane, phase, t0_ns, t1_ns."""
    frames = [_span_frame("as recorded", units.lane, units.phase, units.t0, units.t1)]
    if not units.kernel.any():
        tasks = tasks_with_host(units, edges)
        work = np.array([lane == WORK for lane in tasks.lane])
        for title, lanes, in_order in (("host beside", 1, True), ("two lanes", 2, False)):
            plan: Schedule = schedule(tasks, {HOST: 1, WORK: lanes}, in_order)
            places = [f"lane {place + 1}" for place in plan.place[work]]
            frames.append(_span_frame(title, places, units.phase, plan.start[work], plan.end[work]))
    whole = pl.concat(frames)
    return whole.with_columns(pl.col("t0_ns") * scale, pl.col("t1_ns") * scale)


def _span_frame(title: str, lanes: Sequence[str], phases: Sequence[str], t0: Floats, t1: Floats) -> pl.DataFrame:
    columns = {"schedule": [title] * len(t0), "lane": lanes, "phase": phases, "t0_ns": t0, "t1_ns": t1}
    return pl.DataFrame(columns, schema=SPANS)
