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
