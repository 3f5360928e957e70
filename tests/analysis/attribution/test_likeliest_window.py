"""Updates that come a little late: what they are off weighs less, and the window is found from few of them."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.analysis.energy.likeliest_window import likeliest_window
from stepscope.analysis.energy.rail_fits import GroupEnergies
from stepscope.analysis.energy.readings import Readings
from stepscope.analysis.energy.scaled_rows import scaled_rows
from stepscope.analysis.energy.sensor_model import SensorModel, predict_readings
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
