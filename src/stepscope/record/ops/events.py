"""Raw Kineto events as columns, with the parent, phase and module of every event."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from stepscope.arrays import Flags, Ints
from stepscope.runfolder import COLLECTIVE, DATA_LOADER, PHASES

BACKWARD_NODE = 1  # RecordScope::BACKWARD_FUNCTION
_ROW_KINDS = {"cpu_op", "user_annotation", "kernel", "gpu_memcpy", "gpu_memset"}
_CALL_OF_CUDA = re.compile(
    r"(cuda|cu|hip)[A-Z]\w*$|(Activity|Command) Buffer |Buffer Flush|Lazy Function Loading|Instrumentation|Resource$"
)


class _Numbers(dict[str, int]):
    """Numbers what is asked for in its turn: a loop over events needs no frame of Python's for it."""

    def __missing__(self, name: str) -> int:
        self[name] = number = len(self)
        return number


@dataclass
class Names:
    """Names as small integers, the same over all windows of a run."""

    ids: dict[str, int] = field(default_factory=_Numbers)

    def intern(self, name: str) -> int:
        return self.ids[name]

    def texts(self) -> list[str]:
        return list(self.ids)


@dataclass
class Events:
    """The events of one window as columns; times in Unix ns, `link` joins a kernel to the op that launched it."""

    name: Ints
    t0: Ints
    t1: Ints
    thread: Ints
    scope: Ints
    sequence: Ints
    forward_thread: Ints
    gpu: Ints  # -1 on the CPU, else the device's index
    correlation: Ints
    link: Ints
    raw: list[Any]

    def take(self, rows: Ints) -> Events:
        """Return the columns at these rows."""
        picked = {name: column[rows] for name, column in vars(self).items() if name != "raw"}
        return Events(**picked, raw=[self.raw[row] for row in rows] if self.raw else [])


def read_event_columns(raw: list[Any], names: Names, cuda: bool, keep_raw: bool = False) -> Events:
    """Read the attributes that rows need; `keep_raw` keeps the events for their shapes."""
    if cuda:
        raw = _rows_of_cuda(raw)
    kind = type(raw[0]) if raw else object
    ids = names.ids
    name = np.fromiter(map(ids.__getitem__, map(_unbound_method(kind, "name"), raw)), np.int64, len(raw))
    t0 = _column_of_events(raw, _unbound_method(kind, "start_ns"))
    scope = _column_of_events(raw, _unbound_method(kind, "scope"))
    sequence = _column_of_events(raw, _unbound_method(kind, "sequence_nr"))
    forward_thread = np.zeros(len(raw), dtype=np.int64)
    nodes = np.flatnonzero(scope == BACKWARD_NODE)
    forward_thread[nodes] = [raw[row].fwd_thread_id() for row in nodes]
    none = np.full(len(raw), -1, dtype=np.int64)
    return Events(
        name=name,
        t0=t0,
        t1=t0 + _column_of_events(raw, _unbound_method(kind, "duration_ns")),
        thread=_column_of_events(raw, _unbound_method(kind, "start_thread_id")),
        scope=scope,
        sequence=sequence,
        forward_thread=forward_thread,
        gpu=_column_of_events(raw, _gpu_index) if cuda else none,
        correlation=_column_of_events(raw, _unbound_method(kind, "correlation_id")) if cuda else none,
        link=_column_of_events(raw, _unbound_method(kind, "linked_correlation_id")) if cuda else none,
        raw=raw if keep_raw else [],
    )


def _unbound_method(kind: type, name: str) -> Callable[[Any], Any]:
    """The unbound method: mapping it over events spares a Python frame an event."""
    return getattr(kind, name, lambda _: 0)


def _column_of_events(raw: list[Any], read: Callable[[Any], Any]) -> Ints:
    return np.fromiter(map(read, raw), np.int64, len(raw))


def _gpu_index(event: Any) -> int:
    on_gpu = getattr(event.device_type(), "name", str(event.device_type())).endswith("CUDA")
    return int(event.device_index()) if on_gpu else -1


def _rows_of_cuda(raw: list[Any]) -> list[Any]:
    """Ops, scopes, kernels and copies; not CUDA's own calls nor CUPTI's work, nor the GPU's copies of scopes.

    A torch before 2.13 does not say of what kind an event is: CUDA's calls have C names, and a copy has its scope's.
    """
    if raw and hasattr(raw[0], "activity_type"):
        kinds = ((event, event.activity_type()) for event in raw)
        return [e for e, kind in kinds if kind in _ROW_KINDS and (kind != "user_annotation" or _gpu_index(e) < 0)]
    on_cpu = [event for event in raw if _gpu_index(event) < 0]
    names = {event.name() for event in on_cpu}
    kernels = [event for event in raw if _gpu_index(event) >= 0 and event.name() not in names]
    return [event for event in on_cpu if not _CALL_OF_CUDA.match(event.name())] + kernels


