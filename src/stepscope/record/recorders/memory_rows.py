"""One window of allocations to the rows of memory/*.parquet.

Storages from before the window begin with its first step, and what outlives the window ends with its last: so windows
stand side by side and every row of one has its counterpart. A free of what no rule knows is a row as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import polars as pl

from stepscope.record.recorders.allocation_events import AllocationEvents
from stepscope.record.recorders.memory import HELD, Watched
from stepscope.record.recorders.ops import Labelled, row_name
from stepscope.record.recorders.phases import BACKWARD, DATA, FORWARD, MODULE_SCOPE, NO_MODULE, OTHER
from stepscope.record.recorders.storages import NO_EVENT, Storage, StorageMap, storages_of
from stepscope.record.recorders.tree import NO_PARENT, Ints
from stepscope.record.recorders.window import Window
from stepscope.runfolder import MEMORY, PHASES

_ONLY_ALLOCATE = frozenset(
    f"aten::{name}"
    for name in (
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "zeros",
        "new_zeros",
    )
)  # the op that called them is the one to name
_NOWHERE = -1


@dataclass
class MemoryBook:
    """What is kept over the windows of a run: numbers of storages, and shapes by the sequence of allocations."""

    next_number: int = 0
    reserved: dict[str, int] = field(default_factory=dict)  # the most that a device's allocator held, B
    _shapes: dict[int, list[tuple[int, ...] | None]] = field(default_factory=dict)

    def shapes(self, born: list[Storage], seen: bool) -> None:
        """Steps that make the same allocations have the same shapes: learnt where recorded, used elsewhere."""
        key = hash(tuple(storage.bytes for storage in born))
        if seen:
            self._shapes[key] = [storage.shape for storage in born]
        for storage, shape in zip(born, self._shapes.get(key, []), strict=False):
            storage.shape = storage.shape or shape


def memory_rows(
    window: Window,
    events: AllocationEvents,
    watched: Watched,
    ops: Labelled,
    names: list[str],
    modules: list[tuple[str, str]],
    book: MemoryBook,
) -> pl.DataFrame:
    """Rows as `runfolder.MEMORY`, in order of time; `names` are the texts of the ops' names."""
    start_ns, end_ns = window.steps[0].t0_ns, window.steps[-1].t1_ns
    found = storages_of(events, window.unix_offset_ns, start_ns, watched)
    _residual_on_accelerators(found, events, start_ns)
    place = _innermost(ops, events.t - window.unix_offset_ns, events.thread)
    _learn_from_uses(found, events, ops, window.unix_offset_ns)
    _categories(found.all, place, ops, names)
    kept = [storage for storage in found.all if storage.t0_ns < end_ns]
    for born in _by_step(kept, [span.t0_ns for span in window.steps]):
        book.shapes(born, window.shapes)
    for device, reserved in [("cpu", watched.reserved), *zip(events.device, events.reserved.tolist(), strict=True)]:
        if reserved > book.reserved.get(device, 0):
            book.reserved[device] = reserved
    return _frame(kept, _Named(place, ops, names, modules), window, end_ns, book)


def _residual_on_accelerators(found: StorageMap, events: AllocationEvents, start_ns: int) -> None:
    """A caching allocator states its total: what it had given out before the window and nobody in sight has."""
    first = {device: row for row, device in reversed(list(enumerate(events.device))) if events.reserved[row] > 0}
    for device, row in first.items():
        before = int(events.total[row] - events.size[row])
        known = sum(s.bytes for s in found.all if s.device == device and s.born == NO_EVENT)
        if before > known:
            found.all.insert(0, Storage(device, 0, before - known, start_ns))


def _innermost(ops: Labelled, t_ns: Ints, thread: Ints) -> Ints:
    """Row of the innermost op or scope that was open on the thread at each time, _NOWHERE outside all of them."""
    cpu = np.flatnonzero(ops.events.gpu < 0)
    t0, t1, on = ops.t0_ns[cpu], (ops.t0_ns + ops.events.t1 - ops.events.t0)[cpu], ops.events.thread[cpu]
    row_of = np.full(len(ops.t0_ns) + 1, _NOWHERE, dtype=np.int64)
    row_of[cpu] = np.arange(len(cpu))
    parent = row_of[ops.parent[cpu]]
    place = np.full(len(t_ns), _NOWHERE, dtype=np.int64)
    for each in set(thread.tolist()):
        rows, asked = np.flatnonzero(on == each), np.flatnonzero(thread == each)
        if len(rows) == 0:
            continue
        at = np.searchsorted(t0[rows], t_ns[asked], side="right") - 1
        place[asked] = np.where(at >= 0, rows[np.maximum(at, 0)], _NOWHERE)
    while True:
        ended = (place >= 0) & (t1[place] < t_ns)
        if not ended.any():
            return np.where(place >= 0, cpu[place], _NOWHERE) if len(cpu) else place
        place[ended] = parent[place[ended]]


def _learn_from_uses(found: StorageMap, events: AllocationEvents, ops: Labelled, offset_ns: int) -> None:
    """Shapes from the first op that takes a storage; one that a backward op takes was saved for it."""
    uses = events.uses
    if not uses:
        return
    at = _innermost(ops, np.array([u.t_ns for u in uses]) - offset_ns, np.array([u.thread for u in uses]))
    devices = sorted({storage.device for storage in found.all})
    for use, row in zip(uses, at.tolist(), strict=True):
        for device in devices:
            storage = found.alive(device, use.pointer, use.t_ns - offset_ns)
            if storage is not None:
                storage.shape = storage.shape if storage.shape is not None else use.shape
                storage.used_in_backward |= row >= 0 and int(ops.phase[row]) == BACKWARD
                break


