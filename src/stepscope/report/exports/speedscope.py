"""speedscope: self time by module and op as flame graphs, one a phase."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepscope.arrays import Ints
from stepscope.report.exports._excerpt import Excerpt
from stepscope.runfolder import MODULE_CALL

TITLE = "flame graphs of self time, for speedscope.app"
SUFFIX = ".json"

_CPU = "cpu"
_OUTSIDE = "(outside any module)"
_TOP = -1
_FIXED, _PER_STACK = 600, 80  # bytes, measured
_Stack = tuple[tuple[str, ...], str | None]  # a value on Python 3.10


def estimate(excerpt: Excerpt) -> int:
    """Bytes that will be written, roughly: equal stacks are one, however many ops have it."""
    kinds = excerpt.run.scan_ops().select(pl.struct("name", "module", "phase").n_unique()).collect().item()
    return _FIXED + _PER_STACK * int(kinds or 0)


def write(excerpt: Excerpt, path: Path) -> None:
    """Write one profile a phase and device; its weights are self times, ns, over all chosen steps."""
    path.write_text(json.dumps(_content(excerpt), separators=(",", ":")) + "\n", encoding="utf-8")


def _content(excerpt: Excerpt) -> dict[str, Any]:
    frames: dict[str, int] = {}
    profiles = list(_profiles(excerpt.ops, frames))
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "stepscope",
        "name": excerpt.run.id,
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": name} for name in frames]},
        "profiles": profiles or [_profile("no operator was recorded", [], [])],
    }


def _profiles(ops: pl.DataFrame, frames: dict[str, int]) -> Iterator[dict[str, Any]]:
    if ops.is_empty():
        return
    numbers, stacks = _stacks(ops)
    own = ops.select(pl.col("phase", "device").cast(pl.String), "self_ns", stack=pl.Series(numbers))
    summed = own.group_by("phase", "device", "stack", maintain_order=True).agg(pl.col("self_ns").sum())
    for (phase, device), rows in summed.group_by(["phase", "device"], maintain_order=True):
        samples = [[frames.setdefault(name, len(frames)) for name in stacks[number]] for number in rows["stack"]]
        name = f"{phase}" if device == _CPU else f"{phase}, {device}"
        yield _profile(name, samples, rows["self_ns"].to_list())


def _profile(name: str, samples: list[list[int]], weights: list[int]) -> dict[str, Any]:
    return {
        "type": "sampled",
        "name": name,
        "unit": "nanoseconds",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }


def _stacks(ops: pl.DataFrame) -> tuple[Ints, list[list[str]]]:
    """Return the stack of each row, and the stacks: the modules from the outermost in, then the ops that call each
    other.

    All rows whose caller is known go on together, from the outermost ops inwards.
    """
    parent, (kind, texts) = _callers(ops), _kinds(ops)
    number_of: dict[_Stack, int] = {}
    stack_of, waiting = np.full(len(ops), _TOP), np.arange(len(ops))
    while len(waiting):
        ready = (parent[waiting] == _TOP) | (stack_of[parent[waiting]] != _TOP)
        if not ready.any():
            parent[waiting] = _TOP  # callers in a circle, in a damaged file: each counts as outermost
            continue
        rows, waiting = waiting[ready], waiting[~ready]
        callers = np.where(parent[rows] == _TOP, _TOP, stack_of[parent[rows]])
        pairs, which = np.unique(np.column_stack([callers, kind[rows]]), axis=0, return_inverse=True)
        above = list(number_of)
        called = [_stack(above[caller] if caller != _TOP else ((), None), *texts[of_kind])
                  for caller, of_kind in pairs.tolist()]  # fmt: skip
        numbers = [number_of.setdefault(stack, len(number_of)) for stack in called]
        stack_of[rows] = np.array(numbers)[which.ravel()]
    return stack_of, [list(frames) for frames, _ in number_of]


def _kinds(ops: pl.DataFrame) -> tuple[Ints, list[tuple[str | None, str]]]:
    """A number a row for its (module, name), and those by number."""
    texts = ops.select(pl.col("module", "name").cast(pl.String))
    distinct = texts.unique(maintain_order=True).with_row_index("kind")
    kind = texts.join(distinct, on=["module", "name"], how="left", nulls_equal=True, maintain_order="left")["kind"]
    return kind.cast(pl.Int64).to_numpy(), distinct.select("module", "name").rows()


def _stack(above: _Stack, module: str | None, name: str) -> _Stack:
    """The stack of a row as (frames, module): below its caller where that is of the same module, else of its module."""
    frames, of = above
    if name.startswith(MODULE_CALL) and module is not None:
        return _path(module), module
    if frames and of == module:
        return (*frames, name), module
    return (*_path(module), name), module


def _path(module: str | None) -> tuple[str, ...]:
    if module is None:
        return (_OUTSIDE,)
    parts = module.split(".") if module else []
    return ("model", *(".".join(parts[: end + 1]) for end in range(len(parts))))


def _callers(ops: pl.DataFrame) -> Ints:
    """Row of the excerpt that called each row; -1 at the top."""
    first = ops.select(pl.int_range(pl.len(), dtype=pl.Int64) - pl.col("row")).to_series()
    above = (ops["parent"].cast(pl.Int64) + first).fill_null(_TOP).to_numpy()
    return np.where((above >= 0) & (above < len(ops)), above, _TOP)