NO_PARENT = -1


def by_thread_and_time(thread: Ints, t0: Ints, t1: Ints) -> Ints:
    """The order in which a parent comes before its children: by thread, then start, then the longer first."""
    return np.lexsort((-t1, t0, thread))


def depths(thread: Ints, t0: Ints, t1: Ints) -> Ints:
    """Return how many intervals of the same thread enclose each one; input in the order of `by_thread_and_time`.

    Intervals of a thread are nested or apart, so what encloses one is what began before it less what has ended.
    """
    depth = np.zeros(len(t0), dtype=np.int64)
    for first, last in _thread_ranges(thread):
        starts, ends = t0[first:last], np.maximum(t1[first:last], t0[first:last] + 1)
        begun = np.arange(last - first)
        depth[first:last] = begun - np.searchsorted(np.sort(ends), starts, side="right")
    return depth.clip(min=0)


def parents(thread: Ints, depth: Ints) -> Ints:
    """Row of each interval's parent, NO_PARENT at the top: the last row of the same thread that is one level up."""
    parent = np.full(len(depth), NO_PARENT, dtype=np.int64)
    for first, last in _thread_ranges(thread):
        levels = depth[first:last]
        above = np.flatnonzero(levels == 0)
        for level in range(1, int(levels.max(initial=0)) + 1):
            here = np.flatnonzero(levels == level)
            if len(above) == 0:
                break
            place = np.searchsorted(above, here) - 1
            parent[first + here] = np.where(place >= 0, first + above[np.maximum(place, 0)], NO_PARENT)
            above = here
    return parent


def self_times(t0: Ints, t1: Ints, parent: Ints) -> Ints:
    """Time of each interval outside its children, ns; never below 0."""
    spans = t1 - t0
    inside = np.zeros(len(t0), dtype=np.int64)
    nested = parent != NO_PARENT
    np.add.at(inside, parent[nested], spans[nested])
    return (spans - inside).clip(min=0)


def _thread_ranges(thread: Ints) -> list[tuple[int, int]]:
    """First and past-the-last row of each thread's stretch."""
    edges = np.flatnonzero(np.diff(thread)) + 1
    bounds = [0, *edges.tolist(), len(thread)]
    return [(a, b) for a, b in pairwise(bounds) if b > a]


# A forward op and the backward node that it makes carry the same sequence number on the same forward thread; ops that
# ran before it without making a node carry that number too, so the op that made the node is the last to start with it.
# `AccumulateGrad` has none: it belongs to the backward node before it.
#
# Collectives are a phase wherever they are called, and end no other: the loss after one is still forward. One that
# `AccumulateGrad` starts belongs to no module, since its bucket holds the gradients of several.

DATA, FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION, OTHER = range(len(PHASES))
UNMARKED = -1
NO_MODULE = -1
MODULE_SCOPE = "#stepscope.module:"
DATA_SCOPE = "#stepscope.data"
OPTIMIZER_STEP = "Optimizer.step#"
CLOSING = "#stepscope.closing"  # the range in which a window ends what is open
_MOST_ORDERS = 4  # of derivatives: a pass through what the pass before it made has the modules of that one
_ENGINE = "autograd::engine::evaluate_function"
_ACCUMULATE = "AccumulateGrad"
_COLLECTIVE = re.compile(COLLECTIVE)
_CALLS = ("c10d::", "_c10d_functional::", "c10d_functional::", "record_param_comms", "torch.distributed.ddp.reducer::")


class BackwardNodeModules(Protocol):
    """Modules of backward nodes whose forward ops are not among the events."""

    def modules_of(self, sequence: Ints) -> Ints:
        """Index of the module that made each of these nodes, NO_MODULE where none or an unknown one did."""


@dataclass(frozen=True)
class Labels:
    """Phase (index into PHASES) and module (index, or NO_MODULE) of every event."""

    phase: Ints
    module: Ints
    made_by: Ints  # row of the forward op that made a backward node; -1 where there is none


def phase_marked_by(name: str) -> int:
    """The phase that an event of this name opens, or UNMARKED."""
    if name.startswith((_ENGINE, "torch::autograd::")):
        return BACKWARD
    if name.startswith(("Optimizer.step#", "Optimizer.zero_grad#")):
        return OPTIMIZER
    if name.startswith((DATA_LOADER, DATA_SCOPE)):
        return DATA
    if name.startswith(_CALLS) or _COLLECTIVE.match(name) or name.startswith("nccl"):
        return COMMUNICATION
    return FORWARD if name.startswith(MODULE_SCOPE) else UNMARKED


