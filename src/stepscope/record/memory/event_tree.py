"""Reads from the event tree of a window what its flat events do not say: where storages lie, who reads and writes them.

The flat Kineto events have sizes but no addresses; the tree has both (torch._C._profiler, see kineto.py). It numbers
each storage that it sees while memory and shapes are recorded, and gives a freed address that is used again another
number. An op reads its tensor arguments, writes those that its schema says it changes, and writes what is allocated
within it: the content of accesses.json. An access that an enclosing op has as well is noted there alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from stepscope.arrays import Ints
from stepscope.record.ops.rows import StepSpan, Window
from stepscope.runfolder import Part, RunWriter

MOST_ACCESSES = 400_000  # of a step: 6 MB; a larger one is not written
_CHANGED_UNSAID = {"aten::native_batch_norm": (3, 4), "aten::batch_norm": (3, 4), "aten::cudnn_batch_norm": (3, 4)}
NOWHERE = -1
_Access = tuple[int, bool]  # storage, is it written


class Argument(NamedTuple):
    """A tensor that an op takes: place among the arguments, address and number of its storage, sizes."""

    place: int
    pointer: int | None
    storage: int | None
    shape: tuple[int, ...]


class TreeOp(NamedTuple):
    """An op of a window that recorded shapes; `around`: place of its caller, NOWHERE for none; time in Unix ns."""

    around: int
    t_ns: int
    thread: int
    name: str
    inputs: int  # arguments of any type
    tensors: list[Argument]
    allocated: list[int]  # numbers of storages, by no op within it


@dataclass(frozen=True)
class Tree:
    """Allocations (bytes above zero) and frees in order of time, and the ops, callers first; times in Unix ns.

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
    ops: list[TreeOp]


def read_tree(roots: Sequence[Any], shapes: bool) -> Tree:
    """Walk the event tree of a window; `shapes` says whether ops have the shapes of their inputs."""
    rows: list[tuple[int, int, int, int, int, int, str]] = []
    ops: list[TreeOp] = []
    devices: dict[Any, str] = {}
    waiting = [(root, NOWHERE) for root in roots]
    while waiting:
        node, around = waiting.pop()
        fields = node.extra_fields
        kind = type(fields).__name__
        if kind == "_ExtraFields_Allocation":
            device, size, number = fields.device, fields.alloc_size, fields.allocation_id
            name = devices.get(device) or devices.setdefault(device, str(device))
            totals = fields.total_allocated, fields.total_reserved
            rows.append((node.start_time_ns, node.start_tid, fields.ptr, size, *totals, name))
            if around >= 0 and size > 0 and number is not None:
                ops[around].allocated.append(number)
            continue
        if shapes and kind == "_ExtraFields_TorchOp":
            inputs = fields.inputs
            tensors = list(_tensor_arguments(inputs))
            ops.append(TreeOp(around, node.start_time_ns, node.start_tid, node.name, len(inputs), tensors, []))
            around = len(ops) - 1
        waiting.extend((child, around) for child in node.children)
    rows.sort(key=lambda row: row[0])
    numbers = np.array([row[:6] for row in rows], dtype=np.int64).reshape(len(rows), 6).T
    t, thread, pointer, size, total, reserved = numbers
    return Tree(t, thread, pointer, size, total, reserved, [row[6] for row in rows], ops)


def _tensor_arguments(inputs: Sequence[Any]) -> Iterator[Argument]:
    for index, value in enumerate(inputs):
        for tensor in value if isinstance(value, list) else (value,):
            storage = getattr(tensor, "allocation_id", NOWHERE)
            if storage != NOWHERE:  # a tensor, with a number or None
                yield Argument(index, tensor.storage_data_ptr, storage, tuple(tensor.sizes))


def write_accesses(writer: RunWriter, tree: Tree, part: Part, window: Window) -> None:
    """Write the accesses of a window's first step, if the window recorded what tells them; the last written stays."""
    accesses = accesses_of(tree, part, window.steps[0], window.unix_offset_ns) if window.shapes and len(part) else None
    if accesses is not None:
        writer.write_storage_accesses(accesses)


def accesses_of(tree: Tree, part: Part, span: StepSpan, offset_ns: int) -> dict[str, Any] | None:
    """Return the accesses of a step in columns: row of the op call within its step, storage, and whether it is written.

    part: the rows of the same window as the tree's. None where there are none, or too many.
    """
    mine = part.columns["step"] == span.step
    names = part.texts["name"]
    times, threads = part.columns["t0_ns"][mine].tolist(), part.columns["thread"][mine].tolist()
    rows: dict[tuple[int, int, str], int] = {}
    for row, (t0, thread, name) in enumerate(zip(times, threads, part.columns["name"][mine].tolist(), strict=True)):
        rows.setdefault((t0, thread, names[name]), row)
    accesses: set[tuple[int, int, bool]] = set()
    by_op: list[tuple[int, frozenset[_Access]]] = []  # of each op: its row or that of its caller, accesses known there
    for op in tree.ops:
        row, earlier = by_op[op.around] if op.around >= 0 else (NOWHERE, frozenset())
        own = rows.get((op.t_ns - offset_ns, op.thread, op.name))
        if own is not None:
            row, new = own, frozenset(_accesses_of_op(op)) - earlier
            earlier |= new
            accesses.update((row, storage, written) for storage, written in new)
        if row >= 0:
            accesses.update((row, storage, True) for storage in op.allocated)
        by_op.append((row, earlier))
        if len(accesses) > MOST_ACCESSES:
            return None
    if not accesses:
        return None
    ordered = sorted(accesses)
    return {
        "step": span.step,
        "rows": [row for row, _, _ in ordered],
        "storages": [storage for _, storage, _ in ordered],
        "written": [int(written) for _, _, written in ordered],
    }


def _accesses_of_op(op: TreeOp) -> Iterator[_Access]:
    changed = changed_arguments(op.name, op.inputs)
    for place, _, storage, _ in op.tensors:
        if storage is not None:
            yield storage, False
            if place in changed:
                yield storage, True


@cache
def changed_arguments(name: str, count: int) -> frozenset[int]:
    """Return the places of the arguments that an op of this name and so many arguments writes.

    One without a schema is a kernel of somebody's, and may write all that it is given; a node of autograd writes what
    the ops within it do.
    """
    if "::" not in name or name.startswith(("autograd::", "torch::autograd::")):
        return frozenset()
    try:
        schemas = torch._C._jit_get_schemas_for_operator(name)
    except (AttributeError, RuntimeError):
        schemas = []
    if not schemas:
        return frozenset(range(count))
    fitting = [schema for schema in schemas if len(schema.arguments) == count] or schemas
    changed = {
        index
        for schema in fitting
        for index, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    }
    return frozenset(changed.union(_CHANGED_UNSAID.get(name, ())))
