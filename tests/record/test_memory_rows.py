"""Rows from hand-made allocator events: a caching allocator with totals of its own, reused addresses, unseen frees."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import polars as pl
import pytest

from stepscope.analysis.memory.events import memory_over_time, peak
from stepscope.record.memory.event_tree import Argument, Tree, TreeOp, read_tree
from stepscope.record.memory.rows import RunMemoryState, memory_rows
from stepscope.record.memory.tensor_watch import Mark, WatchedStorages
from stepscope.record.ops.events import BACKWARD, FORWARD, Events
from stepscope.record.ops.rows import LabelledEvents, StepSpan, Window
from stepscope.record.ops.updates import OptimizerCalls
from stepscope.runfolder.parts import from_bytes, to_bytes
from stepscope.runfolder.tables import frame_of

START, END = 1_000, 2_000
NAMES = ["aten::conv", "aten::empty", "Backward0"]
MODULES = [("", "Net"), ("layer", "Conv2d")]


def allocations(*rows: tuple[int, int, int], device: str = "cpu", totals: list[int] | None = None) -> Tree:
    """(t, pointer, size); a caching allocator has totals and reserves twice as much."""
    t, pointer, size = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    total = np.array(totals if totals is not None else np.cumsum(size), dtype=np.int64)
    reserved = total * 2 if totals is not None else np.zeros_like(total)
    return Tree(t, np.ones_like(t), pointer, size, total, reserved, [device] * len(rows), [])


def labelled(*ops: tuple[int, int, int, int, int]) -> LabelledEvents:
    """(name, t0, t1, parent, phase), all of module 1 and on thread 1."""
    name, t0, t1, parent, phase = (np.array(column, dtype=np.int64) for column in zip(*ops, strict=True))
    ones, none = np.ones_like(t0), np.full_like(t0, -1)
    events = Events(name, t0, t1, ones, ones * 0, none, ones * 0, none, none, none, [])
    return LabelledEvents(events, parent, t1 - t0, phase, ones, t0, -ones)


OPS = labelled((0, 1_100, 1_200, -1, FORWARD), (1, 1_110, 1_120, 0, FORWARD), (2, 1_300, 1_400, -1, BACKWARD))


def rows(events: Tree, watched: WatchedStorages | None = None, book: RunMemoryState | None = None) -> pl.DataFrame:
    window = Window([], [StepSpan(7, START, END, 4)], 0, OptimizerCalls(), False, False)
    part = memory_rows(window, events, watched or WatchedStorages(), OPS, NAMES, MODULES, book or RunMemoryState())
    return frame_of(from_bytes(to_bytes(part, "memory"), "memory"), "memory")


def mark(t: int, pointer: int, size: int, category: str, **more: Any) -> Mark:
    ended = defaultdict(int, {None: more.pop("end_ns")} if "end_ns" in more else {})
    device, module = more.pop("device", "cpu"), more.pop("module", 1)
    return Mark(t, pointer, size, device, category, module, (size // 4,), ended, **more)


def test_scratch_of_a_kernel_is_workspace_and_what_leaves_it_is_not() -> None:
    found = rows(allocations((1_130, 1, 64), (1_140, 2, 32), (1_150, 1, -64), (1_350, 2, -32)))
    born = found.filter(pl.col("bytes") > 0)
    assert born.select("bytes", "category", "op", "module").rows() == [
        (64, "workspace", "aten::conv", "layer"),
        (32, "saved", "aten::conv", "layer"),
    ]


def test_an_op_that_only_allocates_gives_way_to_the_op_that_called_it() -> None:
    found = rows(allocations((1_115, 1, 64), (1_250, 1, -64)))
    assert found["op"].to_list() == ["aten::conv", "aten::conv"]
    assert found["category"].unique().to_list() == ["temporary"]


def test_an_address_that_is_used_again_is_another_storage() -> None:
    marks = [mark(1_310, 1, 64, "gradient")]
    found = rows(allocations((1_130, 1, 64), (1_180, 1, -64), (1_305, 1, 64)), WatchedStorages([], marks))
    assert found.filter(pl.col("bytes") > 0).select("tensor", "category").rows() == [(0, "workspace"), (1, "gradient")]


def test_what_outlives_the_window_is_closed_with_it_and_numbers_go_on() -> None:
    book = RunMemoryState()
    first = rows(allocations((1_130, 1, 64)), book=book)
    second = rows(allocations((1_130, 1, 64)), book=book)
    assert first["t_ns"].to_list() == [1_130, END]
    assert first["tensor"].to_list() == [0, 0]
    assert second["tensor"].to_list() == [1, 1]


def test_a_storage_from_before_ends_when_its_weak_reference_says_so() -> None:
    before = [
        mark(900, 5, 400, "gradient", end_ns=1_500),
        mark(900, 6, 80, "parameter"),
        mark(1, 7, 9, "other", end_ns=2),
    ]
    found = rows(allocations((1_130, 1, 64), (1_140, 1, -64)), WatchedStorages(before, []))
    gradient = found.filter(pl.col("category") == "gradient")
    assert gradient.select("t_ns", "bytes").rows() == [(START, 400), (1_500, -400)]
    assert found.filter(pl.col("category") == "other").is_empty()  # it had ended before the step began


def test_a_free_of_what_nobody_knew_is_there_from_the_start_and_a_residual() -> None:
    found = peak(rows(allocations((1_250, 9, -4_000))))
    assert found is not None
    assert (found.bytes, found.residual_bytes) == (4_000, 4_000)


def test_a_caching_allocator_has_its_own_total_and_the_difference_is_the_residual() -> None:
    """10 kB were given out before; 8 kB of them are a known parameter: 2 kB are nobody's."""
    watched = WatchedStorages([mark(900, 5, 8_000, "parameter", device="cuda:0")], [])
    book = RunMemoryState()
    events = allocations((1_130, 1, 512), (1_350, 1, -512), device="cuda:0", totals=[10_512, 10_000])
    found = rows(events, watched, book)
    highest = peak(found, "cuda:0")
    assert highest is not None
    assert (highest.bytes, highest.residual_bytes) == (10_512, 2_000)
    assert memory_over_time(found, "cuda:0")["live"].to_list() == [2_000, 10_000, 10_512, 10_000, 8_000, 0]
    assert book.reserved == {"cuda:0": 21_024}