def label_events(
    events: Events,
    parent: Ints,
    depth: Ints,
    texts: list[str],
    thread: int | None = None,
    places: BackwardNodeModules | None = None,
) -> Labels:
    """Phase and module of every event; events in the order of `by_thread_and_time`.

    places: tells the modules of backward nodes whose forward ops, in this thread, are not among the events.
    """
    marks = np.array([phase_marked_by(text) for text in texts], dtype=np.int64)
    modules = [int(text[len(MODULE_SCOPE) :]) if text.startswith(MODULE_SCOPE) else NO_MODULE for text in texts]
    scopes = np.array(modules, dtype=np.int64)
    accumulates = np.array([_ACCUMULATE in text for text in texts], dtype=bool)
    marked = marks[events.name]
    marked[events.scope == BACKWARD_NODE] = BACKWARD
    phase = _inherited_phase(_top_phases(events, marked, depth), marked, parent, depth)
    by_backend = (events.gpu < 0) & np.array([_COLLECTIVE.match(text) is not None for text in texts])[events.name]
    phase[_is_on_collective_thread(events, marked, by_backend)] = COMMUNICATION
    module = _inherited_module(scopes[events.name], parent, depth)
    made_by = _forward_op_rows(events, marked)
    noted = _modules_noted(events, made_by, thread, places)
    _note_scripted_code_modules(events, marked, module, made_by, noted)
    in_module, passed = module, (phase == BACKWARD) | (phase == COMMUNICATION)
    for _ in range(_MOST_ORDERS if (phase[made_by[made_by >= 0]] == BACKWARD).any() else 1):
        backward_module = _backward_modules(events, module, made_by, noted, accumulates[events.name], parent)
        scoped = scopes[events.name]  # of a module that is recomputed it is nearer than the node that asked for that
        own = np.where(scoped != NO_MODULE, scoped, backward_module)
        before, module = module, np.where(passed, _inherited_module(own, parent, depth), in_module)
        if (module == before).all():
            break
    inside = np.flatnonzero((marked == COMMUNICATION) & (parent != NO_PARENT))
    _clear_module_below(module, inside[accumulates[events.name[parent[inside]]]], parent)
    made_nodes = made_by[made_by >= 0]
    _phase_of_unscoped_forward(phase, made_nodes, marked, parent)
    return Labels(phase, module, made_by)


def _top_phases(events: Events, marked: Ints, depth: Ints) -> Ints:
    """Phases of events at the top: after a module call, up to the next mark, it is still forward (the loss)."""
    phase = np.full(len(marked), UNMARKED, dtype=np.int64)
    top = np.flatnonzero(depth == 0)
    if len(top) == 0:
        return phase
    begins = (marked[top] != UNMARKED) & (marked[top] != COMMUNICATION)  # a collective interrupts, and ends nothing
    marks = np.where(begins, np.arange(len(top)), -1)
    last = np.maximum.accumulate(marks)
    before = np.where(last >= 0, marked[top][np.maximum(last, 0)], OTHER)
    same_thread = events.thread[top] == events.thread[top][np.maximum(last, 0)]
    phase[top] = np.where((before == FORWARD) & same_thread, FORWARD, OTHER)
    own = marked[top] != UNMARKED
    phase[top[own]] = marked[top[own]]
    return phase


def _is_on_collective_thread(events: Events, marked: Ints, by_backend: Flags) -> Flags:
    """Rows of threads on which a backend runs collectives and nothing is trained: what a hook does there is theirs."""
    rows: Flags = np.zeros(len(marked), dtype=bool)
    trains = (marked != UNMARKED) & ~by_backend
    for thread in set(events.thread[by_backend].tolist()) - set(events.thread[trains].tolist()):
        rows |= (events.thread == thread) & (events.gpu < 0)
    return rows


def _clear_module_below(module: Ints, rows: Ints, parent: Ints) -> None:
    """Take the module from these rows and from all that they call."""
    while len(rows):
        module[rows] = NO_MODULE
        rows = np.flatnonzero(np.isin(parent, rows))


def _inherited_phase(phase: Ints, marked: Ints, parent: Ints, depth: Ints) -> Ints:
    """Downwards: a mark overrules what encloses it, but recomputed forward inside backward stays backward."""
    for level in range(1, int(depth.max(initial=0)) + 1):
        rows = np.flatnonzero(depth == level)
        above = phase[parent[rows]]
        own = marked[rows]
        keep = (own == UNMARKED) | ((own == FORWARD) & ((above == BACKWARD) | (above == DATA)))
        phase[rows] = np.where(keep, above, own)
    phase[phase == UNMARKED] = OTHER
    return phase


