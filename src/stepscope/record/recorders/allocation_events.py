"""What torch's allocators reported in a window: every allocation and free, with its address, out of the event tree.

The flat Kineto events have sizes but no addresses; the tree has both (torch._C._profiler, see torch_private).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from stepscope.record.recorders.tree import Ints

Shape = tuple[int, ...]


class Use(NamedTuple):
    """An op that took a storage as input, known in windows that record shapes; time in Unix ns."""

    t_ns: int
    thread: int
    pointer: int
    shape: Shape


@dataclass(frozen=True)
class AllocationEvents:
    """Allocations (bytes above zero) and frees in order of time; times in Unix ns.

    total and reserved: what the allocator itself says that it has given out and holds after the event, B; of the CPU
    allocator the total counts from the first profile of the process, and nothing is reserved.
    """

    t: Ints
    thread: Ints
    pointer: Ints
    size: Ints
    total: Ints
    reserved: Ints
    device: list[str]
    uses: list[Use]


def read_tree(roots: list[Any], shapes: bool) -> AllocationEvents:
    """Walk the event tree of a window; `shapes` says whether ops have the shapes of their inputs."""
    rows: list[tuple[int, int, int, int, int, int, str]] = []
    uses: list[Use] = []
    devices: dict[Any, str] = {}
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        fields = node.extra_fields
        kind = type(fields).__name__
        if kind == "_ExtraFields_Allocation":
            device = fields.device
            name = devices.get(device) or devices.setdefault(device, str(device))
            pointer, size = fields.ptr, fields.alloc_size
            rows.append(
                (node.start_time_ns, node.start_tid, pointer, size, fields.total_allocated, fields.total_reserved, name)
            )
            continue
        if shapes and kind == "_ExtraFields_TorchOp":
            uses += _uses(node, fields)
        waiting.extend(node.children)
    return _sorted(rows, sorted(uses))


def _uses(node: Any, fields: Any) -> list[Use]:
    t_ns, thread = node.start_time_ns, node.start_tid
    found = []
    for value in fields.inputs:
        for each in value if isinstance(value, list) else (value,):
            pointer = getattr(each, "storage_data_ptr", None)
            if pointer:
                found.append(Use(t_ns, thread, pointer, tuple(each.sizes)))
    return found


def _sorted(rows: list[tuple[int, int, int, int, int, int, str]], uses: list[Use]) -> AllocationEvents:
    rows.sort(key=lambda row: row[0])
    numbers = np.array([row[:6] for row in rows], dtype=np.int64).reshape(len(rows), 6).T
    t, thread, pointer, size, total, reserved = numbers
    return AllocationEvents(t, thread, pointer, size, total, reserved, [row[6] for row in rows], uses)
