"""Turn the trace of a window into the rows of a part of ops/, one a run of an instruction; layers by named scopes.

XLA runs instructions of a program on several threads at once, and shares one out among threads: the thread that began
it, which may go on with the next meanwhile, and regions in others, which the trace links to it. A row lasts from its
begin to the end of its last region; rows that overlap have lanes apart in place of threads. At each moment the threads
that work share its wall time evenly: that is self time, so that the self times of a step add up to the time in which
anything ran, and an instruction that waits in a queue takes none.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepscope.arrays import Ints
from stepscope.record.jax.programs import OTHER, Op, Program
from stepscope.record.ops.events import Names
from stepscope.record.ops.rows import NOT_KNOWN, StepProfile, StepSpan
from stepscope.runfolder import PHASES, Part

CLOCK = "#stepscope.clock"  # the range that ties the trace's clock to ours
_CONTINUES = "ThunkExecutor::Execute"  # what a thread runs once it has done its part: instructions that waited for it
_GIVES, _TAKES, _RETURNS = (f"ThreadpoolListener::{what}" for what in ("Record", "StartRegion", "StopRegion"))
_DEEPEST = 8  # of loops within each other, and of tasks: what lies further back has ended
_NONE = -1
SEPARATOR = "."  # between the scopes of a layer's name

Span = tuple[float, float]  # ns of the trace's clock


@dataclass(frozen=True)
class InstructionRun:
    """A run of an instruction: the spans in which threads worked on it, that of the thread which began it first."""

    program: tuple[str, int]  # name and number
    instruction: str
    work: list[Span]

    @property
    def t0(self) -> float:
        return self.work[0][0]

    @property
    def t1(self) -> float:
        return max(end for _, end in self.work)


@dataclass
class Trace:
    """A window's trace: calls in order of time, when its clock marks were, and the number of its events."""

    calls: list[InstructionRun] = field(default_factory=list)
    marks: list[float] = field(default_factory=list)
    events: int = 0


def read_trace(lines: Iterable[list[Any]]) -> Trace:
    """Read the instructions of a trace, the events of each thread, with all threads that worked on each."""
    trace, threads = Trace(), []
    for events in lines:
        trace.events += len(events)
        threads.append(_Thread(events, trace.marks))
    givers = {task: thread for thread in threads for task in thread.given}
    takers = {task: thread for thread in threads for task in thread.regions}
    for thread in threads:
        thread.calls.sort(key=lambda call: call.t0)
    for task, thread in takers.items():
        call = _call_of(task, givers)
        if call is not None:
            call.work.append(thread.worked(task))
    trace.calls = sorted((call for thread in threads for call in thread.calls), key=lambda call: call.t0)
    trace.marks.sort()
    return trace


def _call_of(task: int, givers: dict[int, _Thread]) -> InstructionRun | None:
    """The call that shared this task out; a thread that works on a task of it may have shared it further."""
    for _ in range(64):
        giver = givers.get(task)
        if giver is None:
            return None
        time = giver.given[task]
        call = giver.call_at(time)
        if call is not None:
            return call
        above = giver.region_at(time)
        if above is None or above == task:
            return None
        task = above
    return None


class _Thread:
    """Events of one thread of a trace: calls that it began, tasks that it gave to others, and that it took."""

    def __init__(self, events: list[Any], marks: list[float]) -> None:
        self.calls: list[InstructionRun] = []
        self.given: dict[int, float] = {}
        self.regions: dict[int, Span] = {}
        self._continued: list[float] = []
        begun: list[tuple[float, int]] = []  # regions that are open
        for event in events:
            name: str = event.name
            if name == _CONTINUES:
                self._continued.append(event.start_ns)
            elif name == _GIVES:
                self.given[int(dict(event.stats)["_p"])] = event.start_ns
            elif name == _TAKES:
                begun.append((event.start_ns, int(dict(event.stats)["_c"])))
            elif name == _RETURNS and begun:
                t0, task = begun.pop()
                self.regions[task] = (t0, event.start_ns)
            elif name == CLOCK:
                marks.append(event.start_ns)
            elif "::" not in name and " " not in name:
                stats: dict[str, Any] = dict(event.stats)
                if "hlo_op" in stats:
                    program = str(stats.get("hlo_module", "")), int(stats.get("program_id", 0))
                    span = event.start_ns, event.start_ns + event.duration_ns
                    self.calls.append(InstructionRun(program, str(stats["hlo_op"]), [span]))
        self._continued.sort()
        self._begun = sorted((t0, task) for task, (t0, _) in self.regions.items())

    def call_at(self, time: float) -> InstructionRun | None:
        """The innermost call that this thread was within then."""
        last = bisect_right(self.calls, time, key=lambda call: call.t0) - 1
        for place in range(last, max(last - _DEEPEST, -1), -1):
            if self.calls[place].work[0][1] >= time:
                return self.calls[place]
        return None

    def region_at(self, time: float) -> int | None:
        """The innermost task that this thread was at then."""
        last = bisect_right(self._begun, time, key=lambda begun: begun[0]) - 1
        tasks = (self._begun[place][1] for place in range(last, max(last - _DEEPEST, -1), -1))
        return next((task for task in tasks if self.regions[task][1] >= time), None)

    def worked(self, task: int) -> Span:
        """The part of a region before the thread went on with what had waited for the instruction."""
        t0, t1 = self.regions[task]
        place = bisect_right(self._continued, t0)
        return t0, min(t1, self._continued[place]) if place < len(self._continued) else t1


