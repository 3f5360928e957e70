"""Turn one window of raw events into the rows of a part of ops/.

Rows of a step are ordered by time with parents before children; `parent` counts rows within the step.

FLOPs and bytes of op calls are learnt in the few steps that record shapes and looked up in all others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from stepscope.arrays import Ints
from stepscope.record.ops.closures import relabel_phases_in_closures
from stepscope.record.ops.costs import FlopsByFormat, count_op_bytes, count_op_flops, gpus_of_ops, has_formula
from stepscope.record.ops.events import (
    CLOSING,
    MODULE_SCOPE,
    NO_MODULE,
    NO_PARENT,
    Events,
    Names,
    by_thread_and_time,
    depths,
    label_events,
    parents,
    read_event_columns,
    self_times,
)
from stepscope.record.ops.updates import OptimizerCalls, modules_of_updates
from stepscope.runfolder import PHASES, Part

if TYPE_CHECKING:
    from stepscope.record.ops.events import BackwardNodeModules

# Recording shapes makes an overhead-bound step a quarter slower, so it is done in warm-up steps only. A later step
# takes the numbers over when it ran the same ops in the same places on as many samples; or when each op of the same
# layer on inputs of the same shapes had one cost there (steps of more or fewer micro-batches). Else they stay null.

NOT_KNOWN = -1


@dataclass(frozen=True)
class UncostedRows:
    """Rows of a window (n,): the event of each, and of which step it is, name, module and self time in ns."""

    events: Events
    order: Ints  # into the events
    step: Ints  # into the steps of the window
    name: Ints  # into `texts`
    module: Ints
    self_ns: Ints
    texts: list[str]
    parent: Ints  # row within the step, `Window.rows_before` included


class Costs(Protocol):
    """Costs of ops: per step its profile; per row FLOPs and bytes, NOT_KNOWN where nothing tells."""

    def look_up(self, window: Window, rows: UncostedRows) -> tuple[list[StepProfile], Ints, Ints]:
        """Look up rows of the steps of a window."""


class OpCostsByShape:
    """Costs of the ops of a step, by the step's signature and the shapes that models were called with in it."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int | None, int], tuple[Ints, Ints]] = {}
        self._alike: dict[tuple[int, int | None], tuple[Ints, Ints]] = {}  # of any shapes, the first ones seen
        self._of_calls: dict[int, _CallCosts] = {}  # by shapes
        self.missed = False  # a step came by whose shapes were never seen: worth another look
        self.flops_by_format = FlopsByFormat()
        self.other_shapes = 0  # steps of a known signature with shapes of their own: they take over what is alike

    def look_up(self, window: Window, rows: UncostedRows) -> tuple[list[StepProfile], Ints, Ints]:
        """Per step its profile; per row FLOPs and bytes, NOT_KNOWN where shapes do not tell."""
        flops = np.full(len(rows.order), NOT_KNOWN, dtype=np.int64)
        read = np.full(len(rows.order), NOT_KNOWN, dtype=np.int64)
        profiles = []
        on_cpu = rows.events.gpu[rows.order] < 0
        edges = np.searchsorted(rows.step, np.arange(len(window.steps) + 1))
        for span, first, last in zip(window.steps, edges[:-1], edges[1:], strict=True):
            ops = first + np.flatnonzero(on_cpu[first:last])
            signature = hash((rows.name[ops].tobytes(), rows.module[ops].tobytes()))
            profiles.append(StepProfile(span.step, signature, rows.self_ns[ops]))
            alike, key = (signature, span.samples), (signature, span.samples, span.inputs)
            if window.shapes and key not in self._known:
                raw = [rows.events.raw[event] for event in rows.order[ops]]
                self._known[key] = self._alike[alike] = costs = _flops_and_bytes(raw, rows.name[ops], rows.texts)
                self._of_calls.setdefault(span.inputs, _CallCosts()).learn(rows.name[ops], rows.module[ops], *costs)
                gpus = gpus_of_ops(
                    rows.parent[first:last] - window.rows_before, rows.events.gpu[rows.order[first:last]]
                )
                names = [rows.texts[name] for name in rows.name[ops].tolist()]
                self.flops_by_format.add(raw, costs[0], gpus[ops - first], names, rows.module[ops])
            costs_of_step = self._known.get(key)
            if costs_of_step is None and span.inputs and span.inputs in self._of_calls:
                costs_of_step = self._of_calls[span.inputs].look_up(rows.name[ops], rows.module[ops])
            if costs_of_step is None and alike in self._alike:
                costs_of_step = self._alike[alike]
                self.other_shapes += 1
            if costs_of_step is not None:
                flops[ops], read[ops] = costs_of_step
            else:
                self.missed = True
        return profiles, flops, read


