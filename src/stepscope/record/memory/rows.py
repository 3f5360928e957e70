"""Turn one window of allocations into the rows of a part of memory/.

Storages from before the window begin with its first step, and what outlives the window ends with its last: so windows
stand side by side and every row of one has its counterpart. A free of what no rule knows is a row as well.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from stepscope.arrays import Ints
from stepscope.record.memory.event_tree import Tree
from stepscope.record.memory.tensor_watch import Mark, WatchedStorages
from stepscope.record.ops.events import (
    BACKWARD,
    COMMUNICATION,
    DATA,
    FORWARD,
    MODULE_SCOPE,
    NO_MODULE,
    NO_PARENT,
    OTHER,
)
from stepscope.record.ops.rows import LabelledEvents, Window, row_name
from stepscope.runfolder import HELD, PHASES, Part

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
class RunMemoryState:
    """State over the windows of a run: numbers of storages, and shapes by the sequence of allocations."""

    next_number: int = 0
    reserved: dict[str, int] = field(default_factory=dict)  # the most that a device's allocator held, B
    _shapes: dict[int, list[tuple[int, ...] | None]] = field(default_factory=dict)

    def share_shapes(self, born: list[Storage], has_shapes: bool) -> None:
        """Steps that make the same allocations have the same shapes: learnt where recorded, used elsewhere."""
        key = hash(tuple(storage.bytes for storage in born))
        if has_shapes:
            self._shapes[key] = [storage.shape for storage in born]
        for storage, shape in zip(born, self._shapes.get(key, []), strict=False):
            storage.shape = storage.shape or shape


def memory_rows(
    window: Window,
    events: Tree,
    watched: WatchedStorages,
    ops: LabelledEvents,
    names: list[str],
    modules: list[tuple[str, str]],
    state: RunMemoryState,
) -> Part:
    """Rows as `runfolder.MEMORY`, in order of time; `names` are the texts of the ops' names."""
    start_ns, end_ns = window.steps[0].t0_ns, window.steps[-1].t1_ns
    storages = storages_of(events, window.unix_offset_ns, start_ns, watched)
    _residual_on_accelerators(storages, events, start_ns)
    place = _innermost_ops(ops, events.t - window.unix_offset_ns, events.thread)
    _learn_from_uses(storages, events, ops, window.unix_offset_ns)
    _categorise_by_ops(storages.all, place, ops, names)
    of_steps = [storage for storage in storages.all if storage.t0_ns < end_ns]
    for born in _group_by_step(of_steps, [span.t0_ns for span in window.steps]):
        state.share_shapes(born, window.shapes)
    for device, reserved in [("cpu", watched.reserved), *zip(events.device, events.reserved.tolist(), strict=True)]:
        if reserved > state.reserved.get(device, 0):
            state.reserved[device] = reserved
    return _build_part(of_steps, _AllocationNames(place, ops, names, modules), window, end_ns, state)


def _residual_on_accelerators(storages: StorageMap, events: Tree, start_ns: int) -> None:
    """A caching allocator states its total: what it had given out before the window and nobody in sight has."""
    first = {device: row for row, device in reversed(list(enumerate(events.device))) if events.reserved[row] > 0}
    for device, row in first.items():
        before = int(events.total[row] - events.size[row])
        in_sight = sum(s.bytes for s in storages.all if s.device == device and s.born == NO_EVENT)
        if before > in_sight:
            storages.all.insert(0, Storage(device, 0, before - in_sight, start_ns))


def _innermost_ops(ops: LabelledEvents, t_ns: Ints, thread: Ints) -> Ints:
    """Row of the innermost op or scope that was open on the thread at each time, _NOWHERE outside all of them."""
    cpu = np.flatnonzero(ops.events.gpu < 0)
    t0, t1, on = ops.t0_ns[cpu], (ops.t0_ns + ops.events.t1 - ops.events.t0)[cpu], ops.events.thread[cpu]
    row_of = np.full(len(ops.t0_ns) + 1, _NOWHERE, dtype=np.int64)
    row_of[cpu] = np.arange(len(cpu))
    parent = row_of[ops.parent[cpu]]
    place = np.full(len(t_ns), _NOWHERE, dtype=np.int64)
    for thread_id in set(thread.tolist()):
        rows, positions = np.flatnonzero(on == thread_id), np.flatnonzero(thread == thread_id)
        if len(rows) == 0:
            continue
        at = np.searchsorted(t0[rows], t_ns[positions], side="right") - 1
        place[positions] = np.where(at >= 0, rows[np.maximum(at, 0)], _NOWHERE)
    while True:
        ended = (place >= 0) & (t1[place] < t_ns)
        if not ended.any():
            return np.where(place >= 0, cpu[place], _NOWHERE) if len(cpu) else place
        place[ended] = parent[place[ended]]


