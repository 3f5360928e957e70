"""The cause that was built into a run is named first, each by two pieces of evidence, and none is made up."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.fabricate import CEILINGS, STEP, Core, Op, Sampled, every_step, fabricate_run

from stepscope.analysis.compare import compare
from stepscope.analysis.device.occupancy import occupancy, usable_cores
from stepscope.analysis.metrics import Measured, background_cpu_load, background_warning
from stepscope.analysis.process_scopes import ALL
from stepscope.analysis.run import Run
from stepscope.analysis.verdict import TITLES

_STEPS, _STEP_NS = 60, 16_000_000
_GROUPS = {"thread": "process_thread", "pressure": "system_pressure", "cgroup": "process_cgroup"}


@dataclass(frozen=True)
class Machine:
    """What the system does to a training: shares of its time and rates a second, as sampled every 10 ms."""

    runs: float = 0.98
    delayed: float = 0.01
    waits: dict[str, float] = field(default_factory=dict)
    pressure: dict[str, float] = field(default_factory=dict)  # "memory:some": 0.3
    own_cores: float = 1.0
    busy: tuple[float, float] = (0.97, 0.05)
    throttled_periods: float | None = None
    quota: float = float("nan")
    allowed: float = 2.0
    faults: float = 0.0
    swapped: float = 0.0
    limit_hits: float = 0.0
    read: float = 0.0
    clocks: tuple[float, float] | None = None  # Hz, at the begin and at the end
    limit: float | None = None
    switches: float | None = None  # voluntary, of the training thread

    def sampled(self) -> tuple[Sampled, ...]:
        """The channels that the sampler would have written, all under one sensor."""
        seconds = np.arange(-2, _STEPS * _STEP_NS // 10_000_000 + 2) / 100
        turn = np.random.default_rng(3).random(len(seconds))
        found: list[Sampled] = []

        def add(quantity: str, scope: str, values: Any, unit: str = "1", kind: str = "counter") -> None:
            channel = {"id": f"{scope}.{quantity}", "quantity": quantity, "unit": unit, "kind": kind, "scope": scope}
            shared = {"sensor": "fabricated", "refresh_ns": 1000, "source": "synthetic"}
            found.append(Sampled({**channel, **shared}, (seconds * 1e9).astype(np.int64), values + 0 * seconds))

        add("thread_cpu_time", "thread", 1e9 * (1 + self.runs * seconds), "ns")
        add("run_delay", "thread", 1e9 * (1 + self.delayed * seconds), "ns")
        edges = np.cumsum([0.0, *self.waits.values()])
        for (wait, _), low, high in zip(self.waits.items(), edges, edges[1:], strict=False):
            add("thread_waiting", f"wait:{wait}", ((turn >= low) & (turn < high)).astype(float), kind="gauge")
        for scope, share in self.pressure.items():
            add("stall_time", scope, 1e9 * (1 + share * seconds), "ns")
        if self.throttled_periods is not None:
            add("quota_periods", "cgroup", 10 * (1 + seconds))
            add("throttled_periods", "cgroup", 10 * (1 + self.throttled_periods * seconds))
        add("cpu_quota", "cgroup", self.quota, "cores", "gauge")
        add("allowed_cores", "thread", self.allowed, kind="gauge")
        if self.switches is not None:
            add("voluntary_switches", "thread", self.switches * (2 + seconds))
        add("major_faults", "process", 100 + self.faults * seconds)
        add("swap_in", "system", 1e6 + self.swapped * seconds, "B")
        add("memory_limit_hits", "cgroup", 5 + self.limit_hits * seconds)
        add("storage_read", "process", 1e6 + self.read * seconds, "B")
        if self.clocks is not None:
            add("core_frequency", "core:0", np.linspace(*self.clocks, len(seconds)), "Hz", "gauge")
        if self.limit is not None:
            add("core_frequency_limit", "policy0", self.limit, "Hz", "gauge")
        return tuple(found)


def _in_blocks(step: int) -> bool:
    return step // 5 % 2 == 0


def _run(
    out: Path,
    machine: Machine,
    ops: tuple[Op, ...] = STEP,
    residual_us: int = 1000,
    threads: int = 1,
    overhead: float | None = None,
    loading_ns: int | None = None,
    **more: Any,
) -> Run:
    """A run with every step profiled; with an overhead of profiling half of them. loading_ns: of all data loaders."""
    cores = [{"core": core, "online": True, "max_frequency_hz": 2_000_000_000} for core in (0, 1)]
    return Run(
        fabricate_run(
            out, steps=_STEPS, recorded=every_step if overhead is None else _in_blocks, ops=ops,
            residual_us=residual_us, noise=0.02, overhead=overhead or 0.0,
            cores=tuple(Core(busy) for busy in machine.busy), process_cores=machine.own_cores,
            sampled=machine.sampled(), device={"cores": cores, **more},
            header={"threads": threads, "recorder": {"loading_ns": loading_ns}},
        )
    )  # fmt: skip


_DATA = (Op("enumerate(DataLoader)#x.__next__", None, "data", 30_000), *STEP[1:])
_TINY = tuple(Op("aten::add", "fc", "forward", 6, flops=None, bytes=64) for _ in range(800))
_CHAIN = tuple(Op("aten::mul", "act", "forward", 2_000, bytes=8_000_000) for _ in range(6))
_COLLECTIVE = (Op("gloo:all_reduce", None, "communication", 9_000), *STEP)
_BUSY = (0.99, 0.99)

CAUSES: dict[str, tuple[Machine, dict[str, Any], str, str]] = {
    "slow loader": (Machine(0.34, 0.01, {"timer": 0.65}, own_cores=0.35), {"ops": _DATA}, "input", "data loader"),
    "computing loader": (Machine(0.98), {"ops": _DATA}, "input", "data loader"),
    "loader that reads a slow disk": (
        Machine(0.4, 0.01, {"disk": 0.58}, {"io:some": 0.6}, own_cores=0.4, read=2e7), {"ops": _DATA}, "input", "disk",
    ),
    "sleep in the loop": (
        Machine(0.34, 0.01, {"timer": 0.65}, own_cores=0.35), {"residual_us": 30_000}, "idle", "sleep",
    ),
    "background load": (
        Machine(0.5, 0.5, pressure={"cpu:some": 0.9}, own_cores=0.5, busy=_BUSY), {}, "cpu-starved", "background load",
    ),
    "background load on operators with two threads": (
        Machine(0.5, 0.2, {"lock": 0.3}, {"cpu:some": 0.9}, own_cores=0.9, busy=_BUSY), {"threads": 2},
        "cpu-starved", "background load",
    ),
    "more threads than cores": (
        Machine(0.1, 0.85, pressure={"cpu:some": 0.9}, own_cores=1.95, busy=_BUSY), {"threads": 16},
        "cpu-starved", "more threads than cores",
    ),
    "CPU quota": (
        Machine(0.4, 0.05, own_cores=0.4, throttled_periods=0.9, quota=0.4), {}, "cpu-starved", "CPU quota",
    ),
    "one core of two": (
        Machine(0.5, 0.5, own_cores=0.99, allowed=1.0, busy=(0.99, 0.02)), {"threads": 2}, "cpu-starved", "affinity",
    ),
    "swap": (
        Machine(0.4, 0.01, {"disk": 0.58}, {"memory:some": 0.6, "io:some": 0.6}, 0.4, faults=900.0, swapped=4e7), {},
        "memory-capacity", "swap and reclaim",
    ),
    "pages that are read again and again, in a few steps": (
        Machine(0.54, 0.05, {"disk": 0.1}, {"io:full": 0.36}, faults=16_000.0, read=6.8e7, limit_hits=5_000.0), {},
        "memory-capacity", "swap and reclaim",
    ),
    "interpreter lock": (
        Machine(0.1, 0.02, {"interpreter": 0.88}, own_cores=0.98), {"residual_us": 30_000}, "lock",
        "interpreter lock (GIL)",
    ),
    "interpreter lock, by its switches": (
        Machine(0.1, 0.02, {"interpreter": 0.88}, own_cores=0.98, switches=175.0), {"residual_us": 30_000}, "lock",
        "interpreter lock (GIL)",
    ),
    "wait for another thread with a time limit": (
        Machine(0.1, 0.02, {"interpreter": 0.88}, own_cores=0.98, switches=30.0), {"residual_us": 30_000}, "lock",
        "lock",
    ),
    "clock that falls": (Machine(clocks=(2e9, 0.8e9)), {}, "throttled", "clock"),
    "clock under a limit": (Machine(clocks=(1e9, 1e9), limit=1e9), {}, "throttled", "clock"),
    "tiny operators": (Machine(), {"ops": _TINY}, "overhead", "dispatch"),
    "Python": (Machine(), {"residual_us": 30_000}, "overhead", "Python"),
    "products": (Machine(), {}, "compute", "arithmetic"),
    "elementwise chain": (Machine(), {"ops": _CHAIN}, "memory-bandwidth", "memory traffic"),
    "collectives": (Machine(0.6, 0.01, {"process": 0.36}), {"ops": _COLLECTIVE}, "communication", "collectives"),
}  # fmt: skip


@pytest.mark.parametrize("planted", CAUSES)
def test_the_cause_that_was_planted_comes_first_with_two_pieces_of_evidence(tmp_path: Path, planted: str) -> None:
    machine, training, bound, name = CAUSES[planted]
    verdict = _run(tmp_path, machine, **training).verdict()
    assert (verdict.bound, verdict.causes[0].name) == (bound, name), verdict.sentence
    assert verdict.sentence.startswith(TITLES[verdict.bound])
    assert verdict.next
    for cause in verdict.causes:
        assert len(cause.evidence) >= 2
        assert 0 <= cause.share <= 1
        assert (cause.low or 0) <= cause.share <= (1 if cause.high is None else cause.high) + 1e-9


@pytest.mark.parametrize(
    "quiet",
    [
        Machine(),
        Machine(0.93, 0.05, {"lock": 0.01}, {"cpu:some": 0.3}),
        Machine(0.95, 0.02, {"disk": 0.02}, {"io:some": 0.4}, faults=2.0, read=1e6),  # another program uses the disk
        Machine(pressure={"memory:some": 0.3}, swapped=1e7),  # another program swaps
        Machine(clocks=(2e9, 1.9e9)),
        Machine(clocks=(1e9, 1e9)),  # low throughout, and nothing says why
        Machine(allowed=1.0, own_cores=0.5, busy=(0.5, 0.05)),
        Machine(busy=(0.97, 0.9)),  # the other core is another program's, and this one lacks none
    ],
)
def test_a_machine_that_takes_nothing_from_the_training_is_no_cause(tmp_path: Path, quiet: Machine) -> None:
    verdict = _run(tmp_path, quiet).verdict()
    assert verdict.bound == "compute", verdict.sentence
    assert [cause.bound for cause in verdict.causes] == ["compute"]


@pytest.mark.parametrize(
    "reads",
    [
        Machine(
            0.54, 0.05, {"disk": 0.1}, {"io:full": 0.36}, faults=16_000.0, read=6.8e7
        ),  # a file, for the first time
        Machine(0.54, 0.05, {"disk": 0.1}, {"io:full": 0.36}, faults=20.0, read=6.8e7, limit_hits=5_000.0),  # by read()
        Machine(0.98, 0.01, {}, {"io:full": 0.36}, faults=16_000.0, read=6.8e7, limit_hits=5_000.0),  # another program
        Machine(0.34, 0.01, {"timer": 0.65}, {"io:full": 0.4}, own_cores=0.35, limit_hits=50.0),  # workers read
        Machine(0.54, 0.01, {"disk": 0.02}, {"io:full": 0.36}, limit_hits=50.0),  # a checkpoint is written
        Machine(0.34, 0.01, {"timer": 0.65}, {"io:full": 0.6}, swapped=2e5),  # another program swaps
    ],
)
def test_storage_that_others_wait_for_or_that_is_read_but_once_is_no_lack_of_memory(
    tmp_path: Path, reads: Machine
) -> None:
    verdict = _run(tmp_path, reads).verdict()
    assert all(cause.bound != "memory-capacity" for cause in verdict.causes), verdict.sentence


def test_batches_that_come_by_a_queue_with_a_time_limit_are_input_and_no_lock(tmp_path: Path) -> None:
    machine = Machine(0.34, 0.01, {"interpreter": 0.65}, own_cores=0.6, switches=30.0)
    loading = Op("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", None, "data", 30_000)
    verdict = _run(tmp_path, machine, ops=(loading, *STEP[1:])).verdict()
    assert verdict.bound == "input", verdict.sentence
    assert all(cause.bound != "lock" for cause in verdict.causes), verdict.sentence


@pytest.mark.parametrize(("part", "bound"), [(0.6, "input"), (0.05, "compute")])
def test_loading_takes_no_more_of_a_run_than_its_loaders_took(tmp_path: Path, part: float, bound: str) -> None:
    steps = _run(tmp_path / "first", Machine(0.98), ops=_DATA).steps
    loading_ns = int(part * (steps["t1_ns"][-1] - steps["t0_ns"][0]))
    verdict = _run(tmp_path / "run", Machine(0.98), ops=_DATA, loading_ns=loading_ns).verdict()
    found = [cause for cause in verdict.causes if cause.bound == "input"]
    assert [cause.share for cause in found] == ([pytest.approx(part, abs=0.01)] if bound == "input" else [])
    assert all(cause.confidence == "high" for cause in found)


def test_long_pauses_between_steps_do_not_make_a_slow_loader_a_fast_one(tmp_path: Path) -> None:
    run = _run(tmp_path, Machine(0.98), ops=_DATA, loading_ns=_STEPS * 30_000_000)
    steps = pl.read_parquet(run.path / "steps.parquet")
    pause_ns = steps["step"].cast(pl.Int64) // 10 * 2_000_000_000  # an evaluation after every ten steps
    later = (pl.col(name).cast(pl.Int64) + pause_ns for name in ("t0_ns", "t1_ns"))
    steps.with_columns(*later).cast(steps.schema).write_parquet(run.path / "steps.parquet")
    verdict = Run(run.path).verdict()
    assert verdict.bound == "input", verdict.sentence
    assert verdict.causes[0].share == pytest.approx(30 / 45, abs=0.02)


@pytest.mark.parametrize("count", [1, 6])
def test_cores_of_a_simulated_board_are_none_of_this_machine(tmp_path: Path, count: int) -> None:
    """Two threads on the two cores of this machine, beside those of a board that is idle."""
    machine = Machine(0.7, 0.3, own_cores=1.9, allowed=2.0, pressure={"cpu:some": 0.9})
    path = fabricate_run(
        tmp_path, steps=_STEPS, recorded=every_step, noise=0.02, cores=(Core(0.1),) * count, process_cores=1.9,
        sampled=machine.sampled(), device={"cores": [{"core": core, "online": True} for core in range(count)]},
        header={"threads": 2, "simulated": "raspberry-pi-5"},
    )  # fmt: skip
    run = Run(path)
    usage = occupancy(run)
    assert (usage.cores, usage.busy_cores, usable_cores(run)) == (2, None, 2)
    assert usage.process_cores is not None
    assert usage.process_cores.value == pytest.approx(1.9, abs=0.1)
    assert [cause.name for cause in run.verdict().causes if cause.bound == "cpu-starved"] == ["background load"]


def test_a_wait_for_another_process_is_no_loading_where_the_loaders_took_little_of_the_run(tmp_path: Path) -> None:
    machine = Machine(0.34, 0.01, {"process": 0.65}, own_cores=0.35)  # that steps an environment, say
    loading = Op("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", None, "data", 200)
    more: dict[str, Any] = {"ops": (loading, *STEP[1:]), "residual_us": 30_000}
    verdict = _run(tmp_path / "apart", machine, loading_ns=30_000_000, **more).verdict()
    assert (verdict.bound, verdict.causes[0].name) == ("idle", "another process"), verdict.sentence
    assert all(cause.bound != "input" for cause in verdict.causes)
    assert _run(tmp_path / "loading", machine, loading_ns=2_000_000_000, **more).verdict().bound == "input"


def test_a_training_whose_waits_cannot_be_read_has_a_verdict_with_loader_workers_too(tmp_path: Path) -> None:
    loading = Op("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", None, "data", 30_000)
    path = fabricate_run(
        tmp_path, steps=60, recorded=every_step, ops=(loading, *STEP[1:]), cores=(Core(0.4),), process_cores=0.35
    )
    assert Run(path).verdict().bound == "input"


def test_a_loop_that_waits_for_what_cannot_be_read_is_not_said_to_sleep(tmp_path: Path) -> None:
    path = fabricate_run(
        tmp_path, steps=60, recorded=every_step, residual_us=30_000, cores=(Core(0.4), Core(0.05)), process_cores=0.35
    )
    verdict = Run(path).verdict()
    assert (verdict.bound, verdict.causes[0].name, verdict.confidence) == ("idle", "wait", "medium"), verdict.sentence
    assert "timer" not in verdict.next[0]


def test_the_threads_of_the_training_are_no_background_load(tmp_path: Path) -> None:
    machine, training, _, _ = CAUSES["more threads than cores"]
    verdict = _run(tmp_path, machine, **training).verdict()
    assert verdict.causes[0].evidence[0].text == "it computes with 16 threads on 2 cores"
    assert "background" not in verdict.sentence
    assert "set_num_threads" in verdict.next[0]


def test_a_load_that_wanders_over_many_cores_is_seen() -> None:
    cores = [Measured("core_utilisation", f"core:{n}", 1 / 16, "1", 0.0, 1 / 8) for n in range(16)]
    own = [Measured("process_cpu_utilisation", ALL, 0.1, "cores", 0.08, 0.12)]
    (load,) = background_cpu_load([*cores, *own])
    assert load.value == pytest.approx(0.9)
    assert load.low == pytest.approx(0.9 - math.hypot(0.25, 0.02))
    assert background_warning([load])


def test_a_starved_training_is_given_no_advice_on_its_layers(tmp_path: Path) -> None:
    machine, training, _, _ = CAUSES["background load"]
    verdict = _run(tmp_path, machine, **training).verdict()
    assert "Conv2d" not in verdict.sentence
    assert all("compile" not in said and "layer" not in said for said in verdict.next)


def test_without_ceilings_a_limit_of_the_device_is_not_named_and_what_would_tell_is_said(tmp_path: Path) -> None:
    verdict = _run(tmp_path, Machine(), ceilings=None).verdict()
    assert (verdict.bound, verdict.confidence) == ("unknown", "none")
    assert "ceilings" in verdict.sentence
    assert "stepscope doctor --ceilings" in verdict.next[-1]


def test_operators_far_below_every_ceiling_are_not_called_bound_by_one(tmp_path: Path) -> None:
    slow = (Op("aten::mm", "fc", "forward", 10_000, flops=1_000_000, bytes=9_000),)
    verdict = _run(tmp_path, Machine(), ops=slow).verdict()
    assert (verdict.bound, verdict.causes[0].name) == ("kernels", "far below the ceilings")
    assert "farthest from it is aten::mm" in verdict.sentence


def test_a_bound_is_not_sure_where_profiling_slowed_the_steps_and_no_known_cost_explains_it(tmp_path: Path) -> None:
    quiet, slowed = (_run(tmp_path / f"{part}", Machine(), overhead=part).verdict() for part in (0.02, 0.5))
    assert (quiet.bound, quiet.confidence) == ("compute", "high")
    assert (slowed.bound, slowed.confidence) == ("compute", "medium")


def test_operators_that_compute_little_of_the_step_are_not_its_cause(tmp_path: Path) -> None:
    slow = Op("aten::mm", "fc", "forward", 2_000, flops=200_000, bytes=9_000)
    unknown = Op("own::kernel", "fc", "forward", 9_000)
    assert _run(tmp_path, Machine(), ops=(slow, unknown)).verdict().bound != "kernels"


def test_a_run_from_before_the_thread_was_sampled_is_starved_where_all_cores_are_busy_with_others(
    tmp_path: Path,
) -> None:
    run = Run(fabricate_run(tmp_path, steps=40, cores=(Core(0.99), Core(0.99)), process_cores=0.2))
    assert run.verdict().bound == "cpu-starved"


def test_advice_that_is_followed_already_is_not_given(tmp_path: Path) -> None:
    update = Op("Optimizer.step#SGD.step", None, "optimizer", 1500)
    plain = _run(tmp_path / "plain", Machine(), ops=(*_TINY, update)).verdict().next
    foreach = Op("aten::_foreach_add_", None, "optimizer", 300)
    followed = _run(tmp_path / "foreach", Machine(), ops=(*_TINY, update, foreach)).verdict().next
    assert any("foreach=True" in said for said in plain)
    assert not any("foreach=True" in said for said in followed)


def _twice(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    return tuple(replace(op, self_us=2 * op.self_us, calls=_twice(op.calls)) for op in ops)


@pytest.mark.parametrize(
    ("machine", "named"),
    [
        (Machine(0.5, 0.5, pressure={"cpu:some": 0.9}, own_cores=0.5, busy=_BUSY), "load"),
        (Machine(0.5, 0.05, own_cores=0.5, throttled_periods=0.9, quota=0.5), "CPU quota"),
        (Machine(clocks=(1e9, 1e9)), "clock"),
        (
            Machine(0.5, 0.0, {"disk": 0.5}, {"memory:some": 0.5}, 0.5, faults=900.0, swapped=4e7),
            "memory",
        ),
    ],
)
def test_what_the_machine_did_explains_the_difference_of_two_like_runs_and_no_layer_does(
    tmp_path: Path, machine: Machine, named: str
) -> None:
    alone = replace(Machine(clocks=(2e9, 2e9)), pressure=dict.fromkeys(machine.pressure, 0.0))
    first = _run(tmp_path / "alone", alone)
    other = _run(tmp_path / "slow", machine, ops=_twice(STEP), residual_us=2000)
    (said,) = compare([first, other]).sentences()
    assert f"The machine ({named}): " in said
    assert "features" not in said
    assert "aten" not in said
    assert compare([first, other]).surroundings()[0].share > 0.5


def test_a_longer_wait_for_a_core_amid_the_same_load_is_load(tmp_path: Path) -> None:
    first = _run(tmp_path / "a", Machine(0.7, 0.3, pressure={"cpu:some": 1.0}, own_cores=0.7, busy=_BUSY))
    slow = Machine(0.35, 0.65, pressure={"cpu:some": 1.0}, own_cores=0.35, busy=_BUSY)
    other = _run(tmp_path / "b", slow, ops=_twice(STEP), residual_us=2000)
    comparison = compare([first, other])
    assert [part.name for part in comparison.surroundings()] == ["load"]
    assert comparison.by_the_machine()
    alone = [replace(machine, busy=(0.0, 0.0)) for machine in (Machine(0.7, 0.3, own_cores=0.7), slow)]
    paths = [_run(tmp_path / f"alone{index}", machine, ops=ops)
             for index, (machine, ops) in enumerate(zip(alone, (STEP, _twice(STEP)), strict=True))]  # fmt: skip
    assert compare(paths).surroundings() == (), "threads of its own kept it waiting"


def test_a_step_of_more_work_that_waits_for_the_same_share_of_its_time_is_no_difference_of_the_machine(
    tmp_path: Path,
) -> None:
    busy = Machine(0.4, 0.6, pressure={"cpu:some": 1.0}, own_cores=0.4, busy=_BUSY)
    first, other = _run(tmp_path / "a", busy), _run(tmp_path / "b", busy, ops=_twice(STEP), residual_us=2000)
    comparison = compare([first, other])
    assert comparison.surroundings() == ()
    assert "'features.0'" in comparison.sentences()[0]


def test_a_slower_layer_on_a_machine_as_quiet_is_named_as_before(tmp_path: Path) -> None:
    first = _run(tmp_path / "a", Machine())
    other = _run(tmp_path / "b", Machine(), ops=(*STEP[:-2], *_twice(STEP[-2:-1]), STEP[-1]))
    (said,) = compare([first, other]).sentences()
    assert "'features.0'" in said
    assert compare([first, other]).surroundings() == ()


def test_a_training_that_has_a_core_for_each_thread_and_never_waits_is_not_starved(tmp_path: Path) -> None:
    pinned = Machine(0.99, 0.0, own_cores=0.99, allowed=1.0, busy=(0.99, 0.02))
    verdict = _run(tmp_path, pinned, threads=1).verdict()
    assert verdict.bound == "compute"
    assert all(cause.bound != "cpu-starved" for cause in verdict.causes)


def test_a_training_that_uses_more_cores_than_its_main_thread_is_bound_to_is_not_starved(tmp_path: Path) -> None:
    bound = Machine(0.98, 0.0, own_cores=1.9, allowed=1.0, busy=(0.97, 0.95))
    verdict = _run(tmp_path, bound, threads=2).verdict()
    assert all(cause.bound != "cpu-starved" for cause in verdict.causes), verdict.sentence


_AT_BOTH_CEILINGS = (
    STEP[0],
    Op("aten::mkldnn_convolution", "features.0", "forward", 5600, flops=11_400_000, bytes=50_000),
    Op("aten::add", "features.1", "forward", 5600, bytes=40_000_000),
)


def test_operators_at_two_ceilings_are_both_named_where_only_together_they_take_the_most(tmp_path: Path) -> None:
    verdict = _run(tmp_path, Machine(), ops=_AT_BOTH_CEILINGS, residual_us=2600).verdict()
    assert {cause.bound for cause in verdict.causes} == {"compute", "memory-bandwidth"}
    assert verdict.confidence == "medium"
    assert all(0.3 < cause.share < 0.4 for cause in verdict.causes)


def _on_a_gpu(out: Path, flops: int | None, kernel_us: int) -> Run:
    kernel = Op("sgemm", "fc", "forward", kernel_us, device="cuda:0", thread=7)
    ops = (Op("aten::mm", "fc", "forward", 9_000, (kernel,), flops=flops), Op("aten::add", "fc", "forward", 500))
    return _run(out, Machine(), ops=ops, ceilings={**CEILINGS, "device": "cuda:0"})


def test_each_of_two_gpus_is_held_against_the_ceilings_of_one_by_its_own_flops(tmp_path: Path) -> None:
    def product(gpu: int, kernel_us: int) -> Op:
        kernel = Op("sgemm", f"fc{gpu}", "forward", kernel_us, device=f"cuda:{gpu}", thread=7 + gpu)
        return Op("aten::mm", f"fc{gpu}", "forward", 5_000, (kernel,), flops=15_000_000)

    limits = {**CEILINGS, "device": "cuda:0"}
    ops = (product(0, 9_500), product(1, 9_900))
    verdict = _run(tmp_path, Machine(), ops=ops, residual_us=100, ceilings=limits).verdict()
    assert verdict.bound == "compute", verdict.sentence
    assert "its kernels reach 1.5" in verdict.sentence, "GFLOP/s, of one GPU: not the 3 of both"


def test_a_low_clock_of_the_cpu_throttles_no_training_whose_gpu_is_busy(tmp_path: Path) -> None:
    slow = Machine(clocks=(1e9, 1e9), limit=1e9)
    kernel = Op("sgemm", "fc", "forward", 9_900, device="cuda:0", thread=7)
    ops = (Op("aten::mm", "fc", "forward", 10_000, (kernel,)),)
    busy = _run(tmp_path / "busy", slow, ops=ops, residual_us=0)
    assert "throttled" not in [cause.bound for cause in busy.verdict().causes]
    quick = _run(tmp_path / "quick", Machine(clocks=(2e9, 2e9)), ops=(replace(ops[0], self_us=9_000),), residual_us=0)
    assert "clock" not in [part.name for part in compare([quick, busy]).surroundings() if part.share > 0.2]
    alone = _run(tmp_path / "alone", slow)
    assert alone.verdict().bound == "throttled"


def test_of_kernels_whose_work_is_not_known_no_ceiling_is_said_to_be_far(tmp_path: Path) -> None:
    verdict = _on_a_gpu(tmp_path, None, 9_000).verdict()
    assert verdict.bound == "unknown"
    assert "are not known" in verdict.sentence
    assert "near neither" not in verdict.sentence


def test_where_the_load_of_the_machine_was_not_read_no_work_is_the_cause_with_high_confidence(tmp_path: Path) -> None:
    read = _run(tmp_path / "read", Machine(), ops=_CHAIN, ceilings=CEILINGS)
    not_read = _run(tmp_path / "not", Machine(), ops=_CHAIN, ceilings=CEILINGS)
    for file in not_read.path.glob("samples/*"):
        file.unlink()
    first, without = (Run(run.path).verdict().causes[0] for run in (read, not_read))
    assert (first.bound, first.confidence) == (without.bound, "high")
    assert without.confidence == "medium"
    assert any("background CPU load" in evidence.text for evidence in without.evidence)


def test_few_cores_that_the_hypervisor_took_of_many_do_not_explain_threads_that_wait_for_each_other(
    tmp_path: Path,
) -> None:
    machine = Machine(0.1, 0.85, pressure={"cpu:some": 0.9}, own_cores=15.0, allowed=16.0)
    t_ns = np.arange(-2, 98) * 10_000_000
    about = {"quantity": "steal_time", "unit": "ns", "kind": "counter", "scope": "system", "refresh_ns": 1000}
    steal = Sampled({"id": "steal", "sensor": "stolen", "source": "synthetic", **about}, t_ns, (t_ns + 1e9) * 0.2)

    def bound(cores: int, threads: int, own_cores: float) -> str:
        online = [{"core": core, "online": True} for core in range(cores)]
        path = fabricate_run(
            tmp_path / f"{cores}", steps=_STEPS, recorded=every_step, noise=0.02, device={"cores": online},
            cores=tuple(Core(own_cores / cores) for _ in range(cores)), process_cores=own_cores,
            sampled=(*machine.sampled(), steal), header={"threads": threads},
        )  # fmt: skip
        return Run(path).verdict().causes[0].name

    assert bound(16, 64, 15.0) == "more threads than cores"
    assert bound(1, 1, 0.5) == "hypervisor"


def test_an_evaluation_that_computes_is_not_told_to_leave_out_a_backward_pass(tmp_path: Path) -> None:
    convolution = Op("aten::mkldnn_convolution", "features.0", "forward", 14_000, flops=28_000_000, bytes=50_000)
    verdict = _run(
        tmp_path, Machine(), ops=(Op("nn.Net", "", "forward", 10, (convolution,)),), residual_us=300
    ).verdict()
    assert verdict.bound == "compute"
    assert verdict.next
    assert not any("gradient" in advice for advice in verdict.next)


def test_a_training_of_a_head_alone_is_not_told_to_freeze_what_is_frozen(tmp_path: Path) -> None:
    frozen = Op("aten::mkldnn_convolution", "features.0", "forward", 14_000, flops=28_000_000, bytes=50_000)
    head = Op("aten::addmm", "head", "forward", 200, flops=300_000, bytes=5_000)
    gradient = Op("aten::mm", "head", "backward", 400, flops=600_000, bytes=5_000)
    ops = (Op("nn.Net", "", "forward", 10, (frozen, head)), gradient)
    verdict = _run(tmp_path, Machine(), ops=ops, residual_us=300).verdict()
    assert verdict.bound == "compute"
    assert not any("freeze" in advice for advice in verdict.next)
    assert any("frozen" in advice for advice in verdict.next)


_EVERY, _PAUSE_NS = 10, 160_000_000  # as long as ten steps: half of the time


def _with_pauses(out: Path, waits: str, ops: tuple[Op, ...]) -> Run:
    """A run whose thread runs in its steps and waits between every ten of them, as in an evaluation or a save."""
    t_ns = np.arange(-5, 2 * 12 * 16 + 5) * 10_000_000
    is_pause = t_ns % (_EVERY * _STEP_NS + _PAUSE_NS) >= _EVERY * _STEP_NS
    ran, waited = (np.concatenate([[0.0], np.cumsum(1e7 * flags[:-1])]) + 1e9 for flags in (~is_pause, is_pause))

    def read(quantity: str, scope: str, values: Any, unit: str = "ns", kind: str = "counter") -> Sampled:
        channel = {"id": f"{scope}.{quantity}", "quantity": quantity, "unit": unit, "kind": kind, "scope": scope}
        return Sampled({**channel, "sensor": "read", "refresh_ns": 1000, "source": "synthetic"}, t_ns, values + 0 * ran)

    sampled = (
        read("thread_cpu_time", "thread", ran),
        read("run_delay", "thread", 1e9),
        read("thread_waiting", f"wait:{waits}", is_pause.astype(float), "1", "gauge"),
        read("stall_time", "io:some", waited),
        read("storage_written", "process", 2e-2 * waited, "B"),
        read("core_frequency", "core:0", np.where(is_pause, 0.4e9, 2e9), "Hz", "gauge"),
        read("core_frequency_limit", "policy0", 1.2e9, "Hz", "gauge"),
    )
    cores = [{"core": core, "online": True, "max_frequency_hz": 2_000_000_000} for core in (0, 1)]
    path = fabricate_run(
        out, steps=120, recorded=every_step, ops=ops, noise=0.01, cores=(Core(0.5), Core(0.05)), process_cores=0.5,
        sampled=sampled, header={"threads": 1}, device={"cores": cores},
    )  # fmt: skip
    steps = pl.read_parquet(path / "steps.parquet")
    number = pl.col("step").cast(pl.Int64)
    t0_ns = steps["t0_ns"][0] + number * _STEP_NS + number // _EVERY * _PAUSE_NS
    steps.with_columns(t0_ns=t0_ns, t1_ns=t0_ns + _STEP_NS).cast(steps.schema).write_parquet(path / "steps.parquet")
    return Run(path)


@pytest.mark.parametrize("waits", ["disk", "timer", "process"])
def test_what_the_training_waits_for_between_its_steps_bounds_no_step(tmp_path: Path, waits: str) -> None:
    loading = Op("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", None, "data", 200)
    run = _with_pauses(tmp_path, waits, (loading, *STEP[1:]))
    verdict = run.verdict()
    assert [cause.bound for cause in verdict.causes] == ["compute"], verdict.sentence
    usage = occupancy(run)
    assert usage.runs is not None
    assert usage.runs.value == pytest.approx(1, abs=0.02)
    assert usage.waits[waits].value < 0.1  # readings of 10 ms, beside steps of 16
    assert usage.clock is not None
    assert usage.clock.share.value > 0.9