class _CallCosts:
    """FLOPs and bytes of one call by op and layer, where all calls that were seen on inputs of some shapes agree."""

    def __init__(self) -> None:
        self._flops: dict[tuple[int, int], int | None] = {}  # None: calls differ
        self._read: dict[tuple[int, int], int] = {}  # NOT_KNOWN where calls differ

    def learn(self, name: Ints, module: Ints, flops: Ints, read: Ints) -> None:
        """Take over what a step has shown."""
        calls = zip(name.tolist(), module.tolist(), strict=True)
        for call, of_flops, of_read in zip(calls, flops.tolist(), read.tolist(), strict=True):
            self._flops[call] = of_flops if self._flops.get(call, of_flops) == of_flops else None
            self._read[call] = of_read if self._read.get(call, of_read) == of_read else NOT_KNOWN

    def look_up(self, name: Ints, module: Ints) -> tuple[Ints, Ints] | None:
        """Return FLOPs and bytes of the calls of a step; None where those of one are not known."""
        calls = list(zip(name.tolist(), module.tolist(), strict=True))
        flops = [self._flops.get(call) for call in calls]
        if None in flops:
            return None
        return np.array(flops, dtype=np.int64), np.array([self._read[call] for call in calls], dtype=np.int64)


def _flops_and_bytes(raw: list[Any], name: Ints, texts: list[str]) -> tuple[Ints, Ints]:
    flops, read = [], []
    counted = [has_formula(text) for text in texts]
    for event, index in zip(raw, name.tolist(), strict=True):
        shapes = event.shapes()
        values = event.concrete_inputs() if counted[index] else ()
        flops.append(_or_unknown(count_op_flops(texts[index], shapes, values)) if counted[index] else NOT_KNOWN)
        read.append(_or_unknown(count_op_bytes(shapes, event.dtypes())) if shapes else 0)
    return np.array(flops, dtype=np.int64), np.array(read, dtype=np.int64)


def _or_unknown(value: int | None) -> int:
    return NOT_KNOWN if value is None else value


@dataclass(frozen=True)
class WindowRows:
    """The rows of a window, and per step what the recording plan learns from.

    left_open: names of what was open when the window stopped, though it should have ended before (`follow_ranges`).
    """

    part: Part
    profiles: list[StepProfile]
    labelled: LabelledEvents | None = None
    left_open: tuple[str, ...] = ()


def rows_of(window: Window, names: Names, modules: list[tuple[str, str]], costs: Costs) -> WindowRows:
    """Convert a window; `modules` gives (qualified name, type) by module index."""
    events = read_event_columns(window.raw, names, window.cuda, keep_raw=window.shapes)
    closing = np.flatnonzero(events.name == names.ids.get(CLOSING, -1))
    thread = int(events.thread[closing[-1]]) if len(closing) else None
    events, left_open = trim_at_window_close(events, names)
    return replace(rows_of_events(events, window, names, modules, costs, thread), left_open=left_open)


