"""The operations of an imported file as parts of ops/, a window of steps each, made by the recorder's own functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.record.recorders.events import Events, Names
from stepscope.record.recorders.ops import rows_of_events
from stepscope.record.recorders.optimizers import OptimizerCalls
from stepscope.record.recorders.tree import Ints
from stepscope.record.recorders.window import StepProfile, StepSpan, Window
from stepscope.runfolder import RunWriter

WINDOW_ROWS = 200_000


@dataclass(frozen=True)
class StatedCosts:
    """FLOPs and bytes that were counted from the shapes in the file, by the row that `Events.raw` holds."""

    flops: Ints
    bytes: Ints

    def look_up(
        self,
        window: Window,
        events: Events,
        order: Ints,
        place: Ints,
        name: Ints,
        module: Ints,
        self_ns: Ints,
        texts: list[str],
    ) -> tuple[list[StepProfile], Ints, Ints]:
        """No profiles: nothing is planned by a file that is complete."""
        rows = np.array([events.raw[row] for row in order.tolist()], dtype=np.int64)
        return [], self.flops[rows], self.bytes[rows]


def write_ops(
    writer: RunWriter,
    events: Events,
    costs: StatedCosts,
    spans: list[StepSpan],
    names: Names,
    modules: list[tuple[str, str]],
    origin_ns: int,
) -> int:
    """Write the operations of every step; returns how many rows there are."""
    begins = _belongs(events) - origin_ns
    order = np.argsort(begins, kind="stable")
    times = begins[order]
    rows = 0
    for window in _windows(spans, times):
        first, last = np.searchsorted(times, [window[0].t0_ns, window[-1].t1_ns]).tolist()
        caught = Window([], window, origin_ns, OptimizerCalls(), shapes=False, cuda=False)
        frame = rows_of_events(events.take(order[first:last]), caught, names, modules, costs).frame
        if len(frame):
            writer.ops(frame)
            rows += len(frame)
    return rows


def _belongs(events: Events) -> Ints:
    """When each event was asked for: a kernel belongs to the op that launched it, however late it ran."""
    begins: Ints = events.t0.copy()
    kernels = np.flatnonzero((events.gpu >= 0) & (events.link > 0))
    ops = np.flatnonzero((events.gpu < 0) & (events.correlation > 0))
    if len(kernels) == 0 or len(ops) == 0:
        return begins
    ops = ops[np.argsort(events.correlation[ops], kind="stable")]
    place = np.minimum(np.searchsorted(events.correlation[ops], events.link[kernels]), len(ops) - 1)
    found = events.correlation[ops[place]] == events.link[kernels]
    begins[kernels[found]] = events.t0[ops[place[found]]]
    return begins


def _windows(spans: list[StepSpan], times: Ints) -> Iterator[list[StepSpan]]:
    """Steps one after another, as many as have `WINDOW_ROWS` events together; at least one."""
    window: list[StepSpan] = []
    for span in spans:
        begin = window[0].t0_ns if window else span.t0_ns
        count = int(np.diff(np.searchsorted(times, [begin, span.t1_ns]))[0])
        if window and count > WINDOW_ROWS:
            yield window
            window = []
        window.append(span)
    if window:
        yield window