def offset_ns(trace: Trace, marks: list[int]) -> float:
    """Return what the trace's clock lacks to the monotonic one: the second mark of each pair is the quick one."""
    quick = trace.marks[1::2]
    if not quick or len(quick) != len(marks):
        raise ValueError(f"a trace has {len(trace.marks)} marks of the clock in place of {2 * len(marks)}")
    return float(np.median(np.array(marks) - np.array(quick)))


@dataclass(frozen=True)
class Rows:
    """The rows of a window, and per step what the plan learns from."""

    part: Part
    profiles: list[StepProfile]


def rows_of(trace: Trace, clock_ns: float, spans: list[StepSpan], programs: dict[tuple[str, int], Program]) -> Rows:
    """Convert a window: calls that begin in its steps."""
    begin = np.array([call.t0 + clock_ns for call in trace.calls])
    end = np.array([call.t1 + clock_ns for call in trace.calls])
    starts = np.array([span.t0_ns for span in spans])
    place = np.searchsorted(starts, begin, side="right") - 1
    lasts = np.array([span.t1_ns for span in spans])
    inside = np.flatnonzero((place >= 0) & (begin < lasts[np.maximum(place, 0)]))
    if len(inside) == 0:
        return Rows(Part(), [])
    chosen = inside[np.lexsort((-end[inside], begin[inside], place[inside]))]
    calls, place = [trace.calls[row] for row in chosen], place[chosen]
    t0 = np.round(begin[chosen]).astype(np.int64)
    t1 = np.clip(np.round(end[chosen]).astype(np.int64), t0, np.maximum(lasts[place], t0))
    ops = [_op_of_call(call, programs) for call in calls]
    parent = _enclosing_control_flow_rows(t0, t1, ops)
    self_ns = np.minimum(_self_times_ns([call.work for call in calls], parent), t1 - t0)
    names, layers = Names(), Names()
    columns = {
        "step": np.array([span.step for span in spans])[place],
        "t0_ns": t0,
        "t1_ns": t1,
        "self_ns": self_ns,
        "parent": _within_step(parent, place),
        "name": np.array([names.intern(op.name) for op in ops]),
        "module": np.array([_NONE if op.layer is None else layers.intern(SEPARATOR.join(op.layer)) for op in ops]),
        "phase": np.array([PHASES.index(op.phase) for op in ops]),
        "thread": _lanes(t0, t1, parent),
        "device": np.zeros(len(ops), dtype=np.int64),
        "flops": np.array([_or_unknown(op.flops) for op in ops]),
        "bytes": np.array([_or_unknown(op.bytes) for op in ops]),
    }
    texts = {"name": names.texts(), "module": layers.texts(), "phase": PHASES, "device": ["cpu"]}
    return Rows(Part(columns, texts), _profiles(calls, place, self_ns, spans))


def _op_of_call(call: InstructionRun, programs: dict[tuple[str, int], Program]) -> Op:
    program = programs.get(call.program)
    op = None if program is None else program.ops.get(call.instruction)
    return Op(call.instruction, None, OTHER, None, None) if op is None else op


def _enclosing_control_flow_rows(t0: Ints, t1: Ints, ops: list[Op]) -> Ints:
    """Row of the loop, branch or call that each row runs in: the last one that has begun and not ended."""
    parent = np.full(len(ops), _NONE, dtype=np.int64)
    open_rows: list[int] = []
    for row, op in enumerate(ops):
        while open_rows and t1[open_rows[-1]] <= t0[row]:
            open_rows.pop()
        if open_rows and t1[row] <= t1[open_rows[-1]]:
            parent[row] = open_rows[-1]
        if op.is_control_flow:
            open_rows.append(row)
    return parent


def _self_times_ns(work: list[list[Span]], parent: Ints) -> Ints:
    """Self time of each row: at each moment the threads that work share it evenly, of loops where nothing else runs."""
    edges = sorted(
        (time, begins, row)
        for row, spans in enumerate(work)
        for span in spans
        if span[1] > span[0]
        for time, begins in zip(span, (1, -1), strict=True)
    )
    shared = np.zeros(len(work))
    threads: dict[int, int] = {}  # that work on each row
    below = np.zeros(len(work), dtype=np.int64)  # threads that work on what a row calls
    last = 0.0
    for time, begins, row in edges:
        if threads and time > last:
            counted = {number: count for number, count in threads.items() if below[number] == 0}
            each_ns = (time - last) / max(sum(counted.values()), 1)
            for number, count in counted.items():
                shared[number] += count * each_ns
        last = time
        threads[row] = threads.get(row, 0) + begins
        if threads[row] == 0:
            del threads[row]
        if parent[row] != _NONE:
            below[parent[row]] += begins
    return np.floor(shared).astype(np.int64)