def test_the_first_use_tells_the_shape_and_a_use_in_backward_that_it_was_saved() -> None:
    events = allocations((1_130, 1, 64), (1_140, 2, 32))
    for t_ns, pointer, shape in ((1_195, 1, (4, 4)), (1_320, 2, (2, 4)), (1_330, 2, (8,))):
        events.ops.append(TreeOp(-1, t_ns, 1, "aten::mm", 1, [Argument(0, pointer, None, shape)], []))
    found = rows(events).filter(pl.col("bytes") > 0)
    assert found.select("shape", "category").rows() == [("4x4", "temporary"), ("2x4", "saved")]


def test_a_parameter_that_is_also_an_input_stays_a_parameter() -> None:
    marks = [mark(1_160, 1, 64, "input"), mark(1_170, 1, 64, "parameter"), mark(1_180, 1, 64, "input")]
    found = rows(allocations((1_130, 1, 64)), WatchedStorages([], marks))
    assert found["category"].unique().to_list() == ["parameter"]


def test_allocations_outside_any_op_have_no_op_and_are_of_no_phase() -> None:
    found = rows(allocations((1_010, 1, 64), (1_020, 1, -64)))
    assert found.select("op", "module", "phase").row(0) == (None, None, "other")


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_a_window_without_allocations_has_no_rows(device: str) -> None:
    assert rows(read_tree([], shapes=True)).is_empty()