def _learn_from_uses(storages: StorageMap, events: Tree, ops: LabelledEvents, offset_ns: int) -> None:
    """Shapes from the first op that takes a storage; one that a backward op takes was saved for it."""
    tensors = ((op.t_ns, op.thread, tensor) for op in events.ops for tensor in op.tensors)
    uses = sorted((t_ns, thread, tensor.pointer, tensor.shape) for t_ns, thread, tensor in tensors if tensor.pointer)
    if not uses:
        return
    at = _innermost_ops(ops, np.array([use[0] for use in uses]) - offset_ns, np.array([use[1] for use in uses]))
    devices = sorted({storage.device for storage in storages.all})
    for (t_ns, _, pointer, shape), row in zip(uses, at.tolist(), strict=True):
        for device in devices:
            storage = storages.alive(device, pointer, t_ns - offset_ns)
            if storage is not None:
                storage.shape = storage.shape if storage.shape is not None else shape
                storage.used_in_backward |= row >= 0 and int(ops.phase[row]) == BACKWARD
                break


def _categorise_by_ops(storages: list[Storage], place: Ints, ops: LabelledEvents, names: list[str]) -> None:
    """Set the category of what nobody has claimed, by where it was allocated and freed."""
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
        name = names[int(ops.events.name[row])] if row >= 0 else ""
        is_of_kernel = name.startswith("aten::") and name not in _ONLY_ALLOCATE
        # Freed by the very op that allocated it: it was never a tensor that anybody else saw.
        if is_of_kernel and storage.t1_ns is not None and storage.t1_ns <= int(t1_ns[row]):
            storage.category = "workspace"
        elif phase == DATA and not (freed_in >= 0 and int(ops.phase[freed_in]) == DATA):
            storage.category = "input"
        elif phase == BACKWARD:
            is_saved = _outlives_its_recomputation(storage, row, ops, names, t1_ns)
            storage.category = "saved" if is_saved else "temporary"
        elif phase in (FORWARD, COMMUNICATION, OTHER) and (in_backward or storage.used_in_backward):
            storage.category = "saved"
        else:
            storage.category = "temporary"


def _outlives_its_recomputation(storage: Storage, row: int, ops: LabelledEvents, names: list[str], t1_ns: Ints) -> bool:
    """A module called within backward is recomputed; what is left of it is kept for its own backward."""
    outermost = _NOWHERE
    while row != NO_PARENT:
        if names[int(ops.events.name[row])].startswith(MODULE_SCOPE):
            outermost = row
        row = int(ops.parent[row])
    return outermost >= 0 and (storage.t1_ns is None or storage.t1_ns > int(t1_ns[outermost]))


def _group_by_step(storages: list[Storage], starts: list[int]) -> list[list[Storage]]:
    """The storages that each step allocated; they lie in order of time."""
    born = [storage for storage in storages if storage.born != NO_EVENT]
    edges = [*np.searchsorted([storage.t0_ns for storage in born], starts).tolist(), len(born)]
    return [born[first:last] for first, last in pairwise(edges)]


@dataclass(frozen=True)
class _AllocationNames:
    """Op, module and phase of the allocation, in words."""

    place: Ints
    ops: LabelledEvents
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


def _build_part(
    storages: list[Storage], named: _AllocationNames, window: Window, end_ns: int, state: RunMemoryState
) -> Part:
    """Two rows a storage: it begins with its bytes and ends with as many less."""
    begins = np.array([s.t0_ns for s in storages], dtype=np.int64)
    ends = np.array([end_ns if s.t1_ns is None else min(s.t1_ns, end_ns) for s in storages], dtype=np.int64)
    number = np.arange(state.next_number, state.next_number + len(storages))
    state.next_number += len(storages)
    sizes = np.array([s.bytes for s in storages], dtype=np.int64)
    t_ns = np.concatenate([begins, ends])
    order = np.argsort(t_ns, kind="stable")
    starts, steps = [span.t0_ns for span in window.steps], [span.step for span in window.steps]
    place = (np.searchsorted(starts, t_ns[order], side="right") - 1).clip(min=0)
    columns = {"step": np.array(steps)[place], "t_ns": t_ns[order], "bytes": np.concatenate([sizes, -sizes])[order]}
    columns["tensor"] = np.concatenate([number, number])[order]
    texts: dict[str, list[str]] = {}
    about: dict[str, list[str | None]] = {
        "category": [s.category for s in storages],
        "module": [named.module(s) for s in storages],
        "op": [named.op(s) for s in storages],
        "phase": [named.phase(s) for s in storages],
        "device": [*(s.device for s in storages)],
        "shape": [None if s.shape is None else "x".join(map(str, s.shape)) for s in storages],
    }
    for name, words in about.items():
        index, texts[name] = _number_words(words)
        columns[name] = np.concatenate([index, index])[order]
    return Part(columns, texts)


