"""The attribution against the truth of simulated runs: sensors of every kind, 100 steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.analysis.attribution.scores import Score, error_of, kinds, modules, score, truth
from tests.analysis.attribution.simulated import (
    Device,
    Execution,
    counted,
    execute,
    polled,
    resnet_step,
    sampled,
    thinned,
)

from stepscope.analysis.energy.attribution import Attribution, FitOptions, attribute_energy
from stepscope.analysis.energy.rail_fits import energy_by_nearest_reading, energy_by_overlap
from stepscope.analysis.energy.readings import Readings, from_running_average
from stepscope.analysis.energy.scaled_rows import scaled_rows
from stepscope.analysis.energy.sensor_model import SensorModel, fully_covered_flags
from stepscope.analysis.energy.timeline import fill_unprofiled

QUIET = {"op_jitter": 0.0, "step_jitter": 0.0, "stalls": 0.0}
INA3221 = Device(0.0066, 0.0011, 0.038, 0.002, 0.001, 0.0003, 0.0, register=1 / 64)
PERIODIC = FitOptions(periodic=True)


def _found(run: Execution, readings: Readings, options: FitOptions = PERIODIC) -> Attribution:
    found = attribute_energy(run.timeline, readings, options)
    assert found is not None
    return found


def _averaged(run: Execution) -> Readings:
    raw = sampled(run, 1, INA3221)
    return from_running_average(raw.stamp, raw.watts, 1 / 64, 0.0066)


@pytest.fixture(scope="module")
def run() -> Execution:
    return execute(resnet_step(1), 100, 2)


@pytest.fixture(scope="module")
def ten_ms(run: Execution) -> Attribution:
    return _found(run, sampled(run, 1))


@pytest.mark.parametrize(
    ("readings", "options", "bar"),
    [
        (lambda run: sampled(run, 1, Device(width=0.0011)), PERIODIC, 0.012),
        (lambda run: sampled(run, 1, Device(late=0.005)), PERIODIC, 0.03),
        (_averaged, FitOptions(), 0.04),
        (lambda run: counted(run, 1), FitOptions(refresh=0.001), 0.02),
        (lambda run: counted(run, 1, poll=0.01), FitOptions(refresh=0.001), 0.04),
    ],
    ids=[
        "spot conversions",
        "late stamps",
        "running average",
        "1 ms counter",
        "counter read slowly",
    ],
)
def test_kinds_are_right_behind_every_sensor(
    run: Execution, readings: Callable[[Execution], Readings], options: FitOptions, bar: float
) -> None:
    found = _found(run, readings(run), options)
    reached = score(run, found, kinds(run))
    assert reached.error <= bar
    assert reached.resolved > 0.6
    assert reached.right >= 0.95 * reached.resolved
    assert reached.inside >= 0.8 * reached.counted


def test_kinds_are_right_behind_an_analogue_filter_whose_time_constant_is_found() -> None:
    errors = []
    for seed in (1, 2, 3):  # 16 kinds that err together: one run says little
        run = execute(resnet_step(1), 100, seed + 1)
        found = _found(run, sampled(run, seed, Device(rc=0.002)))
        reached = score(run, found, kinds(run))
        errors.append(reached.error)
        assert found.calibration.model.rc == pytest.approx(0.002, rel=0.1)
        assert reached.resolved > 0.6
        assert reached.right >= 0.95 * reached.resolved
        assert reached.inside >= 0.8 * reached.counted
    assert np.mean(errors) <= 0.04


def test_power_that_differs_from_step_to_step_is_no_noise_of_its_operators() -> None:
    run = execute(resnet_step(1), 60, 5, step_noise=0.05, execution_noise=0.0, warm_up=0.0)
    readings, model = sampled(run, 1, Device(late=0.0)), SensorModel(0.008, 0.010)
    rows, fit = scaled_rows(run.timeline, readings.select(fully_covered_flags(run.timeline, readings, model)), model)
    left = rows.residuals(fit)
    step = run.timeline.step_of(readings.select(fully_covered_flags(run.timeline, readings, model)).at - 0.013)
    between = np.bincount(step, left) / np.maximum(np.bincount(step), 1)
    assert left.std() < 0.02 * readings.watts.mean()  # of the 5 % by which steps differ
    assert between.std() < 0.01 * readings.watts.mean()
    assert 50 < rows.spent <= 60


def test_a_sensor_of_10_ms_gives_kinds_and_modules_within_3_percent(run: Execution, ten_ms: Attribution) -> None:
    for group in (kinds(run), modules(run)):
        reached: Score = score(run, ten_ms, group)
        assert reached.error <= 0.03
        assert reached.right >= 0.95 * reached.resolved > 0.8
        assert reached.inside >= 0.8 * reached.counted


def test_the_sensor_is_found_blindly(ten_ms: Attribution) -> None:
    model = ten_ms.calibration.model
    assert model.width == pytest.approx(0.010, abs=1e-4)
    assert model.lag == pytest.approx(0.008, abs=2e-4)
    assert model.rc < 5e-4


def test_the_simpler_ways_stay_far_off(run: Execution, ten_ms: Attribution) -> None:
    true, readings = truth(run, kinds(run)), sampled(run, 1)
    for keys in (
        energy_by_nearest_reading(run.timeline, readings),
        energy_by_overlap(run.timeline, readings, ten_ms.calibration.model.lag),
    ):
        assert error_of(true, np.asarray(np.bincount(kinds(run), keys), dtype=np.float64)) > 0.15
        assert keys.sum() == pytest.approx(run.truth.sum(), rel=0.01)


def test_parts_add_up_to_the_measured_total(run: Execution, ten_ms: Attribution) -> None:
    assert ten_ms.joules.sum() == pytest.approx(ten_ms.total.joules, rel=1e-9)
    assert ten_ms.total.joules == pytest.approx(run.truth.sum(), rel=2e-3)
    assert abs(ten_ms.gap_before) < 0.002


def test_an_average_that_is_read_too_slowly_is_far_off_but_does_not_claim_more(run: Execution) -> None:
    scores = []
    for seed in (1, 2, 3):  # single ones are off by 7 to 11 %
        stamp, watts = polled(sampled(run, seed, replace(INA3221, late=0.0)), run.timeline.end, seed, 0.010)
        readings = from_running_average(stamp, watts, 1 / 64, 0.0066)
        scores.append(score(run, _found(run, readings, FitOptions()), kinds(run)))
    assert np.mean([s.error for s in scores]) <= 0.10
    assert sum(s.right for s in scores) >= 0.9 * sum(s.resolved for s in scores)
    assert all(s.inside >= 0.7 * s.counted for s in scores)


def test_a_counter_of_100_ms_resolves_no_kind_in_100_steps(run: Execution) -> None:
    readings = counted(run, 1, update=0.1, step=1e-3, poll=0.01)
    assert score(run, _found(run, readings, FitOptions(refresh=0.1)), kinds(run)).resolved < 0.05


def test_a_sampler_that_is_locked_to_the_step_is_caught_and_dither_cures_it() -> None:
    run = execute(resnet_step(0, exact=True), 100, 1, **QUIET)
    locked = _found(run, sampled(run, 0, Device(period_error=0)))
    assert locked.phase.locked
    assert score(run, locked, kinds(run)).resolved == 0
    dithered = _found(run, sampled(run, 0, Device(period_error=0, dither=0.5)), FitOptions())
    assert not dithered.phase.wide
    assert score(run, dithered, kinds(run)).error <= 0.04


def test_ops_recorded_in_every_fifth_step_still_tell_all_kinds(run: Execution) -> None:
    part, _ = thinned(run, 5)
    lane, scatter = fill_unprofiled(part.lanes[0], part.step_t0, part.step_t1, part.recorded)
    found = attribute_energy(
        replace(part, lanes=(lane,), scatter=scatter), sampled(run, 1, Device(width=0.0011)), PERIODIC
    )
    assert found is not None
    reached = score(run, found, kinds(run))
    assert reached.error <= 0.10
    assert reached.right >= 0.9 * reached.resolved


def test_lost_seconds_widen_and_do_not_bias(run: Execution, ten_ms: Attribution) -> None:
    readings = sampled(run, 1)
    holes = readings.select(~((readings.stamp % 5.0) > 2.0))
    found = _found(run, holes)
    assert found.total.sd > ten_ms.total.sd
    reached = score(run, found, kinds(run))
    assert reached.error <= 0.06
    assert reached.right >= 0.9 * reached.resolved


def test_stamps_as_coarse_as_the_ops_resolve_nothing() -> None:
    run = execute(resnet_step(0, step_ms=20), 100, 1)
    assert score(run, _found(run, sampled(run, 0)), kinds(run)).resolved == 0


@pytest.mark.parametrize("count", [0, 1, 15])
def test_hardly_any_readings_are_no_attribution(run: Execution, count: int) -> None:
    assert attribute_energy(run.timeline, sampled(run, 1).first(count), PERIODIC) is None


def test_a_sensor_that_sticks_is_no_attribution(run: Execution) -> None:
    readings = sampled(run, 1)
    assert attribute_energy(run.timeline, replace(readings, watts=np.full(readings.count, 7.0)), FitOptions()) is None
