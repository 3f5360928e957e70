"""A timeline with few keys keeps its time, its gap and its lanes; sums along a lane see what the kernel sees."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.analysis.energy.sensor_model import energy_in_filter, energy_until
from stepscope.analysis.energy.timeline import Keys, Lane, Timeline, condense


def _timeline() -> Timeline:
    """Ten keys of five kinds, in turn, then a gap of one second; each key of its own signature."""
    length = np.array([1.0, 1.0, 3.0, 3.0, 0.1, 0.1, 0.1, 0.1, 2.0, 2.0])
    edges = np.append(0.0, np.cumsum(np.tile(length, 3)))
    lane = Lane(edges[:-1], edges[1:], np.tile(np.arange(10), 3))
    kind = np.append(np.arange(10) // 2, 5)
    keys = Keys(kind, np.arange(11), np.zeros(11, dtype=bool))
    return Timeline((lane,), keys, np.array([0.0]), np.array([edges[-1] + 1.0]), np.array([True]))


def test_the_longest_kinds_and_signatures_stay_and_the_rest_is_put_together() -> None:
    whole = _timeline()
    few = condense(whole, kinds=3, signatures=2)
    assert few.keys.count == 2 + 2 + 1 + 1  # two signatures, the rest of two kinds, all else, the gap
    assert few.seconds.sum() == pytest.approx(whole.seconds.sum())
    assert few.seconds[few.keys.gap] == pytest.approx(1.0)
    assert len(few.lanes[0].t0) < len(whole.lanes[0].t0)


def test_a_timeline_that_has_few_keys_is_left_as_it_is() -> None:
    whole = _timeline()
    assert condense(whole, kinds=100, signatures=100) is whole


@pytest.mark.parametrize("rc", [0.003, 0.05, 2.0])
def test_energy_in_a_filter_is_the_integral_with_its_exponential(rc: float) -> None:
    generator = np.random.default_rng(3)
    edges = np.cumsum(generator.uniform(0.001, 0.02, 400))
    lane = Lane(edges[:-1:2], edges[1::2], np.zeros(200, dtype=np.int64))
    watts, t = generator.uniform(1, 9, 200), np.sort(generator.uniform(-0.1, edges[-1] + 0.2, 50))
    before = [np.minimum(lane.t1, one) for one in t]
    direct = [
        float((watts * rc * (np.exp((end - one) / rc) - np.exp((np.minimum(lane.t0, one) - one) / rc))).sum())
        for end, one in zip(before, t, strict=True)
    ]
    assert energy_in_filter(lane, watts, t, rc) == pytest.approx(np.array(direct), abs=1e-7 * rc * 9 + 1e-12, rel=1e-6)
    passed = [float((watts * np.maximum(end - lane.t0, 0)).sum()) for end in before]
    assert energy_until(lane, watts, t) == pytest.approx(np.array(passed))
