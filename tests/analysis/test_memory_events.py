"""Memory events to live bytes, peaks and holders: on frames small enough to count by hand, and by their laws."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analysis.memory.events import (
    allocated_by_op,
    categories_over_step,
    events_of_device,
    live_by_module,
    memory_over_time,
    peak,
    peak_by_module,
)
from stepscope.runfolder import CATEGORIES, MEMORY

PLAIN: dict[str, Any] = {name: pl.String if kind == pl.Categorical else kind for name, kind in MEMORY.items()}


def row(t: int, tensor: int, size: int, category: str = "temporary", **more: Any) -> dict[str, Any]:
    known = {"step": 0, "module": None, "op": "aten::op", "phase": "forward", "device": "cpu", "shape": None}
    return {**known, "t_ns": t, "tensor": tensor, "bytes": size, "category": category, **more}


def frame(*rows: dict[str, Any]) -> pl.DataFrame:
    plain = pl.DataFrame(list(rows), schema=PLAIN)
    return plain.select(pl.col(name).cast(kind) for name, kind in MEMORY.items())


def small_step() -> pl.DataFrame:
    """Parameters 100; 30 saved by layer a, 50 of workspace in layer b while they live: 180 at the peak."""
    return frame(
        row(10, 0, 100, "parameter", module="a", op=None, shape="5x5"),
        row(20, 1, 30, "saved", module="a", op="aten::relu", shape="30"),
        row(30, 2, 50, "workspace", module="b", op="aten::conv", phase="backward"),
        row(31, 2, -50, "workspace", module="b", op="aten::conv", phase="backward"),
        row(40, 1, -30, "saved", module="a", op="aten::relu", shape="30"),
        row(50, 0, -100, "parameter", module="a", op=None, shape="5x5"),
    )


def test_the_peak_has_its_instant_its_op_and_parts_that_add_up() -> None:
    found = peak(small_step())
    assert found is not None
    assert (found.t_ns, found.bytes, found.op, found.module, found.phase) == (30, 180, "aten::conv", "b", "backward")
    assert found.categories.select("category", "bytes").rows() == [("parameter", 100), ("workspace", 50), ("saved", 30)]
    assert found.categories["share"].sum() == pytest.approx(1)
    assert found.tensors["bytes"].to_list() == [100, 50, 30]
    assert found.residual_bytes == 0


def test_the_parts_by_module_add_up_to_the_peak() -> None:
    found = peak(small_step())
    assert found is not None
    by_module = live_by_module(found.tensors)
    assert by_module.rows() == [("a", "parameter", 100), ("b", "workspace", 50), ("a", "saved", 30)]


def test_what_nobody_holds_is_the_residual_and_what_is_kept_is_not() -> None:
    found = peak(frame(row(1, 0, 90, "other", op="held"), row(1, 1, 10, "other", op=None)))
    assert found is not None
    assert (found.bytes, found.residual_bytes, found.residual_share) == (100, 10, 0.1)


def test_no_events_have_no_peak_and_an_empty_step() -> None:
    assert peak(frame()) is None
    assert memory_over_time(frame()).is_empty()
    assert categories_over_step(frame()).is_empty()
    assert allocated_by_op(frame()).is_empty()
    assert peak_by_module(frame()).is_empty()


def test_devices_have_memories_of_their_own_and_the_fullest_is_shown() -> None:
    events = frame(row(1, 0, 100), row(2, 1, 700, device="cuda:0"), row(3, 2, 50))
    found, cpu = peak(events), peak(events, "cpu")
    assert found is not None
    assert cpu is not None
    assert (found.device, found.bytes) == ("cuda:0", 700)
    assert (cpu.device, cpu.bytes) == ("cpu", 150)


def test_several_storages_of_one_instant_count_with_the_most_they_reach() -> None:
    """A dry run counts in ops: the workspace of an op comes and goes at the same number."""
    events = frame(row(1, 0, 10), row(5, 1, 40, "workspace"), row(5, 1, -40, "workspace"), row(5, 2, 20))
    series = categories_over_step(events)
    at_five = series.filter(pl.col("t") == 4)
    assert at_five["bytes"].sum() == 50
    assert len(series) == len(CATEGORIES) * 2  # an instant is one point


def test_a_thinned_step_keeps_its_peak() -> None:
    rows = [row(0, 0, 5)]
    for t in range(1, 2001):
        size = 1_000_000 if t == 777 else 10
        rows += [row(2 * t, t, size), row(2 * t + 1, t, -size)]
    series = categories_over_step(frame(*rows), points=50)
    totals = series.group_by("t").agg(pl.col("bytes").sum())
    assert totals["bytes"].max() == 1_000_005
    assert len(totals) <= 51


def test_a_step_is_drawn_without_the_closing_of_its_window() -> None:
    series = categories_over_step(small_step())
    assert series["t"].max() == 30  # the frees at t = 50 are the end of the window, not of the step
    last = series.filter((pl.col("t") == 30) & (pl.col("category") == "parameter"))
    assert last["bytes"].item() == 100


def test_operations_allocate_so_much_a_step() -> None:
    second = small_step().with_columns(
        step=pl.lit(1, pl.UInt32), t_ns=pl.col("t_ns") + 100, tensor=pl.col("tensor") + 9
    )
    table = allocated_by_op(pl.concat([small_step(), second]))
    assert table.rows() == [("aten::conv", 1.0, 50.0, 50), ("aten::relu", 1.0, 30.0, 30)]


def test_modules_have_the_most_that_they_held_at_once() -> None:
    later = row(60, 7, 400, "temporary", module="c"), row(61, 7, -400, "temporary", module="c")
    table = peak_by_module(pl.concat([small_step(), frame(*later)]))
    assert dict(table.select("module", "bytes").iter_rows()) == {"a": 130, "b": 50, "c": 400}
    assert table["at_peak"].sum() == 400


lives = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 50), st.integers(1, 10**9), st.sampled_from(CATEGORIES)), max_size=40
)


@settings(max_examples=60, deadline=None)
@given(lives)
def test_categories_add_up_at_each_instant_and_the_peak_is_the_most(found: list[tuple[int, int, int, str]]) -> None:
    rows = []
    for tensor, (begin, length, size, category) in enumerate(found):
        rows += [row(begin, tensor, size, category), row(begin + length, tensor, -size, category)]
    events = frame(*rows)
    over_time = memory_over_time(events)
    assert (over_time.select(pl.sum_horizontal(CATEGORIES)).to_series() == over_time["live"]).all()
    highest = peak(events)
    if rows:
        assert highest is not None
        assert highest.bytes == over_time["live"].max() == highest.tensors["bytes"].sum()
        assert highest.bytes == highest.categories["bytes"].sum()
    assert events_of_device(events)["bytes"].sum() == 0
