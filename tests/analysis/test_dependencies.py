"""Dependencies between operators: edges from tensors, a replay of the recorded step, schedules, idle time by cause."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.analysis.parts import Row, write_part
from tests.analysis.test_bottleneck import Machine
from tests.fabricate import Core, every_step, fabricate_run

from stepscope.analysis.device.occupancy import usable_cores
from stepscope.analysis.run import Run
from stepscope.analysis.time import dependencies as searched
from stepscope.analysis.time.dependencies import (
    BRANCHES,
    DATA_BESIDE,
    NO_ACCESSES,
    _same_steps,
    _units_of_step,
    data_edges,
    earliest_end_ns,
    replay_tasks,
)
from stepscope.analysis.time.idleness import DATA, HOST_CODE, SMALL, SYNC, gaps_by_cause, idle_causes
from stepscope.analysis.time.schedule import (
    Tasks,
    longest_paths_from_start,
    longest_paths_to_end,
    lower_bound_ns,
    schedule,
)
from stepscope.analysis.time.step_units import StepUnits, units_of
from stepscope.runfolder import RunWriter

LOAD = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
DIAMOND = (  # a batch, two branches of it, and what joins them; 10 us of host code before each
    Row(LOAD, "data", 10, 110),
    Row("aten::conv2d", "forward", 120, 420, module="a"),
    Row("aten::convolution", "forward", 130, 400, module="a", parent=1),
    Row("aten::conv2d", "forward", 430, 630, module="b"),
    Row("aten::add", "forward", 640, 740),
)
READS, WRITES = False, True
ACCESSES = ((0, 1, WRITES), (1, 1, READS), (2, 2, WRITES), (3, 1, READS), (3, 3, WRITES), (4, 2, READS), (4, 3, READS))


def _diamond(out: Path) -> Run:
    path = write_part(out, DIAMOND, 750, world=1, rank=None, header={"warmup_steps": 2})
    rows, storages, written = zip(*ACCESSES, strict=True)
    writer = RunWriter.attach(path)
    writer.write_storage_accesses(
        {"step": 1, "rows": rows, "storages": storages, "written": [int(flag) for flag in written]}
    )
    return Run(path)


def _units(*rows: Row, length_us: float) -> StepUnits:
    frame = pl.DataFrame(
        {
            "t0_ns": [round(row.t0 * 1000) for row in rows],
            "t1_ns": [round(row.t1 * 1000) for row in rows],
            "parent": pl.Series([row.parent for row in rows], dtype=pl.Int32),
            "module": pl.Series([row.module for row in rows], dtype=pl.String),
            **{name: [getattr(row, name) for row in rows] for name in ("name", "phase", "thread", "device")},
        }
    )
    found = units_of(frame, 0, round(length_us * 1000))
    assert found is not None
    return found


def test_an_operator_waits_for_what_wrote_its_tensors_and_for_nothing_else(tmp_path: Path) -> None:
    units = _diamond(tmp_path).dependencies().units
    after = dict(zip(units["name"] + units["module"].fill_null(""), units["after"].to_list(), strict=True))
    assert after == {LOAD: [], "aten::conv2da": [0], "aten::conv2db": [0], "aten::add": [1, 2]}


def test_critical_path_and_savings_of_two_branches_are_those_counted_by_hand(tmp_path: Path) -> None:
    found = _diamond(tmp_path).dependencies()
    assert found.critical_path_ns == pytest.approx(100e3 + 300e3 + 100e3)
    assert found.work_ns == pytest.approx(700e3)
    assert found.units.filter("critical")["module"].to_list() == [None, "a", None]
    saved = {(row["what"], row["lanes"]): row for row in found.overlap.iter_rows(named=True)}
    assert saved[DATA_BESIDE, 1]["reached_ns"] == pytest.approx(100e3)
    # b runs beside a and ends before it; 10 us before the data and 10 before the branches stay, the others are hidden.
    assert saved[BRANCHES, 2]["reached_ns"] == pytest.approx(750e3 - (10e3 + 100e3 + 10e3 + 300e3 + 100e3))


def test_writing_in_place_waits_for_those_that_read_before() -> None:
    units = _units(
        *(Row(f"aten::{name}", "forward", 10 * n, 10 * n + 5) for n, name in enumerate("abcd")), length_us=40
    )
    rows = [(0, 1, True), (1, 1, False), (2, 1, False), (2, 1, True), (3, 1, False)]
    accesses = pl.DataFrame(rows, schema=["row", "storage", "written"], orient="row")
    assert [sorted(before) for before in data_edges(units, accesses)] == [[], [0], [0, 1], [2]]


def test_what_a_custom_function_reads_any_of_its_operators_may_have_read() -> None:
    units = _units(
        Row("aten::conv2d", "forward", 0, 10),
        Row("Swish", "forward", 10, 40),
        Row("aten::sigmoid", "forward", 12, 20, parent=1),
        Row("aten::mul", "forward", 22, 38, parent=1),
        Row("aten::conv2d", "forward", 40, 50),
        length_us=50,
    )
    assert units.name == ["aten::conv2d", "aten::sigmoid", "aten::mul", "aten::conv2d"]
    rows = [(0, 1, True), (1, 1, False), (2, 2, True), (3, 2, False), (3, 3, True), (4, 3, False)]
    accesses = pl.DataFrame(rows, schema=["row", "storage", "written"], orient="row")
    assert [sorted(before) for before in data_edges(units, accesses)] == [[], [0], [0, 1], [2]]


def test_a_run_without_noted_tensors_says_why(tmp_path: Path) -> None:
    found = Run(write_part(tmp_path, DIAMOND, 750, world=1, rank=None)).dependencies()
    assert found.why == NO_ACCESSES
    assert found.overlap.is_empty()


def test_where_no_step_runs_what_the_noted_one_ran_not_all_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, noted, read = Run(fabricate_run(tmp_path, steps=150, recorded=every_step)), _units(length_us=1), list[int]()
    monkeypatch.setattr(searched, "_units_of_step", lambda _run, step: read.append(step))
    assert _same_steps(run, noted) == [noted]
    assert len(read) == 60


KERNEL: dict[str, Any] = {"device": "cuda:0", "thread": 7}
ON_A_GPU = (  # launched ahead; the host waits for the last kernel, launches, loads data, runs Python, launches anew
    Row("aten::mm", "forward", 0, 10),
    Row("aten::mm", "forward", 10, 20),
    Row("gemm", "forward", 5, 40, parent=0, **KERNEL),
    Row("gemm", "forward", 40, 70, parent=1, **KERNEL),
    Row("aten::item", "other", 20, 75),
    Row("Memcpy DtoH", "other", 70, 72, parent=4, **KERNEL),
    Row("aten::mul", "forward", 80, 90),
    Row("elementwise", "forward", 88, 95, parent=6, **KERNEL),
    Row(LOAD, "data", 95, 115),
    Row("aten::mul", "forward", 118, 128),
    Row("elementwise", "forward", 125, 150, parent=9, **KERNEL),
)


def test_a_replay_with_the_lanes_that_a_step_had_gives_the_step_on_a_cpu_and_on_a_gpu() -> None:
    for rows, length in ((DIAMOND, 750), (ON_A_GPU, 150)):
        units = _units(*rows, length_us=length)
        assert earliest_end_ns(replay_tasks(units)[0]) == pytest.approx(length * 1000)
        tasks, of_unit = replay_tasks(units)
        lanes = dict.fromkeys(tasks.lane, 1)
        again = schedule(tasks, lanes)
        assert again.end[of_unit] == pytest.approx(units.t1)
        assert again.length_ns == pytest.approx(length * 1000)


def test_gaps_of_an_accelerator_are_put_to_what_the_host_did() -> None:
    found = gaps_by_cause(_units(*ON_A_GPU, length_us=150), "cuda:0")
    # 0-5 launch; 72-88 after a wait; 95-115 data; 115-118 Python; 118-125 launch.
    assert found[SMALL] == pytest.approx(5e3 + 7e3)
    assert found[SYNC] == pytest.approx(16e3)
    assert found[DATA] == pytest.approx(20e3)
    assert found[HOST_CODE] == pytest.approx(3e3)


def _idle_shares(out: Path, recorded: Callable[[int], bool]) -> list[float]:
    """Idle time of an accelerator that is busy all the time but for a tenth, with the kernels of the step before."""
    rows = (
        Row("aten::mm", "forward", 0, 10),
        Row("aten::mm", "forward", 10, 20),
        Row("gemm", "forward", 50, 140, **KERNEL),
        Row("gemm", "forward", 240, 245, device="cuda:0", thread=8),
    )
    path = write_part(out, rows, 100, world=1, rank=None, steps=40, recorded=recorded)
    RunWriter.attach(path).write_storage_accesses({"step": 4, "rows": [0], "storages": [1], "written": [1]})
    return Run(path).dependencies().idle["share"].to_list()


def test_kernels_of_earlier_steps_that_still_run_leave_an_accelerator_no_idle_time(tmp_path: Path) -> None:
    # Its own kernel from 50 us on, that of the step before until 40, that of two steps before from 40 to 45.
    assert sum(_idle_shares(tmp_path, lambda _: True)) == pytest.approx(0.05)


def test_a_step_whose_accelerator_may_run_kernels_that_nobody_saw_is_not_judged(tmp_path: Path) -> None:
    assert _idle_shares(tmp_path, lambda step: step % 4 == 0) == []


def _random_tasks(random: np.random.Generator, count: int) -> Tasks:
    tasks = Tasks()
    for task in range(count):
        few = min(task, int(random.integers(0, 3)))
        before = random.permutation(task)[:few].tolist()
        tasks.add(float(random.integers(1, 20)), "work", before)
    return tasks


def test_a_schedule_breaks_no_rule_and_lies_between_the_bound_and_twice_of_it() -> None:
    random = np.random.default_rng(1)
    for lanes in (1, 2, 3):
        for _ in range(30):
            tasks = _random_tasks(random, 40)
            found, bound = schedule(tasks, {"work": lanes}), lower_bound_ns(tasks, {"work": lanes})
            assert bound <= found.length_ns <= (2 - 1 / lanes) * bound * (1 + 1e-12)  # Graham, 1966
            for task, before in enumerate(tasks.after):
                assert all(found.end[earlier] <= found.start[task] for earlier in before)
            for lane in range(lanes):
                mine = found.place == lane
                order = np.argsort(found.start[mine], kind="stable")
                assert (found.end[mine][order][:-1] <= found.start[mine][order][1:]).all()


def test_the_longest_way_is_that_of_all_ways_tried() -> None:
    tasks = _random_tasks(np.random.default_rng(2), 12)

    def ways(task: int) -> float:
        return tasks.duration[task] + max((ways(earlier) for earlier in tasks.after[task]), default=0.0)

    assert (longest_paths_from_start(tasks) + tasks.duration).tolist() == [ways(task) for task in range(12)]
    assert longest_paths_to_end(tasks).max() == max(ways(task) for task in range(12))


@pytest.mark.parametrize("busy", [(0.99, 0.99), (0.97, 0.05)])
def test_cores_are_idle_for_no_longer_than_they_were_seen_to_be(tmp_path: Path, busy: tuple[float, float]) -> None:
    cores = [{"core": core, "online": True} for core in (0, 1)]
    sampled = tuple(Core(share) for share in busy)
    path = fabricate_run(tmp_path, steps=60, cores=sampled, process_cores=0.02, device={"cores": cores})
    idle = idle_causes(Run(path), [_units(*DIAMOND, length_us=750)], 750e3)
    assert idle["share"].sum() == pytest.approx(1 - sum(busy) / 2, abs=0.01)


def test_cores_that_the_training_may_not_use_are_not_idle_within_its_operators(tmp_path: Path) -> None:
    machine = Machine(own_cores=1.9, allowed=2.0)
    cores = (*(Core(0.95),) * 2, *(Core(0.01),) * 14)
    online = [{"core": core, "online": True} for core in range(16)]
    device, header = {"cores": online}, {"threads": 2}
    run = Run(fabricate_run(tmp_path, steps=20, recorded=every_step, cores=cores, process_cores=1.9,
                            sampled=machine.sampled(), device=device, header=header))  # fmt: skip
    units = _units_of_step(run, 5)
    assert units is not None
    idle = idle_causes(run, [units], run.step_times.step_ns)
    assert usable_cores(run) == 2
    assert float(idle["share"].sum()) == pytest.approx(0.05, abs=0.01)


def test_cores_that_others_keep_busy_are_not_idle_within_the_operators_of_a_part_of_them(tmp_path: Path) -> None:
    cores = (Core(0.95),) * 4  # of which this training has 0.3, on two of them
    online = [{"core": core, "online": True} for core in range(4)]
    run = Run(fabricate_run(tmp_path, steps=20, recorded=every_step, cores=cores, process_cores=0.3,
                            sampled=Machine(allowed=2.0).sampled(), device={"cores": online}))  # fmt: skip
    units = _units_of_step(run, 5)
    assert units is not None
    idle = idle_causes(run, [units], run.step_times.step_ns)
    assert usable_cores(run) == 2
    assert 0 < float(idle["share"].sum()) <= 0.11  # of two cores: 0.2 cores at most


def test_of_a_simulated_board_no_core_of_this_machine_is_said_to_be_idle(tmp_path: Path) -> None:
    header = {"simulated": "raspberry-pi-5"}
    run = Run(fabricate_run(tmp_path, steps=20, sampled=Machine(allowed=2.0).sampled(), header=header))
    assert idle_causes(run, [_units(*DIAMOND, length_us=750)], 750e3).is_empty()
