"""A register that shows one short conversion until the next and is read at other times: its clock is found blindly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.analysis.attribution.scores import kinds, modules, score
from tests.analysis.attribution.simulated import Device, Execution, execute, polled, resnet_step, sampled

from stepscope.analysis.energy.attribution import FitOptions, attribute_energy, find_conversion_clock
from stepscope.analysis.energy.readings import Readings, move_to_conversions
from stepscope.analysis.energy.sensor_model import SensorModel
from stepscope.analysis.energy.timeline import Keys, Lane, Timeline
from stepscope.analysis.energy.update_clocks import UpdateClock

STATED, TRUE = 0.007, 0.0066
SPOT = Device(TRUE, 0.0011, 0.04, 0.012, 0.0015, 0.0, 0.0)
SLOW = FitOptions(refresh=STATED, stated=STATED / 6)


@pytest.fixture(scope="module")
def run() -> Execution:
    return execute(resnet_step(1), 100, 2)


@pytest.fixture(scope="module")
def read(run: Execution) -> Readings:
    stamp, watts = polled(sampled(run, 1, SPOT), run.timeline.end, 1, 0.010)
    return Readings(stamp, watts)


def test_kinds_and_modules_are_right_behind_a_register_that_is_read_more_slowly_than_it_converts(
    run: Execution, read: Readings
) -> None:
    found = attribute_energy(run.timeline, read, SLOW)
    assert found is not None
    assert found.known.clock is not None
    assert found.known.clock.period == pytest.approx(TRUE, rel=1e-4)
    assert found.calibration.model.width == pytest.approx(0.0011, abs=2e-4)
    for group in (kinds(run), modules(run)):
        reached = score(run, found, group)
        assert reached.error <= 0.02
        assert reached.right >= 0.95 * reached.resolved > 0.8
        assert reached.inside >= 0.85 * reached.counted


def test_readings_without_a_clock_give_none(run: Execution, read: Readings) -> None:
    shuffled = replace(read, watts=np.random.default_rng(0).permutation(read.watts))
    watts = np.full(run.timeline.keys.count, float(read.watts.mean()))
    assert find_conversion_clock(run.timeline, shuffled, SensorModel(0.001, 0.0077), watts, STATED) is None


def test_a_conversion_that_was_read_twice_counts_once() -> None:
    clock = UpdateClock.even(0.0, 1.0)
    told = move_to_conversions(Readings(np.array([0.5, 0.6, 1.5, 2.01, 2.5]), np.arange(5.0)), clock)
    assert told.stamp.tolist() == [0.0, 1.0, 2.0]
    assert told.watts.tolist() == [0.0, 2.0, 4.0]


def _four_kernels_a_step(watts: np.ndarray, period: float) -> tuple[Timeline, Readings]:
    """300 steps of 15 ms with idle time between their kernels, behind a gauge that means over each of its updates."""
    random = np.random.default_rng(0)
    scale = 1 + 0.03 * random.standard_normal(300)
    begin = np.append(0.0, np.cumsum(0.015 * scale))
    t0, t1 = (
        (begin[:-1, None] + np.array(shares) * scale[:, None]).ravel()
        for shares in ([0.002, 0.0055, 0.008, 0.0115], [0.0054, 0.0079, 0.0089, 0.0144])
    )
    apart = np.arange(5)
    keys = Keys(apart, apart, np.zeros(5, dtype=bool))
    lane = Lane(t0, t1, np.tile(np.arange(4), 300))
    timeline = Timeline((lane,), keys, begin[:-1], begin[1:], np.ones(300, dtype=bool), 5e-7)
    extra = np.cumsum(np.stack([np.zeros(1200), (watts[lane.key] - watts[4]) * (t1 - t0)], 1).ravel())
    at = np.arange(0.0, begin[-1], period)
    joules = np.interp(at, np.stack([t0, t1], 1).ravel(), extra) + watts[4] * at
    read = np.diff(joules) / period + random.normal(0, 0.5, len(at) - 1)
    return timeline, Readings(at[1:], np.round(read, 3))


def test_a_clock_under_which_the_readings_fit_worse_is_none() -> None:
    watts = np.array([200.0, 120.0, 60.0, 60.0, 60.0])
    timeline, readings = _four_kernels_a_step(watts, 0.0103)
    fit = attribute_energy(timeline, readings, FitOptions(refresh=0.0103))
    assert fit is not None
    assert fit.known.clock is None
    assert fit.watts == pytest.approx(watts, rel=0.05)
