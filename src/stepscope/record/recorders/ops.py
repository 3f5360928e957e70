"""One window of raw events to the rows of ops/*.parquet.

Rows of a step are ordered by time with parents before children; `parent` counts rows within the step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from stepscope.record.recorders import tree
from stepscope.record.recorders.events import Events, Names, columns
from stepscope.record.recorders.optimizers import modules_of_updates
from stepscope.record.recorders.phases import CLOSING, MODULE_SCOPE, NO_MODULE, label
from stepscope.record.recorders.shapes import Costs
from stepscope.record.recorders.tree import NO_PARENT, Ints
from stepscope.record.recorders.window import StepProfile, Window
from stepscope.runfolder import PHASES


@dataclass(frozen=True)
class Rows:
    """The rows of a window, and per step what the recording plan learns from.

    left_open: names of what was open when the window stopped, though it should have ended before (`open_ranges`).
    """

    frame: pl.DataFrame
    profiles: list[StepProfile]
    labelled: Labelled | None = None
    left_open: tuple[str, ...] = ()


def rows_of(window: Window, names: Names, modules: list[tuple[str, str]], book: Costs) -> Rows:
    """Convert a window; `modules` gives (qualified name, type) by module index."""
    events, left_open = until_the_close(columns(window.raw, names, window.cuda, keep_raw=window.shapes), names)
    return replace(rows_of_events(events, window, names, modules, book), left_open=left_open)


def rows_of_events(events: Events, window: Window, names: Names, modules: list[tuple[str, str]], book: Costs) -> Rows:
    """The same for events that are columns already, whatever they were read from."""
    events = events.take(tree.by_thread_and_time(_lane(events), events.t0, events.t1))
    lane = _lane(events)
    depth = tree.depths(lane, events.t0, events.t1)
    parent = tree.parents(lane, depth)
    own = tree.self_times(events.t0, events.t1, parent)
    labels = label(events, parent, depth, names.texts())
    phase, module = labels.phase.copy(), labels.module.copy()
    parent, phase, module = _kernels_join_their_ops(events, parent, phase, module)
    module = modules_of_updates(events, parent, module, names.texts(), window.optimizer_calls)
    table = Labelled(events, parent, own, phase, module, events.t0 - window.unix_offset_ns)
    return replace(_assemble(table, window, names, modules, book), labelled=table)


def until_the_close(events: Events, names: Names) -> tuple[Events, tuple[str, ...]]:
    """The events without the closing of their window, which ended what was open, and what was open even after it."""
    closing = np.flatnonzero(events.name == names.ids.get(CLOSING, -1))
    if len(closing) == 0:
        return events, ()
    begin, end = events.t0[closing[-1]], events.t1[closing[-1]]
    before = (events.t0 < begin) & (events.gpu < 0)
    unended = before & (events.thread == events.thread[closing[-1]]) & ((events.t1 > end) | (events.t1 < events.t0))
    texts = names.texts()
    left_open = tuple(texts[number] for number in events.name[unended])
    kept = events.take(np.flatnonzero(before | (events.gpu >= 0)))
    ended = np.where(kept.gpu < 0, np.minimum(kept.t1, begin), kept.t1)
    return replace(kept, t1=np.maximum(ended, kept.t0)), left_open


def _lane(events: Events) -> Ints:
    """Threads and GPU streams apart: an interval nests only within its own."""
    return np.where(events.gpu >= 0, (events.gpu + 1) * 1_000_000 + events.thread, events.thread)


def _kernels_join_their_ops(events: Events, parent: Ints, phase: Ints, module: Ints) -> tuple[Ints, Ints, Ints]:
    """A GPU row takes parent, phase and module from the op that launched it."""
    kernels = np.flatnonzero(events.gpu >= 0)
    if len(kernels) == 0:
        return parent, phase, module
    ops = np.flatnonzero(events.gpu < 0)
    ops = ops[np.argsort(events.correlation[ops], kind="stable")]
    place = np.searchsorted(events.correlation[ops], events.link[kernels])
    place = np.minimum(place, len(ops) - 1)
    found = (events.correlation[ops[place]] == events.link[kernels]) & (events.link[kernels] > 0)
    launched, by = kernels[found], ops[place[found]]
    parent[launched], phase[launched], module[launched] = by, phase[by], module[by]
    return parent, phase, module


@dataclass(frozen=True)
class Labelled:
    """Every event of a window in the order of `by_thread_and_time`, with its parent, own time, phase and module."""

    events: Events
    parent: Ints
    own: Ints
    phase: Ints
    module: Ints
    t0_ns: Ints


def _assemble(table: Labelled, window: Window, names: Names, modules: list[tuple[str, str]], book: Costs) -> Rows:
    """Give each row its step, sort by step and time, and number parents within the step."""
    if not window.steps or len(table.t0_ns) == 0:
        return Rows(pl.DataFrame(), [])
    starts = np.array([span.t0_ns for span in window.steps])
    ends = np.array([span.t1_ns for span in window.steps])
    begins = table.t0_ns.copy()
    launched = (table.events.gpu >= 0) & (table.parent != NO_PARENT)
    begins[launched] = table.t0_ns[table.parent[launched]]  # a kernel belongs to the step that launched it
    place = np.searchsorted(starts, begins, side="right") - 1
    inside = (place >= 0) & (begins < ends[np.maximum(place, 0)])
    kept = np.flatnonzero(inside)
    order = kept[np.lexsort((-table.events.t1[kept], table.t0_ns[kept], place[kept]))]
    place = place[order]
    first = np.searchsorted(place, np.arange(len(starts)))
    number = np.full(len(inside), NO_PARENT, dtype=np.int64)
    number[order] = np.arange(len(order)) - first[place]
    parent = np.where(table.parent[order] == NO_PARENT, NO_PARENT, number[table.parent[order]])
    return _finished(table, window, order, place, parent, ends, names, modules, book)


def _finished(
    table: Labelled,
    window: Window,
    order: Ints,
    place: Ints,
    parent: Ints,
    ends: Ints,
    names: Names,
    modules: list[tuple[str, str]],
    book: Costs,
) -> Rows:
    events = table.events
    t0_ns = table.t0_ns[order]
    t1_ns = t0_ns + (events.t1 - events.t0)[order]
    on_cpu = events.gpu[order] < 0
    # The optimizer's own scope is still open when its hook ends the step: no row outlasts its step on the CPU.
    overhang = np.where(on_cpu, np.maximum(t1_ns - ends[place], 0), 0)
    t1_ns, self_ns = t1_ns - overhang, np.maximum(table.own[order] - overhang, 0)
    name, module = events.name[order], table.module[order]
    profiles, flops, read = book.look_up(window, events, order, place, name, module, self_ns, names.texts())
    texts = [row_name(text, modules) for text in names.texts()]
    step = np.array([span.step for span in window.steps])[place]
    gpus = ["cpu", *(f"cuda:{index}" for index in range(int(events.gpu.max(initial=-1)) + 1))]
    frame = pl.DataFrame(
        {
            "step": step,
            "t0_ns": t0_ns,
            "t1_ns": t1_ns,
            "self_ns": self_ns,
            "parent": _null_below_zero(parent),
            "name": _texts(texts, name),
            "module": _texts([fqn for fqn, _ in modules], module),
            "phase": _texts(list(PHASES), table.phase[order]),
            "thread": events.thread[order],
            "device": _texts(gpus, events.gpu[order] + 1),
            "flops": _null_below_zero(flops),
            "bytes": _null_below_zero(read),
        }
    )
    return Rows(frame, profiles)


def row_name(text: str, modules: list[tuple[str, str]]) -> str:
    """A module's scope is shown as a call of its type; everything else keeps its own name."""
    if not text.startswith(MODULE_SCOPE):
        return text
    return f"nn.{modules[int(text[len(MODULE_SCOPE) :])][1]}"


def _texts(choices: list[str], index: Ints) -> pl.Series:
    """Indices to text through Polars' own take; a negative index is null."""
    taken = pl.Series(choices, dtype=pl.String).cast(pl.Categorical)
    texts: pl.Series = taken.gather(_null_below_zero(index).cast(pl.UInt32))
    return texts


def _null_below_zero(values: Ints) -> pl.Series:
    column = pl.Series(values)
    known: pl.Series = column.set(column < 0, None) if (values < 0).any() else column
    return known


assert NO_MODULE < 0  # _texts relies on it