def _lanes(t0: Ints, t1: Ints, parent: Ints) -> Ints:
    """A lane for each row in which it overlaps with none but those that it runs in."""
    lanes: list[list[int]] = []  # rows that are open in each, innermost last
    lane = np.zeros(len(t0), dtype=np.int64)
    for row in range(len(t0)):
        for open_rows in lanes:
            while open_rows and t1[open_rows[-1]] <= t0[row]:
                open_rows.pop()
        free = (number for number, open_rows in enumerate(lanes) if not open_rows or open_rows[-1] == parent[row])
        lane[row] = next(free, len(lanes))
        if lane[row] == len(lanes):
            lanes.append([])
        lanes[lane[row]].append(row)
    return lane


def _within_step(parent: Ints, place: Ints) -> Ints:
    """Number parents within their step."""
    first = np.searchsorted(place, place)
    above = np.maximum(parent, 0)
    same = (parent != _NONE) & (place[above] == place)
    return np.where(same, parent - first, _NONE)


def _profiles(calls: list[InstructionRun], place: Ints, shared: Ints, spans: list[StepSpan]) -> list[StepProfile]:
    """What the plan learns from: self times in an order that does not depend on which thread was first."""
    profiles = []
    for number, span in enumerate(spans):
        rows = np.flatnonzero(place == number)
        keys = [(calls[row].program, calls[row].instruction) for row in rows]
        order = sorted(range(len(rows)), key=lambda at: (keys[at], rows[at]))
        signature = hash(tuple(keys[at] for at in order))
        profiles.append(StepProfile(span.step, signature, shared[rows[order]]))
    return profiles


def _or_unknown(value: int | None) -> int:
    return NOT_KNOWN if value is None else value


Scope = tuple[str, ...]


class Layers:
    """Scopes as a tree below the training's function, `()`."""

    def __init__(self) -> None:
        self._scopes: dict[Scope, None] = {}
        self._function: str | None = None
        self._parameters: list[tuple[Scope, int, int]] = []  # path, elements, bytes

    @property
    def has_scopes(self) -> bool:
        """Return whether any op lies in a named scope."""
        return any(self._scopes)

    def note_parameters(self, parameters: Any) -> None:
        """Note names and sizes of the parameters, and nothing else of them."""
        import jax

        for path, leaf in jax.tree_util.tree_flatten_with_path(parameters)[0]:
            shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
            if shape is not None and dtype is not None:
                elements = math.prod(shape)
                self._parameters.append((tuple(map(_key, path)), elements, elements * dtype.itemsize))

    def add_program(self, program: Program) -> None:
        """Add the scopes of a program's ops, and those around them."""
        scopes = program.layers
        if not scopes:
            return
        self._function = self._function or program.name.removeprefix("jit_")
        for scope in scopes:
            for length in range(len(scope) + 1):
                self._scopes.setdefault(scope[:length])

    def rows(self) -> list[dict[str, Any]]:
        """Rows of model.json, parents before children."""
        owners = [self._owner(path) for path, _, _ in self._parameters]
        return [self._row(scope, owners) for scope in sorted(self._scopes, key=len)]

    def _row(self, scope: Scope, owners: list[Scope | None]) -> dict[str, Any]:
        below = [
            sizes
            for owner, (_, *sizes) in zip(owners, self._parameters, strict=True)
            if not scope or (owner is not None and owner[: len(scope)] == scope)
        ]
        return {
            "module": SEPARATOR.join(scope),
            "type": self._function if not scope else "scope",
            "parent": SEPARATOR.join(scope[:-1]) if scope else None,
            "parameters": sum(elements for elements, _ in below) if below else None,
            "bytes": sum(size for _, size in below) if below else None,
            "trainable": True,
            "flops_forward": None,
            "flops_backward": None,
            "update_share": None,
            "region": None,
        }

    def _owner(self, path: Scope) -> Scope | None:
        """The scope whose last names are those of a parameter's path; None where several are, or none is."""
        best: Counter[Scope] = Counter()
        for scope in self._scopes:
            for end in (len(path), len(path) - 1):
                best[scope] = max(best[scope], _common_suffix(scope, path[:end]))
        most = max(best.values(), default=0)
        owners = [scope for scope, alike in best.items() if alike == most]
        return owners[0] if most and len(owners) == 1 else None


def _common_suffix(scope: Scope, path: Scope) -> int:
    """Return how many names at the end of both are the same."""
    alike = 0
    for ours, theirs in zip(reversed(scope), reversed(path), strict=False):
        if ours != theirs:
            break
        alike += 1
    return alike


def _key(part: Any) -> str:
    """The name in a path of a tree: a key of a dictionary, a place in a list, or an attribute."""
    return str(next(getattr(part, name) for name in ("key", "idx", "name") if hasattr(part, name)))
