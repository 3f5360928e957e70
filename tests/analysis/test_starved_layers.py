"""Layers of a training that waits for a core most of the time: in the few steps timed, waits fall on some of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.analysis.test_bottleneck import Machine
from tests.fabricate import Core, fabricate_run

from stepscope.analysis.device.occupancy import occupancy
from stepscope.analysis.run import Run
from stepscope.analysis.time.layers import LayerTimes
from stepscope.arrays import Floats

CPU_MS = np.array([5, 2.4, 1, 0.8, 0.5, 0.3, 0.15, 0.1, 0.05, 0.05, 0.5])  # the last: all that is no layer
MS = 1e6


def steps(rng: np.random.Generator, count: int, slice_ms: float, wait_ms: float) -> Floats:
    """Times of the layers in steps whose thread loses its core after each slice of CPU time, (count, layers), ns."""
    found = np.zeros((count, len(CPU_MS)))
    left = rng.uniform() * slice_ms
    for step in range(count):
        for layer, typical_ms in enumerate(CPU_MS):
            due_ms = typical_ms * (1 + 0.03 * rng.standard_normal())
            found[step, layer] += due_ms
            while left < due_ms:
                due_ms -= left
                found[step, layer] += rng.exponential(wait_ms)
                left = rng.uniform(0.5, 1.5) * slice_ms
            left -= due_ms
    return found * MS


@pytest.mark.parametrize(("slice_ms", "wait_ms"), [(3, 0.5), (10, 2), (3, 3), (3, 15), (10, 10), (10, 30)])
@pytest.mark.parametrize("looked_at", [4, 10])
def test_a_layer_waits_as_its_cpu_time_says_and_not_as_these_few_steps_did(
    looked_at: int, slice_ms: float, wait_ms: float
) -> None:
    inside, errors = [], []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        step_ns = float(np.median(steps(rng, 200, slice_ms, wait_ms).sum(axis=1)))
        seen = steps(rng, looked_at, slice_ms, wait_ms)
        keys = pl.DataFrame({"phase": ["forward"] * 10, "module": [str(layer) for layer in range(10)]})
        nothing = np.zeros((looked_at, 10))
        times = LayerTimes(keys, seen[:, :-1], nothing, seen.sum(axis=1), np.zeros(11))
        found = times.scaled_to_starved_step(step_ns, step_ns / (CPU_MS.sum() * MS))
        truth = CPU_MS[:-1] / CPU_MS.sum() * step_ns
        means = found.ns.mean(axis=0)
        half = np.hypot(1.96 * found.ns.std(axis=0, ddof=1) / np.sqrt(looked_at), found.doubt_ns[:-1])
        errors.append(means / truth - 1)
        inside.append(np.abs(means - truth) <= half)
        assert means.sum() < step_ns
    assert np.abs(np.mean(errors, axis=0)).max() < 0.12
    assert np.mean(inside) > 0.85


def test_a_layer_that_waited_in_every_step_is_known_badly_and_the_others_well() -> None:
    own_ms = np.array([1.0, 2.0, 8.0])
    seen = np.tile(own_ms, (6, 1)) + np.array([[0, 0, wait] for wait in (9, 14, 11, 30, 12, 21)])
    keys = pl.DataFrame({"phase": ["forward"] * 2, "module": ["short", "long"]})
    times = LayerTimes(keys, seen[:, 1:] * MS, np.zeros((6, 2)), seen.sum(axis=1) * MS, np.zeros(3))
    found = times.scaled_to_starved_step(own_ms.sum() * 3 * MS, 3.0)
    short, long = found.ns.mean(axis=0) / MS
    assert short == pytest.approx(6.0, rel=0.1)
    assert long == pytest.approx(24.0, rel=0.1)
    assert found.doubt_ns[0] < 0.1 * found.ns[:, 0].mean()


def test_loading_that_sleeps_is_not_lengthened_by_the_load() -> None:
    seen = np.tile(np.array([1.0, 2.0, 8.0]), (6, 1)) * (1 + 0.01 * np.arange(-3, 3)[:, None])
    keys = pl.DataFrame({"phase": ["data", "forward"], "module": ["(outside any module)", "long"]})
    times = LayerTimes(keys, seen[:, 1:] * MS, np.zeros((6, 2)), seen.sum(axis=1) * MS, np.zeros(3))
    found = times.scaled_to_starved_step((1 * 3 + 2 + 8 * 3) * MS, 3.0)
    assert (found.ns.mean(axis=0) / MS).tolist() == pytest.approx([2.0, 24.0], rel=0.05)


def test_threads_that_spin_while_they_wait_do_not_pass_for_layers_that_compute() -> None:
    own_ms = np.array([1.5, 2.0, 0.5])  # loading, a layer, and what is in no layer
    seen = np.tile(own_ms, (6, 1)) * (1 + 0.01 * np.arange(-3, 3)[:, None])
    seen[::2, 1] += 9
    keys = pl.DataFrame({"phase": ["data", "forward"], "module": ["(outside any module)", "layer"]})
    times = LayerTimes(keys, seen[:, :2] * MS, np.zeros((6, 2)), seen.sum(axis=1) * MS, np.zeros(3))
    stretch = times.least_stretch(21.5 * MS)
    assert stretch == pytest.approx(8.0, rel=0.02)
    found = times.scaled_to_starved_step(21.5 * MS, stretch)
    assert (found.ns.mean(axis=0) / MS).tolist() == pytest.approx([1.5, 16.0], rel=0.05)


@pytest.mark.parametrize(
    ("busy", "starved"), [((0.99, 0.99), 0.5), ((0.97, 0.05), 0.2)], ids=["loaded", "idle cores beside it"]
)
def test_a_wait_for_the_threads_of_an_operator_is_one_for_a_core_only_where_all_are_busy(
    tmp_path: Path, busy: tuple[float, float], starved: float
) -> None:
    machine = Machine(0.3, 0.2, {"lock": 0.3, "timer": 0.2}, {"cpu:some": 0.9}, own_cores=0.5, busy=busy)
    cores = tuple(Core(share) for share in busy)
    about = {"threads": 2}
    path = fabricate_run(tmp_path, steps=60, cores=cores, process_cores=0.5, sampled=machine.sampled(), header=about)
    found = occupancy(Run(path)).starved
    assert found is not None
    assert found.value == pytest.approx(starved, abs=0.02)


def test_loading_is_no_longer_than_that_of_the_whole_run_however_few_steps_were_profiled(tmp_path: Path) -> None:
    loading = {"recorder": {"loading_ns": 60 * 200_000}}
    path = fabricate_run(tmp_path, steps=60, recorded=lambda step: step == 30, header=loading)
    run = Run(path)
    phases = dict(run.phases().select("phase", "ns").iter_rows())
    assert phases["data"] == pytest.approx(200_000, rel=0.01)
    assert sum(phases.values()) == pytest.approx(run.step_times.step_ns, rel=1e-6)