def _number_words(words: Iterable[str | None]) -> tuple[Ints, list[str]]:
    """Each word by its place in the list of those that occur; -1 for None."""
    places: dict[str, int] = {}
    index = [-1 if word is None else places.setdefault(word, len(places)) for word in words]
    return np.array(index, dtype=np.int64), list(places)


NO_EVENT = -1
_RANK = {name: rank for rank, name in enumerate(("parameter", "buffer", "gradient", "optimizer", "input", "other"))}


@dataclass
class Storage:
    """One storage of a window, times in ns of the monotonic clock; `t1_ns` None: it outlives the window.

    `born` and `freed` are indices of the allocator's events, NO_EVENT where it reported none.
    """

    device: str
    pointer: int
    bytes: int
    t0_ns: int
    t1_ns: int | None = None
    born: int = NO_EVENT
    freed: int = NO_EVENT
    category: str | None = None
    module: int = NO_MODULE
    shape: tuple[int, ...] | None = None
    used_in_backward: bool = False


@dataclass
class StorageMap:
    """All storages of a window, and which one is live at an address at a time."""

    all: list[Storage] = field(default_factory=list)
    _at: dict[tuple[str, int], list[Storage]] = field(default_factory=dict)

    def add(self, storage: Storage) -> None:
        """Storages of an address are added in order of time."""
        self.all.append(storage)
        self._at.setdefault((storage.device, storage.pointer), []).append(storage)

    def last(self, device: str, pointer: int) -> Storage | None:
        """The storage added last at this address."""
        storages = self._at.get((device, pointer))
        return storages[-1] if storages else None

    def alive(self, device: str, pointer: int, t_ns: int) -> Storage | None:
        """The storage that lives at this address at this time."""
        storages = self._at.get((device, pointer), [])
        place = bisect_right(storages, t_ns, key=lambda storage: storage.t0_ns) - 1
        latest = storages[place] if place >= 0 else None
        return latest if latest is not None and (latest.t1_ns is None or t_ns <= latest.t1_ns) else None


def storages_of(events: Tree, offset_ns: int, start_ns: int, watched: WatchedStorages) -> StorageMap:
    """Storages of a window that begins at `start_ns`; `offset_ns` is Unix less monotonic time."""
    storages = StorageMap()
    for mark in watched.before:
        if mark.end_ns is None or mark.end_ns > start_ns:
            storages.add(_storage_from_mark(mark, start_ns))
    times = (events.t - offset_ns).tolist()
    _add_inputs_from_before(storages, events, times, start_ns, watched.marks)
    rows = zip(times, events.device, events.pointer.tolist(), events.size.tolist(), strict=True)
    for row, (t_ns, device, pointer, size) in enumerate(rows):
        if size > 0:
            storages.add(Storage(device, pointer, size, max(t_ns, start_ns), born=row))
        elif size < 0:
            _end_storage(storages, row, t_ns, start_ns, device, pointer, -size)
    for mark in watched.marks:
        storage = storages.alive(mark.device, mark.pointer, mark.t_ns)
        if storage is not None:
            _categorise(storage, mark)
    return storages


def _storage_from_mark(mark: Mark, start_ns: int) -> Storage:
    return Storage(
        mark.device, mark.pointer, mark.bytes, start_ns, mark.end_ns,
        category=mark.category, module=mark.module, shape=mark.shape,
    )  # fmt: skip


def _add_inputs_from_before(
    storages: StorageMap, events: Tree, times: list[int], start_ns: int, marks: Iterable[Mark]
) -> None:
    """A batch that was made before the window is no allocation of it: it is known from the call that took it."""
    first: dict[tuple[str, int], int] = {}
    for t_ns, device, pointer, size in zip(
        times, events.device, events.pointer.tolist(), events.size.tolist(), strict=True
    ):
        if size > 0:
            first.setdefault((device, pointer), t_ns)
    for mark in marks:
        place = (mark.device, mark.pointer)
        if mark.category == "input" and first.get(place, mark.t_ns + 1) > mark.t_ns and storages.last(*place) is None:
            storages.add(_storage_from_mark(mark, start_ns))


def _end_storage(
    storages: StorageMap, row: int, t_ns: int, start_ns: int, device: str, pointer: int, size: int
) -> None:
    storage = storages.last(device, pointer)
    if storage is not None and storage.freed == NO_EVENT:
        # Of a storage from before the window the weak reference may know the end already: either is as good.
        storage.t1_ns, storage.freed = max(t_ns, storage.t0_ns), row
    elif storage is None and t_ns > start_ns:  # it was there, and nobody in sight had it
        storages.add(Storage(device, pointer, size, start_ns, t_ns, freed=row))


def _categorise(storage: Storage, mark: Mark) -> None:
    """Return the purpose of a storage; a parameter that is also somebody's input stays a parameter."""
    if storage.category is None or _RANK[mark.category] < _RANK[storage.category]:
        storage.category, storage.module = mark.category, mark.module if mark.module >= 0 else storage.module
        storage.shape = mark.shape
