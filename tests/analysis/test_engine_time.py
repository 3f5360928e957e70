"""Time between the nodes of a backward pass."""

from __future__ import annotations

import polars as pl

from stepscope.analysis.time.operators import ENGINE_NS
from stepscope.runfolder import AUTOGRAD_NODE

NODE = f"{AUTOGRAD_NODE}AddmmBackward0"


def engine_ns(*rows: tuple[int, int, str, int, int | None]) -> list[int]:
    """Of each row (begin and end, ns, name, thread, parent) of one step."""
    frame = pl.DataFrame(rows, ["t0_ns", "t1_ns", "name", "thread", "parent"], orient="row").with_columns(step=3)
    return frame.select(ENGINE_NS).to_series().to_list()


def test_what_lies_between_two_nodes_is_the_time_of_the_earlier_one() -> None:
    assert engine_ns((0, 10, NODE, 1, None), (2, 8, "aten::mm", 1, 0), (17, 20, NODE, 1, None)) == [7, 0, 0]


def test_what_lies_before_the_pass_and_between_two_passes_is_the_loop_s() -> None:
    update = (30, 40, "Optimizer.step#SGD.step", 1, None)
    assert engine_ns((5, 10, NODE, 1, None), update, (90, 99, NODE, 1, None)) == [0, 0, 0]


def test_nodes_of_two_threads_that_overlap_have_nothing_between_them() -> None:
    assert engine_ns((0, 50, NODE, 1, None), (10, 20, NODE, 2, None), (60, 70, NODE, 1, None)) == [10, 0, 0]
    assert engine_ns((0, 50, NODE, 1, None), (40, 60, NODE, 1, None)) == [0, 0]
