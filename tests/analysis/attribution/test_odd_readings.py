"""Readings that hold no power, no noise or hardly a value: there is a fit or none, and never an error or a warning."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.analysis.energy.attribution import FitOptions, attribute_energy
from stepscope.analysis.energy.readings import Readings, from_gauge
from stepscope.analysis.energy.timeline import Keys, Lane, Timeline
from stepscope.arrays import Floats

KINDS, WATTS = 3, np.array([2.0, 9.0, 5.0])


def _timeline(steps: int, step_s: float, places: int) -> Timeline:
    rng = np.random.default_rng(steps)
    begin = 10 + np.cumsum(np.append(0.0, step_s * (1 + 0.02 * rng.random(steps - 1))))
    edges = begin[:, None] + step_s * 0.99 * np.sort(np.append([0.0, 1.0], rng.random(places - 1)))
    lane = Lane(edges[:, :-1].ravel(), edges[:, 1:].ravel(), np.tile(np.arange(places), steps))
    key = np.arange(places + 1)
    keys = Keys(np.where(key < places, key % KINDS, KINDS), key, np.zeros(places + 1, dtype=bool))
    return Timeline((lane,), keys, begin, begin + 0.99 * step_s, np.ones(steps, dtype=bool))


def _seen(timeline: Timeline, every_s: float, width_s: float) -> tuple[Floats, Floats]:
    """Stamps and mean power of the window before each, W."""
    lane = timeline.lanes[0]
    edges = np.append(lane.t0, lane.t1[-1])
    joules = np.append(0.0, np.cumsum(WATTS[lane.key % KINDS] * np.diff(edges)))
    stamp = np.arange(timeline.begin - 0.5, timeline.end + 0.5, every_s)
    return stamp, (np.interp(stamp, edges, joules) - np.interp(stamp - width_s, edges, joules)) / width_s


def test_a_rail_whose_power_averages_0_has_no_parts() -> None:
    timeline = _timeline(60, 0.05, 4)
    stamp, watts = _seen(timeline, 0.002, 0.002)
    noise = np.random.default_rng(0).standard_normal(len(stamp))
    for readings in (-watts, noise - 0.3):
        assert attribute_energy(timeline, from_gauge(stamp, stamp, readings)) is None


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("steps", [3, 12])
def test_readings_without_any_noise_are_fitted(scale: float, steps: int) -> None:
    timeline = _timeline(steps, 0.4, 2)
    stamp, watts = _seen(timeline, 0.01, 0.01)
    found = attribute_energy(timeline, Readings(stamp, watts * scale), FitOptions(refresh=0.01))
    assert found is not None
    assert np.isfinite(found.joules).all()
    assert found.joules.sum() == pytest.approx(found.total.joules, rel=1e-6)


@pytest.mark.parametrize("share", [0.9, 0.99])
def test_readings_that_are_0_for_most_of_the_time_break_nothing(share: float) -> None:
    timeline = _timeline(12, 0.05, 40)
    stamp, watts = _seen(timeline, 0.01, 0.01)
    shown = np.where(np.random.default_rng(1).random(len(stamp)) < share, 0.0, np.round(watts / 9) * 9)
    found = attribute_energy(timeline, Readings(stamp, shown), FitOptions(stated=0.01))
    assert found is None or np.isfinite(found.joules).all()