def rows_of_events(
    events: Events,
    window: Window,
    names: Names,
    modules: list[tuple[str, str]],
    costs: Costs,
    thread: int | None = None,
) -> WindowRows:
    """Return the rows from events in columns, whatever their source; thread: the one that trains."""
    events = events.take(by_thread_and_time(_nesting_lanes(events), events.t0, events.t1))
    lane = _nesting_lanes(events)
    depth = depths(lane, events.t0, events.t1)
    parent = parents(lane, depth)
    own = self_times(events.t0, events.t1, parent)
    labels = label_events(events, parent, depth, names.texts(), thread, window.places)
    phase, module = relabel_phases_in_closures(events, parent, labels, names.texts()), labels.module.copy()
    parent, phase, module = _kernels_join_their_ops(events, parent, phase, module)
    module = modules_of_updates(events, parent, module, names.texts(), window.optimizer_calls)
    table = LabelledEvents(events, parent, own, phase, module, events.t0 - window.unix_offset_ns, labels.made_by)
    rows = _assign_rows_to_steps(table, window, names, modules, costs)
    return replace(rows, labelled=replace(table, events=replace(events, raw=[])))  # torch's refer to tensors, weakly


def trim_at_window_close(events: Events, names: Names) -> tuple[Events, tuple[str, ...]]:
    """The events without the closing of their window, which ended what was open, and what was open even after it."""
    closing = np.flatnonzero(events.name == names.ids.get(CLOSING, -1))
    if len(closing) == 0:
        return events, ()
    begin, end = events.t0[closing[-1]], events.t1[closing[-1]]
    before = (events.t0 < begin) & (events.gpu < 0)
    unended = before & (events.thread == events.thread[closing[-1]]) & ((events.t1 > end) | (events.t1 < events.t0))
    texts = names.texts()
    left_open = tuple(texts[number] for number in events.name[unended])
    remaining = events.take(np.flatnonzero(before | (events.gpu >= 0)))
    ended = np.where(remaining.gpu < 0, np.minimum(remaining.t1, begin), remaining.t1)
    return replace(remaining, t1=np.maximum(ended, remaining.t0)), left_open


def _nesting_lanes(events: Events) -> Ints:
    """Threads and GPU streams apart: an interval nests only within its own."""
    return np.where(events.gpu >= 0, (events.gpu + 1) * 1_000_000 + events.thread, events.thread)


def _kernels_join_their_ops(events: Events, parent: Ints, phase: Ints, module: Ints) -> tuple[Ints, Ints, Ints]:
    """A GPU row takes parent, phase and module from the op that launched it."""
    kernels, ops = np.flatnonzero(events.gpu >= 0), np.flatnonzero(events.gpu < 0)
    if len(kernels) == 0 or len(ops) == 0:
        return parent, phase, module
    ops = ops[np.argsort(events.correlation[ops], kind="stable")]
    place = np.searchsorted(events.correlation[ops], events.link[kernels])
    place = np.minimum(place, len(ops) - 1)
    matches = (events.correlation[ops[place]] == events.link[kernels]) & (events.link[kernels] > 0)
    launched, by = kernels[matches], ops[place[matches]]
    parent[launched], phase[launched], module[launched] = by, phase[by], module[by]
    return parent, phase, module


@dataclass(frozen=True)
class LabelledEvents:
    """Every event of a window in the order of `by_thread_and_time`, with its parent, self time, phase and module."""

    events: Events
    parent: Ints
    own: Ints
    phase: Ints
    module: Ints
    t0_ns: Ints
    made_by: Ints  # as in Labels


