"""Layers of a training that waits for a core most of the time: in the few steps timed, waits fall on some of them."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

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
        found = times.in_starved_step_of(step_ns, step_ns / (CPU_MS.sum() * MS))
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
    found = times.in_starved_step_of(own_ms.sum() * 3 * MS, 3.0)
    short, long = found.ns.mean(axis=0) / MS
    assert short == pytest.approx(6.0, rel=0.1)
    assert long == pytest.approx(24.0, rel=0.1)
    assert found.doubt_ns[0] < 0.1 * found.ns[:, 0].mean()


def test_loading_that_sleeps_is_not_lengthened_by_the_load() -> None:
    seen = np.tile(np.array([1.0, 2.0, 8.0]), (6, 1)) * (1 + 0.01 * np.arange(-3, 3)[:, None])
    keys = pl.DataFrame({"phase": ["data", "forward"], "module": ["(outside any module)", "long"]})
    times = LayerTimes(keys, seen[:, 1:] * MS, np.zeros((6, 2)), seen.sum(axis=1) * MS, np.zeros(3))
    found = times.in_starved_step_of((1 * 3 + 2 + 8 * 3) * MS, 3.0)
    assert (found.ns.mean(axis=0) / MS).tolist() == pytest.approx([2.0, 24.0], rel=0.05)
