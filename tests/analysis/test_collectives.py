"""Collectives: clock time is counted once, waiting is told from overlapping, whatever the threads do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.analysis.parts import GLOO, SECOND_GLOO, Row, call, mm, reduce, write_part

from stepscope.analysis.run import Run
from stepscope.analysis.time.collectives import CollectiveTime


def _taken(tmp_path: Path, rows: list[Row], length_us: float = 100) -> tuple[Run, CollectiveTime]:
    run = Run(write_part(tmp_path, rows, length_us))
    assert run.collective_time is not None
    return run, run.collective_time


def _in_ms(row: Row) -> Row:
    """The row with its times read as ms: the tolerance for an end that is stamped late is 0.1 ms at least."""
    return replace(row, t0=row.t0 * 1000, t1=row.t1 * 1000)


def _us(time: CollectiveTime, name: str) -> float:
    values = set(time.steps[name].to_list())
    assert len(values) == 1
    return float(values.pop()) / 1000


def _overlapped(time: CollectiveTime) -> dict[str, float]:
    return {phase: float(values[0]) / 1000 for phase, values in time.overlapped.items()}


def _own(run: Run) -> dict[str, float]:
    """Self time of the CPU by phase in one step, us."""
    table = run.self_times.filter((pl.col("step") == 3) & (pl.col("device") == "cpu"))
    return {phase: ns / 1000 for phase, ns in table.group_by("phase").agg(pl.col("self_ns").sum()).iter_rows()}


def test_a_synchronous_collective_is_exposed_and_not_counted_with_its_backend_as_well(tmp_path: Path) -> None:
    rows = [mm(0, 40), call(40, 45), reduce(44, 90), Row("aten::add_", "optimizer", 90, 100)]
    run, time = _taken(tmp_path, rows)
    assert (_us(time, "exposed_ns"), _us(time, "waited_ns"), _us(time, "total_ns")) == (50, 45, 50)
    assert _overlapped(time) == {}
    assert _own(run) == {"backward": 40, "communication": 50, "optimizer": 10}
    assert dict(run.phases().select("phase", "ns").iter_rows())["(between operations)"] == 0


def test_a_bucket_that_runs_beside_backward_is_overlapped_and_python_between_operations_is_no_wait(
    tmp_path: Path,
) -> None:
    rows = [mm(0, 20), call(20, 22), reduce(22, 90), mm(25, 40), mm(43, 60), Row("aten::add_", "optimizer", 90, 100)]
    _, time = _taken(tmp_path, [_in_ms(row) for row in rows], 100_000)
    assert _us(time, "waited_ns") == 30_000, "from the end of backward to that of the collective"
    assert _overlapped(time) == {"backward": 32_000, "(between operations)": 6_000}
    assert _us(time, "total_ns") == 70_000


def test_buckets_that_are_in_flight_at_once_are_waited_for_once(tmp_path: Path) -> None:
    first, second = reduce(5, 60), reduce(10, 80, SECOND_GLOO)
    rows = [call(4, 5), first, call(9, 10), second, mm(10, 30), Row("aten::copy_", "other", 60, 62), mm(80, 100)]
    run, time = _taken(tmp_path, [_in_ms(row) for row in rows], 100_000)
    assert _us(time, "waited_ns") == 30_000 + 18_000
    assert set(time.waits.filter(pl.col("step") == 3)["call"]) == {0, 1}
    assert sum(_own(run).values()) <= 100_000
    backend = time.kinds.filter(pl.col("where") == "backend").row(0, named=True)
    assert (backend["calls"], backend["total_ns"], backend["exposed_ns"]) == (2, 125e6, 48e6)
    assert backend["bytes"] == 8_000


def test_collectives_on_the_training_thread_alone_are_all_exposed(tmp_path: Path) -> None:
    run, time = _taken(tmp_path, [mm(0, 40), call(40, 70, "recv_"), mm(70, 100)])
    assert (_us(time, "exposed_ns"), _us(time, "waited_ns"), _us(time, "overlapped_ns")) == (30, 0, 0)
    assert _own(run) == {"backward": 70, "communication": 30}


def test_without_collectives_nothing_is_said_of_them(tmp_path: Path) -> None:
    run = Run(write_part(tmp_path, [mm(0, 90)], 100, rank=None))
    assert run.collective_time is None
    assert run.communication().is_empty()
    assert "communication" not in run.phases()["phase"]


def test_waiting_inside_a_range_is_taken_from_the_range(tmp_path: Path) -> None:
    """An optimizer that calls collectives in its step, and a module that waits in its forward pass."""
    step = Row("Optimizer.step#Zero.step", "optimizer", 40, 100)
    inner = Row("c10d::broadcast_", "communication", 45, 47, parent=1)
    rows = [mm(0, 40), step, inner, reduce(46, 90, name="broadcast")]
    run, time = _taken(tmp_path, rows)
    assert _us(time, "waited_ns") == 43
    assert _own(run) == {"backward": 40, "optimizer": 15, "communication": 45}


def test_a_backend_that_stamps_its_end_late_was_waited_for_all_the_same(tmp_path: Path) -> None:
    rows = [call(0, 5), reduce(5, 95), mm(80, 100)]
    _, time = _taken(tmp_path, rows)
    assert _us(time, "waited_ns") == 75
    assert _overlapped(time) == {"backward": 15}


def test_python_that_goes_on_before_the_collective_ends_did_not_wait_for_it(tmp_path: Path) -> None:
    rows = [call(0, 5), reduce(5, 90_000), mm(1_000, 80_000), mm(90_000, 100_000)]
    _, time = _taken(tmp_path, rows, 100_000)
    assert _us(time, "waited_ns") == 10_000
    assert _overlapped(time) == {"backward": 79_000, "(between operations)": 995}


def test_runs_from_before_there_was_this_phase_are_counted_once_as_well(tmp_path: Path) -> None:
    rows = [mm(0, 40), call(40, 45, phase="backward"), reduce(44, 90, phase="other"), mm(90, 100)]
    run, _ = _taken(tmp_path, rows)
    assert _own(run) == {"backward": 50, "communication": 50}


def test_kernels_of_collectives_on_a_device_are_exposed_where_no_other_kernel_runs(tmp_path: Path) -> None:
    kernel = Row("ncclDevKernel_AllReduce", "communication", 30, 90, 7, device="cuda:0")
    busy = Row("sgemm", "backward", 20, 70, 8, device="cuda:0")
    rows = [mm(0, 40), call(40, 45), Row("nccl:all_reduce", "communication", 45, 46), kernel, busy]
    run, _ = _taken(tmp_path, rows)
    found = run.communication().filter(pl.col("where") == "cuda:0").row(0, named=True)
    assert (found["total_ns"], found["exposed_ns"]) == (60_000, 20_000)
    assert _own(run) == {"backward": 40, "communication": 6}


@pytest.mark.parametrize("seed", range(40))
def test_whatever_the_threads_do_the_parts_of_a_step_add_up_and_nothing_is_negative(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    run = Run(write_part(tmp_path, lambda _: _chaos(random), 1_000, steps=9))
    time = run.collective_time
    if time is None:
        return
    lengths = time.steps["length_ns"].to_numpy()
    own = run.self_times.filter(pl.col("device") == "cpu")
    assert (own["self_ns"] >= -1).all()
    sums = own.group_by("step").agg(pl.col("self_ns").sum()).sort("step")["self_ns"].to_numpy()
    assert (sums <= lengths + 10).all()
    assert (time.steps["total_ns"].to_numpy() <= lengths + 10).all()
    parts = time.steps["exposed_ns"] + time.steps["overlapped_ns"]
    assert np.allclose(parts, time.steps["total_ns"], atol=10)
    assert run.phases()["share"].sum() == pytest.approx(1)


def _chaos(random: np.random.Generator) -> list[Row]:
    """A step of operators, ranges and calls one after another, and collectives at any time beside them."""
    rows: list[Row] = []
    now = 0.0
    while now < 900:
        begin = now + random.exponential(15)
        end = min(begin + random.exponential(40), 1_000.0)
        if end <= begin:
            break
        kind = random.integers(4)
        if kind == 0:
            rows.append(call(begin, end))
        elif kind == 1:
            at = len(rows)
            rows += [
                Row("Optimizer.step#SGD.step", "optimizer", begin, end),
                Row("aten::add_", "optimizer", begin + (end - begin) / 4, begin + (end - begin) / 2, parent=at),
            ]
        else:
            rows.append(mm(begin, end))
        now = end
    for thread in (GLOO, SECOND_GLOO):
        now = 0.0
        for _ in range(random.integers(6)):
            begin = now + random.exponential(100)
            end = begin + random.exponential(200)
            if begin < 1_000:
                rows.append(reduce(begin, end, thread))
            now = end
    return rows