def _assign_rows_to_steps(
    table: LabelledEvents, window: Window, names: Names, modules: list[tuple[str, str]], costs: Costs
) -> WindowRows:
    """Give each row its step, sort by step and time, and number parents within the step."""
    if not window.steps or len(table.t0_ns) == 0:
        return WindowRows(Part(), [])
    starts = np.array([span.t0_ns for span in window.steps])
    ends = np.array([span.t1_ns for span in window.steps])
    begins = table.t0_ns.copy()
    launched = (table.events.gpu >= 0) & (table.parent != NO_PARENT)
    begins[launched] = table.t0_ns[table.parent[launched]]  # a kernel belongs to the step that launched it
    place = np.searchsorted(starts, begins, side="right") - 1
    inside = (place >= 0) & (begins < ends[np.maximum(place, 0)])
    rows = np.flatnonzero(inside)
    order = rows[np.lexsort((-table.events.t1[rows], table.t0_ns[rows], place[rows]))]
    place = place[order]
    first = np.searchsorted(place, np.arange(len(starts)))
    number = np.full(len(inside), NO_PARENT, dtype=np.int64)
    number[order] = np.arange(len(order)) - first[place] + window.rows_before
    parent = np.where(table.parent[order] == NO_PARENT, NO_PARENT, number[table.parent[order]])
    return _build_window_rows(table, window, order, place, parent, names, modules, costs)


def _build_window_rows(
    table: LabelledEvents,
    window: Window,
    order: Ints,
    place: Ints,
    parent: Ints,
    names: Names,
    modules: list[tuple[str, str]],
    costs: Costs,
) -> WindowRows:
    events = table.events
    t0_ns = table.t0_ns[order]
    t1_ns = t0_ns + (events.t1 - events.t0)[order]
    on_cpu = events.gpu[order] < 0
    ends = np.array([span.t1_ns for span in window.steps])
    # The optimizer's own scope is still open when its hook ends the step: no row outlasts its step on the CPU.
    overhang = np.where(on_cpu, np.maximum(t1_ns - ends[place], 0), 0)
    t1_ns, self_ns = t1_ns - overhang, np.maximum(table.own[order] - overhang, 0)
    name, module = events.name[order], table.module[order]
    rows = UncostedRows(events, order, place, name, module, self_ns, names.texts(), parent)
    profiles, flops, read = costs.look_up(window, rows)
    texts = [row_name(text, modules) for text in names.texts()]
    step = np.array([span.step for span in window.steps])[place]
    gpus = ["cpu", *(f"cuda:{index}" for index in range(int(events.gpu.max(initial=-1)) + 1))]
    columns = {
        "step": step,
        "t0_ns": t0_ns,
        "t1_ns": t1_ns,
        "self_ns": self_ns,
        "parent": parent,
        "name": name,
        "module": module,
        "phase": table.phase[order],
        "thread": events.thread[order],
        "device": events.gpu[order] + 1,
        "flops": flops,
        "bytes": read,
    }
    fqns = [fqn for fqn, _ in modules]
    return WindowRows(Part(columns, {"name": texts, "module": fqns, "phase": PHASES, "device": gpus}), profiles)


def row_name(text: str, modules: list[tuple[str, str]]) -> str:
    """A module's scope is shown as a call of its type; everything else keeps its own name."""
    if not text.startswith(MODULE_SCOPE):
        return text
    return f"nn.{modules[int(text[len(MODULE_SCOPE) :])][1]}"


assert max(NO_MODULE, NO_PARENT, NOT_KNOWN) < 0  # which a part has for null


@dataclass(frozen=True)
class StepSpan:
    """A profiled step; times in ns of the monotonic clock; inputs: a hash of the shapes that models were called with.

    0 where nothing is known of them.
    """

    step: int
    t0_ns: int
    t1_ns: int
    samples: int | None
    inputs: int = 0


@dataclass(frozen=True)
class Window:
    """Content of a profiled window: raw events, the steps in it, and who called which optimizer."""

    raw: list[Any]
    steps: list[StepSpan]
    unix_offset_ns: int
    optimizer_calls: OptimizerCalls
    shapes: bool
    cuda: bool
    places: BackwardNodeModules | None = None  # whose calls were noted, where a window holds no forward pass
    rows_before: int = 0  # of the same step, in other windows


@dataclass(frozen=True)
class StepProfile:
    """Self times of one step's rows in order, ns; `signature` is equal where the same ops ran in the same places."""

    step: int
    signature: int
    self_ns: Ints
