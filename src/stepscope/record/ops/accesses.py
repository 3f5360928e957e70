"""Which tensors the op calls of one step read and wrote: the content of accesses.json.

Kineto numbers each storage that it sees while memory and shapes are recorded, and gives a freed address that is used
again another number. An op reads its tensor arguments, writes those that its schema says it changes, and writes what
is allocated within it. An access that an enclosing op has as well is noted there alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch

from stepscope.record.ops.rows import StepSpan, Window
from stepscope.runfolder import Part, RunWriter

MOST_ACCESSES = 400_000  # of a step: 6 MB; a larger one is not written
_CHANGED_UNSAID = {"aten::native_batch_norm": (3, 4), "aten::batch_norm": (3, 4), "aten::cudnn_batch_norm": (3, 4)}
_Access = tuple[int, bool]  # storage, is it written


def write_accesses(writer: RunWriter, roots: Sequence[Any], part: Part, window: Window) -> None:
    """Write the accesses of a window's first step, if the window recorded what tells them; the last written stays."""
    found = accesses_of(roots, part, window.steps[0], window.unix_offset_ns) if window.shapes and len(part) else None
    if found is not None:
        writer.accesses(found)


def accesses_of(roots: Sequence[Any], part: Part, span: StepSpan, offset_ns: int) -> dict[str, Any] | None:
    """Return the accesses of a step in columns: row of the op call within its step, storage, and whether it is written.

    roots: the event tree of a window; part: the rows of the same window. None where there are none, or too many.
    """
    mine = part.columns["step"] == span.step
    names = part.texts["name"]
    times, threads = part.columns["t0_ns"][mine].tolist(), part.columns["thread"][mine].tolist()
    rows: dict[tuple[int, int, str], int] = {}
    for row, (t0, thread, name) in enumerate(zip(times, threads, part.columns["name"][mine].tolist(), strict=True)):
        rows.setdefault((t0, thread, names[name]), row)
    found: dict[tuple[int, int, bool], None] = {}
    waiting: list[tuple[Any, int, frozenset[_Access]]] = [(root, -1, frozenset()) for root in roots]
    while waiting:
        node, row, known = waiting.pop()
        fields = node.extra_fields
        kind = type(fields).__name__
        if kind == "_ExtraFields_Allocation":
            if row >= 0 and fields.alloc_size > 0 and fields.allocation_id is not None:
                found[row, fields.allocation_id, True] = None
            continue
        if kind == "_ExtraFields_TorchOp":
            own = rows.get((node.start_time_ns - offset_ns, node.start_tid, node.name))
            if own is not None:
                row, new = own, frozenset(_arguments(node.name, fields.inputs)) - known
                known |= new
                found.update(dict.fromkeys((row, storage, written) for storage, written in new))
                if len(found) > MOST_ACCESSES:
                    return None
        waiting.extend((child, row, known) for child in node.children)
    if not found:
        return None
    ordered = sorted(found)
    return {
        "step": span.step,
        "rows": [row for row, _, _ in ordered],
        "storages": [storage for _, storage, _ in ordered],
        "written": [int(written) for _, _, written in ordered],
    }


def _arguments(name: str, inputs: Sequence[Any]) -> Iterator[_Access]:
    changed = changed_arguments(name, len(inputs))
    for place, value in enumerate(inputs):
        for tensor in value if isinstance(value, list) else (value,):
            storage = getattr(tensor, "allocation_id", None)
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
        place
        for schema in fitting
        for place, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    }
    return frozenset(changed.union(_CHANGED_UNSAID.get(name, ())))
