"""Allocations, frees and marks of a window joined to storages: each with its address, its begin and its end."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from stepscope.record.recorders.allocation_events import AllocationEvents
from stepscope.record.recorders.memory import Mark, Watched
from stepscope.record.recorders.phases import NO_MODULE

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
    """All storages of a window, and which one is alive at an address at a time."""

    all: list[Storage] = field(default_factory=list)
    _at: dict[tuple[str, int], list[Storage]] = field(default_factory=dict)

    def add(self, storage: Storage) -> None:
        """Storages of an address are added in order of time."""
        self.all.append(storage)
        self._at.setdefault((storage.device, storage.pointer), []).append(storage)

    def last(self, device: str, pointer: int) -> Storage | None:
        """The storage added last at this address."""
        known = self._at.get((device, pointer))
        return known[-1] if known else None

    def alive(self, device: str, pointer: int, t_ns: int) -> Storage | None:
        """The storage that lives at this address at this time."""
        known = self._at.get((device, pointer), [])
        place = bisect_right(known, t_ns, key=lambda storage: storage.t0_ns) - 1
        found = known[place] if place >= 0 else None
        return found if found is not None and (found.t1_ns is None or t_ns <= found.t1_ns) else None


def storages_of(events: AllocationEvents, offset_ns: int, start_ns: int, watched: Watched) -> StorageMap:
    """Storages of a window that begins at `start_ns`; `offset_ns` is Unix less monotonic time."""
    found = StorageMap()
    for mark in watched.before:
        if mark.end_ns is None or mark.end_ns > start_ns:
            found.add(_from_before(mark, start_ns))
    times = (events.t - offset_ns).tolist()
    _add_inputs_from_before(found, events, times, start_ns, watched.marks)
    rows = zip(times, events.device, events.pointer.tolist(), events.size.tolist(), strict=True)
    for row, (t_ns, device, pointer, size) in enumerate(rows):
        if size > 0:
            found.add(Storage(device, pointer, size, max(t_ns, start_ns), born=row))
        elif size < 0:
            _free(found, row, t_ns, start_ns, device, pointer, -size)
    for mark in watched.marks:
        storage = found.alive(mark.device, mark.pointer, mark.t_ns)
        if storage is not None:
            _tell(storage, mark)
    return found


def _from_before(mark: Mark, start_ns: int) -> Storage:
    return Storage(
        mark.device, mark.pointer, mark.bytes, start_ns, mark.end_ns,
        category=mark.category, module=mark.module, shape=mark.shape,
    )  # fmt: skip


def _add_inputs_from_before(
    found: StorageMap, events: AllocationEvents, times: list[int], start_ns: int, marks: Iterable[Mark]
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
        if mark.category == "input" and first.get(place, mark.t_ns + 1) > mark.t_ns and found.last(*place) is None:
            found.add(_from_before(mark, start_ns))


def _free(found: StorageMap, row: int, t_ns: int, start_ns: int, device: str, pointer: int, size: int) -> None:
    storage = found.last(device, pointer)
    if storage is not None and storage.freed == NO_EVENT:
        # Of a storage from before the window the weak reference may know the end already: either is as good.
        storage.t1_ns, storage.freed = max(t_ns, storage.t0_ns), row
    elif storage is None and t_ns > start_ns:  # it was there, and nobody in sight had it
        found.add(Storage(device, pointer, size, start_ns, t_ns, freed=row))


def _tell(storage: Storage, mark: Mark) -> None:
    """What a storage is for; a parameter that is also somebody's input stays a parameter."""
    if storage.category is None or _RANK[mark.category] < _RANK[storage.category]:
        storage.category, storage.module = mark.category, mark.module if mark.module >= 0 else storage.module
        storage.shape = mark.shape
