"""Updates that come a little late: what they are off weighs less, and the window is found from few of them."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.analysis.energy.likeliest_window import likeliest_sensor, likeliest_window
from stepscope.analysis.energy.rail_fits import GroupEnergies
from stepscope.analysis.energy.readings import Readings
from stepscope.analysis.energy.scaled_rows import scaled_rows, update_time_sd
from stepscope.analysis.energy.sensor_model import SensorModel, design, predict_readings, slow_gain
from stepscope.analysis.energy.timeline import Keys, Lane, Timeline
from stepscope.arrays import Floats

TRUE = SensorModel(0.003, 0.1)
LATE_S = 1e-4  # standard deviation of what updates are late by
WATTS: Floats = np.array([300.0, 80.0, 220.0, 150.0, 100.0, 60.0])


def _steps(count: int = 120) -> Timeline:
    """Steps of 150 ms, of five kinds in turns of uneven lengths, and a little time between."""
    random = np.random.default_rng(0)
    length = np.array([0.031, 0.023, 0.041, 0.017, 0.037]) * (1 + 0.03 * random.standard_normal((count, 5)))
    edges = np.cumsum(np.column_stack([np.full(count, 1e-3), length]).ravel()).reshape(count, 6)
    lane = Lane(edges[:, :-1].ravel(), edges[:, 1:].ravel(), np.tile(np.arange(5), count))
    keys = Keys(np.arange(6), np.arange(6), np.zeros(6, dtype=bool))
    return Timeline((lane,), keys, edges[:, 0], edges[:, -1], np.ones(count, dtype=bool))


def _updates(timeline: Timeline) -> tuple[Readings, Floats]:
    """What a GPU's gauge shows at updates that are not quite punctual, and by how much each is off, W."""
    stamp: Floats = np.arange(timeline.begin + 0.2, timeline.end, 0.1003)
    late = LATE_S * np.random.default_rng(1).standard_normal(len(stamp))
    punctual = predict_readings(timeline, Readings(stamp, np.zeros(len(stamp))), TRUE, WATTS)
    shown = predict_readings(timeline, Readings(stamp + late, np.zeros(len(stamp))), TRUE, WATTS)
    return Readings(stamp, shown, tick=0.1003), np.abs(shown - punctual)


def test_readings_between_like_powers_weigh_more_where_updates_are_late() -> None:
    timeline = _steps()
    readings, off = _updates(timeline)
    rows, fit = scaled_rows(timeline, readings, TRUE)
    weight = rows.watts / readings.watts
    exact = off < np.quantile(off, 0.2)
    assert weight[exact].mean() > 1.5 * weight[~exact].mean()
    assert fit.watts[:5] == pytest.approx(WATTS[:5], rel=0.005)


def test_readings_that_are_on_time_weigh_the_same() -> None:
    timeline = _steps()
    stamp: Floats = np.arange(timeline.begin + 0.2, timeline.end, 0.1003)
    noise = 0.3 * np.random.default_rng(2).standard_normal(len(stamp))
    shown = predict_readings(timeline, Readings(stamp, noise), TRUE, WATTS) + noise
    rows, _ = scaled_rows(timeline, Readings(stamp, shown), TRUE)
    np.testing.assert_allclose(rows.watts, shown)


@pytest.mark.parametrize("start", [SensorModel(0.0034, 0.0996), SensorModel(0.0025, 0.1008)])
def test_the_window_is_found_within_its_standard_deviations(start: SensorModel) -> None:
    timeline = _steps()
    readings, _ = _updates(timeline)
    found = likeliest_window(timeline, readings, start, free_width=True, free_rc=True)
    assert found is not None
    assert found.sd_width is not None
    assert found.model.width == pytest.approx(TRUE.width, abs=3 * found.sd_width)
    assert found.model.lag == pytest.approx(TRUE.lag, abs=1e-4)
    assert found.sd_width < 2e-4
    assert found.sd_rc is not None
    assert found.sd_rc < 2e-3


def test_what_is_only_supposed_is_not_claimed() -> None:
    some = np.ones(2)
    parts = GroupEnergies(100 * some, some, some, some, np.eye(2), some, np.array([False, True]))
    assert parts.resolved().tolist() == [True, False]


def test_how_much_updates_are_late_by_is_told_and_a_fast_filter_that_is_not_there_is_dropped() -> None:
    timeline = _steps()
    readings, _ = _updates(timeline)
    assert update_time_sd(timeline, readings, TRUE) == pytest.approx(LATE_S, rel=0.3)
    behind = SensorModel(TRUE.lag - 3e-4, 0.1, rc=3e-4)
    model, best = likeliest_sensor(timeline, readings, behind, free_width=True, free_rc=True)
    assert best is not None
    assert model.rc == 0
    assert model.smear == pytest.approx(LATE_S, rel=0.3)
    assert model.lag == pytest.approx(TRUE.lag, abs=1e-4)


def test_updates_on_time_have_no_error_of_times() -> None:
    timeline = _steps()
    stamp: Floats = np.arange(timeline.begin + 0.2, timeline.end, 0.1003)
    noise = 0.3 * np.random.default_rng(2).standard_normal(len(stamp))
    shown = predict_readings(timeline, Readings(stamp, noise), TRUE, WATTS) + noise
    assert update_time_sd(timeline, Readings(stamp, shown, tick=0.1003), TRUE) == 0


def test_operators_as_short_as_updates_are_late_are_seen_blurred_by_a_normal_distribution() -> None:
    edges: Floats = np.linspace(0, 0.4, 4_001)
    lane = Lane(edges[:-1], edges[1:], np.arange(4_000) % 7 % 3)
    keys = Keys(np.arange(4), np.arange(4), np.zeros(4, dtype=bool))
    timeline = Timeline((lane,), keys, edges[:-1:1_000], edges[1_000::1_000], np.ones(4, dtype=bool))
    watts: Floats = np.array([300.0, 80.0, 20.0, 0.0])
    model, stamp = SensorModel(0.0, 0.01, smear=LATE_S), np.linspace(0.1, 0.3, 53)
    readings = Readings(stamp, np.zeros(53))
    off = np.linspace(-5, 5, 1_001)
    share = np.exp(-(off**2) / 2) / np.exp(-(off**2) / 2).sum()
    joules = np.append(0.0, np.cumsum(watts[lane.key] * np.diff(edges)))
    at = stamp + LATE_S * off[:, None]
    blurred = share @ (np.interp(at, edges, joules) - np.interp(at - 0.01, edges, joules)) / 0.01
    np.testing.assert_allclose(design(timeline, readings, model) @ watts, blurred, atol=2e-3)
    np.testing.assert_allclose(predict_readings(timeline, readings, model, watts), blurred, atol=0.1)


def test_noise_makes_no_slow_gain_and_heat_does() -> None:
    at: Floats = np.linspace(0, 59.9, 600)
    noise: Floats = np.random.default_rng(4).standard_normal(600)
    fitted: Floats = np.full(600, 200.0)
    assert np.ptp(slow_gain(at, fitted + noise, fitted, 0.1)) < 2e-3
    heat = 1 + 0.1 * at / at[-1]
    assert slow_gain(at, fitted * heat + noise, fitted, 0.1)[50:-50] == pytest.approx(heat[50:-50], abs=4e-3)