def _categories(storages: list[Storage], place: Ints, ops: Labelled, names: list[str]) -> None:
    """What nobody has claimed, by where it was allocated and freed."""
    t1_ns = ops.t0_ns + ops.events.t1 - ops.events.t0
    for storage in storages:
        if storage.category is not None:
            continue
        if storage.born == NO_EVENT:
            storage.category = "other"
            continue
        row = int(place[storage.born])
        freed_in = int(place[storage.freed]) if storage.freed != NO_EVENT else _NOWHERE
        phase = int(ops.phase[row]) if row >= 0 else OTHER
        in_backward = freed_in >= 0 and int(ops.phase[freed_in]) == BACKWARD
        if row >= 0 and _is_kernel(names[int(ops.events.name[row])]) and _within(storage, int(t1_ns[row])):
            storage.category = "workspace"
        elif phase == DATA and not (freed_in >= 0 and int(ops.phase[freed_in]) == DATA):
            storage.category = "input"
        elif phase == BACKWARD:
            kept = _outlives_its_recomputation(storage, row, ops, names, t1_ns)
            storage.category = "saved" if kept else "temporary"
        elif phase in (FORWARD, OTHER) and (in_backward or storage.used_in_backward):
            storage.category = "saved"
        else:
            storage.category = "temporary"


def _is_kernel(name: str) -> bool:
    return name.startswith("aten::") and name not in _ONLY_ALLOCATE


def _within(storage: Storage, t1_ns: int) -> bool:
    """Freed by the very op that allocated it: it was never a tensor that anybody else saw."""
    return storage.t1_ns is not None and storage.t1_ns <= t1_ns


def _outlives_its_recomputation(storage: Storage, row: int, ops: Labelled, names: list[str], t1_ns: Ints) -> bool:
    """A module called within backward is recomputed; what is left of it is kept for its own backward."""
    outermost = _NOWHERE
    while row != NO_PARENT:
        if names[int(ops.events.name[row])].startswith(MODULE_SCOPE):
            outermost = row
        row = int(ops.parent[row])
    return outermost >= 0 and (storage.t1_ns is None or storage.t1_ns > int(t1_ns[outermost]))


def _by_step(storages: list[Storage], starts: list[int]) -> list[list[Storage]]:
    """The storages that each step allocated; they lie in order of time."""
    born = [storage for storage in storages if storage.born != NO_EVENT]
    edges = [*np.searchsorted([storage.t0_ns for storage in born], starts).tolist(), len(born)]
    return [born[first:last] for first, last in pairwise(edges)]


@dataclass(frozen=True)
class _Named:
    """Op, module and phase of the allocation, in words."""

    place: Ints
    ops: Labelled
    names: list[str]
    modules: list[tuple[str, str]]

    def op(self, storage: Storage) -> str | None:
        if storage.born == NO_EVENT:
            return HELD if storage.category == "other" and storage.shape is not None else None
        row = int(self.place[storage.born])
        while row >= 0 and self._name(row) in _ONLY_ALLOCATE and int(self.ops.parent[row]) != NO_PARENT:
            row = int(self.ops.parent[row])
        return row_name(self._name(row), self.modules) if row >= 0 else None

    def module(self, storage: Storage) -> str | None:
        index = storage.module
        if index == NO_MODULE and storage.born != NO_EVENT and int(self.place[storage.born]) >= 0:
            index = int(self.ops.module[int(self.place[storage.born])])
        return self.modules[index][0] if index >= 0 else None

    def phase(self, storage: Storage) -> str:
        row = int(self.place[storage.born]) if storage.born != NO_EVENT else _NOWHERE
        return PHASES[int(self.ops.phase[row])] if row >= 0 else PHASES[OTHER]

    def _name(self, row: int) -> str:
        return self.names[int(self.ops.events.name[row])]


def _frame(storages: list[Storage], named: _Named, window: Window, end_ns: int, book: MemoryBook) -> pl.DataFrame:
    ends = [end_ns if s.t1_ns is None else min(s.t1_ns, end_ns) for s in storages]
    number = np.arange(book.next_number, book.next_number + len(storages))
    book.next_number += len(storages)
    about = {
        "tensor": number,
        "category": [s.category for s in storages],
        "module": [named.module(s) for s in storages],
        "op": [named.op(s) for s in storages],
        "phase": [named.phase(s) for s in storages],
        "device": [s.device for s in storages],
        "shape": [None if s.shape is None else "x".join(map(str, s.shape)) for s in storages],
    }
    sizes = np.array([s.bytes for s in storages], dtype=np.int64)
    born = pl.DataFrame({"t_ns": [s.t0_ns for s in storages], "bytes": sizes, **about}, schema_overrides=_TEXTS)
    freed = pl.DataFrame({"t_ns": ends, "bytes": -sizes, **about}, schema_overrides=_TEXTS)
    rows = pl.concat([born, freed]).sort("t_ns", maintain_order=True)
    starts, steps = [span.t0_ns for span in window.steps], [span.step for span in window.steps]
    place = (np.searchsorted(starts, rows["t_ns"].to_numpy(), side="right") - 1).clip(min=0)
    return rows.with_columns(step=pl.Series(np.array(steps)[place])).select(list(MEMORY))


_TEXTS = dict.fromkeys(("category", "module", "op", "phase", "device", "shape"), pl.String)