def _inherited_module(own: Ints, parent: Ints, depth: Ints) -> Ints:
    """Downwards: the innermost module."""
    module: Ints = own.copy()
    for level in range(1, int(depth.max(initial=0)) + 1):
        rows = np.flatnonzero((depth == level) & (module == NO_MODULE))
        module[rows] = module[parent[rows]]
    return module


def _forward_op_rows(events: Events, marked: Ints) -> Ints:
    """Row of the forward op that made each backward node, -1 where it is not in this window."""
    made_by = np.full(len(events.name), -1, dtype=np.int64)
    nodes = np.flatnonzero((events.scope == BACKWARD_NODE) & (events.sequence >= 0))
    ops = np.flatnonzero((marked != BACKWARD) & (events.sequence >= 0))
    if len(nodes) == 0 or len(ops) == 0:
        return made_by
    width = int(max(events.sequence[ops].max(), events.sequence[nodes].max())) + 1
    keys = events.thread[ops] * width + events.sequence[ops]
    order = np.lexsort((events.t0[ops], keys))
    node_keys = events.forward_thread[nodes] * width + events.sequence[nodes]
    place = np.searchsorted(keys[order], node_keys, side="right") - 1
    matches = (place >= 0) & (keys[order][np.maximum(place, 0)] == node_keys)
    made_by[nodes[matches]] = ops[order[place[matches]]]
    return made_by


def _modules_noted(events: Events, made_by: Ints, thread: int | None, places: BackwardNodeModules | None) -> Ints:
    """Module of each backward node whose forward op is not in this window, from the calls that were noted."""
    noted = np.full(len(events.name), NO_MODULE, dtype=np.int64)
    if places is not None and thread is not None:
        alone = (events.scope == BACKWARD_NODE) & (events.sequence >= 0) & (made_by < 0)
        rows = np.flatnonzero(alone & (events.forward_thread == thread))
        noted[rows] = places.modules_of(events.sequence[rows])
    return noted


def _note_scripted_code_modules(events: Events, marked: Ints, module: Ints, made_by: Ints, noted: Ints) -> None:
    """Note the module of nodes that no op made: scripted code makes one for all of it, before its first op."""
    alone = np.flatnonzero((events.scope == BACKWARD_NODE) & (events.sequence >= 0) & (made_by < 0) & (noted < 0))
    ops = np.flatnonzero((marked != BACKWARD) & (events.sequence >= 0))
    for node in alone.tolist() if len(ops) else ():
        later = ops[
            (events.thread[ops] == events.forward_thread[node]) & (events.sequence[ops] > events.sequence[node])
        ]
        if len(later):
            noted[node] = module[later[np.argmin(events.t0[later])]]


def _backward_modules(
    events: Events, module: Ints, made_by: Ints, noted: Ints, accumulates: Flags, parent: Ints
) -> Ints:
    """Module of each backward node, of the engine's call around it, and of the AccumulateGrad after it."""
    own = np.full(len(module), NO_MODULE, dtype=np.int64)
    nodes = np.flatnonzero(events.scope == BACKWARD_NODE)
    own[nodes] = np.where(made_by[nodes] >= 0, module[made_by[nodes]], noted[nodes])
    attributed = nodes[(made_by[nodes] >= 0) | (noted[nodes] != NO_MODULE)]
    gradients = nodes[accumulates[nodes]]
    if len(attributed) and len(gradients):
        place = np.searchsorted(attributed, gradients) - 1
        before = attributed[np.maximum(place, 0)]
        follows = (place >= 0) & (events.thread[before] == events.thread[gradients])
        own[gradients[follows]] = own[before[follows]]
    around = parent[nodes]
    inside = around != NO_PARENT
    own[around[inside]] = own[nodes[inside]]
    return own


def _phase_of_unscoped_forward(phase: Ints, makers: Ints, marked: Ints, parent: Ints) -> None:
    """An op that backward came back to is forward, and so is what it calls, also where no module was called."""
    called = makers = makers[(phase[makers] == OTHER) & (marked[makers] == UNMARKED)]
    while len(makers):
        phase[makers] = FORWARD
        above = parent[makers]
        makers = above[above != NO_PARENT]  # np.unique would import numpy.ma, 6 ms of somebody's first window
        makers = makers[(phase[makers] == OTHER) & (marked[makers] == UNMARKED)]
    while len(called):
        is_caller = np.zeros(len(phase) + 1, dtype=bool)  # one more: NO_PARENT is its index
        is_caller[called] = True
        called = np.flatnonzero(is_caller[parent] & (phase == OTHER) & (marked == UNMARKED))
        phase[called] = FORWARD
