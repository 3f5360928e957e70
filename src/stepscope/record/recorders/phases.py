"""Phase and module of every event: what encloses it, and for backward what its sequence number points back to.

A forward op and the backward node that it makes carry the same sequence number on the same forward thread; ops that
ran before it without making a node carry that number too, so the op that made the node is the last to start with it.
`AccumulateGrad` has none: it belongs to the backward node before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.record.recorders.events import BACKWARD_NODE, Events
from stepscope.record.recorders.tree import NO_PARENT, Ints
from stepscope.runfolder import PHASES

Bools = np.ndarray[Any, np.dtype[np.bool_]]
DATA, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(len(PHASES))
UNMARKED = -1
NO_MODULE = -1
MODULE_SCOPE = "#stepscope.module:"
DATA_SCOPE = "#stepscope.data"
OPTIMIZER_STEP = "Optimizer.step#"
CLOSING = "#stepscope.closing"  # the range in which a window ends what is open
_ENGINE = "autograd::engine::evaluate_function"
_ACCUMULATE = "AccumulateGrad"


@dataclass(frozen=True)
class Labels:
    """Phase (index into PHASES) and module (index, or NO_MODULE) of every event."""

    phase: Ints
    module: Ints


def phase_marked_by(name: str) -> int:
    """The phase that an event of this name opens, or UNMARKED."""
    if name.startswith((_ENGINE, "torch::autograd::")):
        return BACKWARD
    if name.startswith(("Optimizer.step#", "Optimizer.zero_grad#")):
        return OPTIMIZER
    if name.startswith(("enumerate(DataLoader)#", DATA_SCOPE)):
        return DATA
    return FORWARD if name.startswith(MODULE_SCOPE) else UNMARKED


def module_marked_by(name: str) -> int:
    """The module whose call an event of this name is, or NO_MODULE."""
    return int(name[len(MODULE_SCOPE) :]) if name.startswith(MODULE_SCOPE) else NO_MODULE


def label(events: Events, parent: Ints, depth: Ints, texts: list[str]) -> Labels:
    """Phase and module of every event; events in the order of `by_thread_and_time`."""
    marks = np.array([phase_marked_by(text) for text in texts], dtype=np.int64)
    scopes = np.array([module_marked_by(text) for text in texts], dtype=np.int64)
    accumulates = np.array([_ACCUMULATE in text for text in texts], dtype=bool)
    marked = marks[events.name]
    marked[events.scope == BACKWARD_NODE] = BACKWARD
    phase = _inherited_phase(_top_phases(events, marked, depth), marked, parent, depth)
    module = _inherited_module(scopes[events.name], parent, depth)
    made_by = _makers(events, marked)
    backward_module = _backward_modules(events, module, made_by, accumulates[events.name], parent)
    module = np.where(
        phase == BACKWARD, _inherited_module(_combined(backward_module, scopes[events.name]), parent, depth), module
    )
    made_nodes = made_by[made_by >= 0]
    _phase_of_unscoped_forward(phase, made_nodes, marked, parent)
    return Labels(phase, module)


def _top_phases(events: Events, marked: Ints, depth: Ints) -> Ints:
    """Phases of events at the top: after a module call, up to the next mark, it is still forward (the loss)."""
    phase = np.full(len(marked), UNMARKED, dtype=np.int64)
    top = np.flatnonzero(depth == 0)
    if len(top) == 0:
        return phase
    marks = np.where(marked[top] != UNMARKED, np.arange(len(top)), -1)
    last = np.maximum.accumulate(marks)
    before = np.where(last >= 0, marked[top][np.maximum(last, 0)], OTHER)
    same_thread = events.thread[top] == events.thread[top][np.maximum(last, 0)]
    phase[top] = np.where((before == FORWARD) & same_thread, FORWARD, OTHER)
    phase[top[marks >= 0]] = marked[top[marks >= 0]]
    return phase


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


def _makers(events: Events, marked: Ints) -> Ints:
    """Row of the forward op that made each backward node, -1 where it is not in this window."""
    made_by = np.full(len(events.name), -1, dtype=np.int64)
    nodes = np.flatnonzero((events.scope == BACKWARD_NODE) & (events.sequence >= 0))
    ops = np.flatnonzero((marked != BACKWARD) & (events.sequence >= 0))
    if len(nodes) == 0 or len(ops) == 0:
        return made_by
    width = int(max(events.sequence[ops].max(), events.sequence[nodes].max())) + 1
    keys = events.thread[ops] * width + events.sequence[ops]
    order = np.lexsort((events.t0[ops], keys))
    wanted = events.forward_thread[nodes] * width + events.sequence[nodes]
    place = np.searchsorted(keys[order], wanted, side="right") - 1
    found = (place >= 0) & (keys[order][np.maximum(place, 0)] == wanted)
    made_by[nodes[found]] = ops[order[place[found]]]
    return made_by


def _backward_modules(events: Events, module: Ints, made_by: Ints, accumulates: Bools, parent: Ints) -> Ints:
    """Module of each backward node, of the engine's call around it, and of the AccumulateGrad after it."""
    own = np.full(len(module), NO_MODULE, dtype=np.int64)
    nodes = np.flatnonzero(events.scope == BACKWARD_NODE)
    known = nodes[made_by[nodes] >= 0]
    own[known] = module[made_by[known]]
    gradients = nodes[accumulates[nodes]]
    if len(known) and len(gradients):
        place = np.searchsorted(known, gradients) - 1
        before = known[np.maximum(place, 0)]
        found = (place >= 0) & (events.thread[before] == events.thread[gradients])
        own[gradients[found]] = own[before[found]]
    around = parent[nodes]
    inside = around != NO_PARENT
    own[around[inside]] = own[nodes[inside]]
    return own


def _combined(backward: Ints, scoped: Ints) -> Ints:
    """A recomputed module's own scope is nearer than the node that asked for the recomputation."""
    nearest: Ints = np.where(scoped != NO_MODULE, scoped, backward)
    return nearest


def _phase_of_unscoped_forward(phase: Ints, makers: Ints, marked: Ints, parent: Ints) -> None:
    """An op that backward came back to is forward, also where no module was called (functional code)."""
    while len(makers):
        makers = makers[(phase[makers] == OTHER) & (marked[makers] == UNMARKED)]
        phase[makers] = FORWARD
        above = parent[makers]
        makers = above[above != NO_PARENT]  # np.unique would import numpy.ma, 6 ms of somebody's first window
