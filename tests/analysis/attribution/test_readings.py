"""From what was read to windows: repeats, counters, gaps, and registers that average."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.analysis.attribution.simulated import Device, counted, execute, polled, resnet_step, sampled

from stepscope.analysis.energy.coarse_search import Prior, coarse_search
from stepscope.analysis.energy.readings import (
    from_counter,
    from_gauge,
    from_running_average,
    move_to_updates,
    prediction_errors,
    readings_by_clock,
)
from stepscope.analysis.energy.update_clocks import UpdateClock, fit_clock_to_residuals, is_periodic, undelayed_stamps
from stepscope.record.sampler.stream import Deadlines

RUN = execute(resnet_step(0), 40, 1)


def _true_joules(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    joules: np.ndarray = np.interp(end, RUN.at, RUN.joules) - np.interp(begin, RUN.at, RUN.joules)
    return joules


def test_a_value_that_was_read_several_times_counts_once() -> None:
    stamp = np.arange(0, 1, 0.002)
    values = np.repeat(np.random.default_rng(0).random(50), 10)
    readings = from_gauge(stamp, stamp, values, refresh=0.02)
    assert readings.count == 50
    assert readings.stamp == pytest.approx(np.arange(0, 1, 0.02), abs=0.002)  # at the update, between two reads


def test_equal_values_of_a_sensor_that_is_read_once_a_refresh_all_count() -> None:
    stamp = np.arange(0, 1, 0.01)
    assert from_gauge(stamp, stamp, np.full(100, 5.0), refresh=0.01).count == 100


def test_what_was_not_read_is_left_out() -> None:
    stamp = np.arange(5.0)
    readings = from_gauge(stamp, stamp, np.array([1.0, np.nan, 2.0, 3.0, np.nan]))
    assert readings.watts.tolist() == [1, 2, 3]


def test_of_two_readings_of_one_moment_the_first_counts() -> None:
    t0 = np.linspace(0.0, 3.99, 400)
    t0[5::10] = t0[4::10]
    watts = np.random.default_rng(0).normal(5.0, 1.0, 400).round(1)
    readings = from_gauge(t0, t0, watts, refresh=0.005)
    assert (np.diff(readings.stamp) > 0).all()
    assert set(zip(readings.stamp, readings.watts, strict=True)).isdisjoint(zip(t0[5::10], watts[5::10], strict=True))


def test_the_readings_of_each_second_of_a_log_in_whole_seconds_count_as_their_mean() -> None:
    t0 = np.repeat(np.arange(30.0), 20)
    watts = np.random.default_rng(0).normal(5.0, 1.0, 600).round(1)
    readings = from_gauge(t0, t0, watts)
    assert readings.count == 30
    assert readings.watts.mean() == pytest.approx(watts.mean(), rel=1e-9)


def test_a_counter_gives_windows_between_its_updates_and_loses_no_energy() -> None:
    readings = counted(RUN, 0, update=0.02, jitter=0.0, step=1e-6, poll=0.004, lag=0.0)
    assert readings.width is not None
    assert readings.width == pytest.approx(np.full(readings.count, 0.02), rel=0.01)
    assert (readings.watts * readings.width).sum() == pytest.approx(
        _true_joules(readings.stamp[:1] - 0.02, readings.stamp[-1:])[0], rel=0.02
    )


def test_no_start_of_a_search_supposes_that_a_counter_shows_what_is_still_to_come() -> None:
    readings = counted(RUN, 0, update=0.02, jitter=0.0, step=1e-6, poll=0.004, lag=0.0)
    early = replace(readings, stamp=readings.stamp - 0.005)  # a counter that is 3 ms ahead would fit
    starts = coarse_search(RUN.timeline, early, readings.period, Prior())
    assert starts
    assert min(start.centre for start in starts) >= -0.001


def test_the_updates_of_a_counter_are_found_within_a_tenth_of_a_read() -> None:
    readings = counted(RUN, 0, update=0.02, jitter=0.0, step=1e-6, poll=0.004, lag=0.0)
    assert readings.width is not None
    off = [
        np.std(readings.watts * readings.width - _true_joules(readings.stamp - 0.02 + d, readings.stamp + d))
        for d in np.arange(-0.001, 0.001, 1e-4)
    ]
    assert min(off) < 0.0005 * 7


def test_a_window_with_an_unread_sample_or_a_gap_in_it_is_left_out() -> None:
    t = np.arange(0, 1.0, 0.1)
    joules = np.arange(10.0)
    joules[4] = np.nan
    readings = from_counter(t, t, joules)
    assert readings.stamp == pytest.approx([0.2, 0.3, 0.6, 0.7, 0.8, 0.9])
    gap = from_counter(t, t, np.arange(10.0), gaps=np.array([[0.55, 0.58]]))
    assert 0.6 not in np.round(gap.stamp, 3)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_hardly_any_readings_of_a_counter_are_no_window(count: int) -> None:
    t = np.arange(float(count))
    assert from_counter(t, t, t).count == 0


def test_the_clock_of_a_slowly_read_counter_shows_in_what_the_fit_leaves() -> None:
    random = np.random.default_rng(0)
    t = np.cumsum(0.01 * (0.5 + random.random(2000)))
    age = (t - 0.0003) % 0.001013
    lacking = np.diff(-7 * age + random.normal(0, 2e-4, len(t)), prepend=0.0)
    clock = fit_clock_to_residuals(t, lacking, np.full(2000, 7.0), 0.001)
    assert clock is not None
    assert clock.period == pytest.approx(0.001013, rel=1e-5)
    assert np.abs((clock.last_update_times(t) - (t - age) + 5e-4) % 0.001013 - 5e-4).max() < 1e-4
    assert fit_clock_to_residuals(t, random.normal(0, 2e-4, len(t)), np.full(2000, 7.0), 0.001) is None


def test_the_conversions_behind_a_slowly_read_average_show_in_what_the_fit_leaves() -> None:
    device = Device(0.0066, 0.0066, 0.005, 0.0, 0.0, 0.0, 0.0, register=1 / 64)
    raw = sampled(RUN, 0, device)
    stamp, watts = polled(raw, RUN.timeline.end, 0, 0.010)
    windows = from_running_average(stamp, watts, 1 / 64, 0.0066)
    assert windows.register is not None
    assert windows.width is not None
    true = _true_joules(windows.stamp - windows.width, windows.stamp) / windows.width
    surprise, speed = prediction_errors(windows.register, windows.stamp, true)
    clock = fit_clock_to_residuals(windows.stamp, surprise, speed, 0.0065)
    assert clock is not None
    assert clock.period == pytest.approx(0.0066, rel=1e-3)
    told = readings_by_clock(windows.register, clock)
    assert told.mix is not None
    assert told.period == pytest.approx(0.0066, rel=1e-3)


def test_windows_moved_to_the_updates_keep_their_energy() -> None:
    stamp = np.arange(1.0, 10.0) + 0.37
    readings = from_counter(stamp, stamp, np.arange(9.0) * 4)
    moved = move_to_updates(readings, UpdateClock.even(0.0, 0.5))
    assert moved.width is not None
    assert moved.stamp == pytest.approx(np.arange(3, 10))
    assert moved.watts * moved.width == pytest.approx(np.full(7, 4.0))


def test_a_read_beside_an_update_joins_two_windows_and_no_energy_is_lost() -> None:
    t = np.array([0.25, 1.01, 1.76, 2.26, 3.24, 3.77, 4.51, 5.27])  # 1.01 and 4.51 fall on updates every 0.5 s
    readings = from_counter(t, t, 3.0 * np.floor(2 * t + 1e-9) / 2)
    moved = move_to_updates(readings, UpdateClock.even(0.0, 0.5))
    assert moved.width is not None
    begin, end = float((moved.stamp - moved.width)[0]), float(moved.stamp[-1])
    assert moved.watts == pytest.approx(3.0)
    assert float((moved.watts * moved.width).sum()) == pytest.approx(3.0 * (end - begin))
    assert (moved.stamp - moved.width)[1:] == pytest.approx(moved.stamp[:-1])


def test_a_gap_stays_open_when_windows_are_moved_to_the_updates() -> None:
    t = np.array([0.25, 0.8, 1.3, 4.2, 4.8, 5.3])
    readings = from_counter(t, t, 3.0 * np.floor(2 * t) / 2, gaps=np.array([[1.35, 4.1]]))
    moved = move_to_updates(readings, UpdateClock.even(0.0, 0.5))
    assert moved.width is not None
    assert not ((moved.stamp > 1.5) & (moved.stamp - moved.width < 4.0)).any()


def test_late_stamps_are_moved_onto_the_clock_even_where_readings_are_lost() -> None:
    random = np.random.default_rng(1)
    true = 0.0101 * np.arange(1500.0)
    kept = np.delete(np.arange(1500), [300, 301, 302, 900])
    late = true[kept] + np.abs(random.normal(0, 0.003, len(kept)))
    fitted = undelayed_stamps(late)
    assert np.std(fitted - true[kept]) < 2e-4
    assert is_periodic(late)


def test_a_dithered_sampler_has_no_clock() -> None:
    random = np.random.default_rng(1)
    assert not is_periodic(np.cumsum(0.01 * (0.5 + random.random(500))))


@pytest.mark.parametrize("seed", range(8))
def test_deadlines_of_the_golden_ratio_that_are_read_late_are_no_clock(seed: int) -> None:
    deadlines, late = Deadlines(0, 10_000_000, dither=True), np.random.default_rng(seed).exponential(1e-4, 500)
    stamp = []
    for _ in range(500):
        stamp.append(deadlines.at_ns * 1e-9)
        deadlines.advance(deadlines.at_ns)
    assert not is_periodic(np.array(stamp) + late)


def test_a_clock_with_lost_readings_is_one() -> None:
    random = np.random.default_rng(1)
    kept = random.random(600) > 0.2
    assert is_periodic((0.01 * np.arange(600) + random.exponential(1e-3, 600))[kept])


@pytest.mark.parametrize("poll", [0.003, 0.005])
def test_a_running_average_is_taken_apart_into_its_conversions(poll: float) -> None:
    device = Device(0.0066, 0.0011, 1e-6, 0.0, 0.0, 0.0, 0.0, register=1 / 64)
    stamp, watts = polled(sampled(RUN, 0, device), RUN.timeline.end, 0, poll)
    readings = from_running_average(stamp, watts, 1 / 64, 0.0066)
    assert readings.count > 0.9 * RUN.timeline.end / 0.0066
    assert readings.period == pytest.approx(0.0066, rel=1e-3)
    off = [
        np.median(np.abs(readings.watts - _true_joules(readings.at + d - 0.0011, readings.at + d) / 0.0011))
        for d in np.arange(-0.003, 0.003, 1e-4)
    ]
    assert min(off) < 0.2


def test_readings_slower_than_the_conversions_become_windows_of_their_own_length() -> None:
    device = Device(0.0066, 0.0066, 1e-6, 0.0, 0.0, 0.0, 0.0, register=1 / 64)
    stamp, watts = polled(sampled(RUN, 0, device), RUN.timeline.end, 0, 0.05)
    readings = from_running_average(stamp, watts, 1 / 64, 0.0066)
    assert readings.width is not None
    assert readings.width.mean() == pytest.approx(0.05, rel=0.1)
    true = _true_joules(readings.stamp - readings.width, readings.stamp) / readings.width
    assert np.corrcoef(readings.watts, true)[0, 1] > 0.9


def test_a_gauge_that_stands_still_keeps_all_its_readings() -> None:
    t = np.arange(50, dtype=np.float64) * 0.01
    assert from_gauge(np.asarray(t, dtype=np.float64), np.asarray(t, dtype=np.float64), np.full(50, 5.0)).count == 50
