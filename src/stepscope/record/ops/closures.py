"""Tell what in an `Optimizer.step` is the closure that it was given: forward and backward passes of the training.

All that begins before the last module call or backward node in a step is the closure's, but for what an optimizer that
calls it several times (LBFGS) updates in between; what begins after it is the update.
"""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Flags, Ints
from stepscope.record.ops.events import (
    BACKWARD,
    BACKWARD_NODE,
    COMMUNICATION,
    FORWARD,
    OPTIMIZER,
    OPTIMIZER_STEP,
    UNMARKED,
    Events,
    Labels,
    phase_marked_by,
)


def optimizer_steps(events: Events, texts: list[str]) -> Ints:
    """Rows of the ranges of `Optimizer.step`, by time, without those within another one of the same kind."""
    rows = _ranges_of_updates(events, texts)
    return rows[~_are_within_own_kind(events, rows)]


def repeated_optimizer_steps(events: Events, texts: list[str]) -> Ints:
    """Rows of the ranges of a `step` that calls that of its base class, which torch makes anew for it."""
    rows = _ranges_of_updates(events, texts)
    return rows[_are_within_own_kind(events, rows)]


def _ranges_of_updates(events: Events, texts: list[str]) -> Ints:
    is_step = np.array([text.startswith(OPTIMIZER_STEP) for text in texts], dtype=bool)
    rows = np.flatnonzero(is_step[events.name])
    return rows[np.argsort(events.t0[rows], kind="stable")]


def _are_within_own_kind(events: Events, rows: Ints) -> Flags:
    """Which of these ranges, by time, lie within another one of the same thread and name."""
    within = np.zeros(len(rows), dtype=bool)
    ends: dict[tuple[int, int], int] = {}
    keys = zip(events.thread[rows].tolist(), events.name[rows].tolist(), strict=True)
    for place, (key, end) in enumerate(zip(keys, events.t1[rows].tolist(), strict=True)):
        within[place] = end <= ends.get(key, -1)
        ends[key] = max(end, ends.get(key, -1))
    return within


def closure_ends(events: Events, steps: Ints, texts: list[str]) -> Ints:
    """When the last module call or backward node in each of these ranges begins, as `Events.t0`; -1 without any."""
    marks = _marked_phases(events, texts)
    passes = np.flatnonzero(((marks == FORWARD) | (marks == BACKWARD)) & (events.gpu < 0))
    passes = passes[np.argsort(events.t0[passes], kind="stable")]
    first = np.searchsorted(events.t0[passes], events.t0[steps], side="right")
    last = np.searchsorted(events.t0[passes], events.t1[steps])
    ends = np.full(len(steps), -1, dtype=np.int64)
    for number, step in enumerate(steps.tolist()):
        within = passes[first[number] : last[number]]
        ends[number] = events.t0[within[_belongs_to_thread(events, within, events.thread[step])]].max(initial=-1)
    return ends


def _marked_phases(events: Events, texts: list[str]) -> Ints:
    marks = np.array([phase_marked_by(text) for text in texts], dtype=np.int64)[events.name]
    return np.where(events.scope == BACKWARD_NODE, BACKWARD, marks)


def _belongs_to_thread(events: Events, rows: Ints, thread: int) -> Flags:
    """Which of these rows a thread runs, or are nodes that it made: another thread runs those of a GPU."""
    is_own_node = (events.scope[rows] == BACKWARD_NODE) & (events.forward_thread[rows] == thread)
    belongs: Flags = is_own_node | (events.thread[rows] == thread)
    return belongs


def relabel_phases_in_closures(events: Events, parent: Ints, labels: Labels, texts: list[str]) -> Ints:
    """Phases with those of closures as they are outside of one: the loss is forward, in an `Optimizer.step` or not."""
    steps = optimizer_steps(events, texts)
    ends = closure_ends(events, steps, texts)
    phase: Ints = labels.phase.copy()
    if (ends < 0).all():
        return phase
    marks = _marked_phases(events, texts)
    makers = np.zeros(len(phase), dtype=bool)
    makers[labels.made_by[labels.made_by >= 0]] = True
    for step, end in zip(steps[ends >= 0].tolist(), ends[ends >= 0].tolist(), strict=True):
        inside = np.flatnonzero((events.t0 > events.t0[step]) & (events.t0 <= end) & (events.gpu < 0))
        inside = inside[_belongs_to_thread(events, inside, events.thread[step])]
        inside = inside[np.argsort(events.t0[inside], kind="stable")]
        is_plain = (phase[inside] == OPTIMIZER) & (marks[inside] == UNMARKED)
        begins = np.where(is_plain, makers[inside], (marks[inside] != UNMARKED) & (marks[inside] != COMMUNICATION))
        above = inside[is_plain & makers[inside]]
        while len(above):
            phase[above] = FORWARD
            above = parent[above]
            above = above[(phase[above] == OPTIMIZER) & (marks[above] == UNMARKED)]
        last = np.maximum.accumulate(np.where(begins, np.arange(len(inside)), -1))
        follows = is_plain & (last >= 0) & (phase[inside[last]] == FORWARD)
        phase[inside[follows]] = FORWARD
    return phase
