"""Steps without recorded ops take the shape of the median step of their length."""

from __future__ import annotations

import numpy as np
import pytest
from tests.analysis.attribution.simulated import execute, resnet_step, thinned

from stepscope.analysis.energy.timeline import Lane, fill_unprofiled


def test_every_step_has_its_ops_after_filling_and_recorded_ones_are_untouched() -> None:
    run = execute(resnet_step(0), 20, 1)
    part, kept = thinned(run, 5)
    lane, scatter = fill_unprofiled(part.lanes[0], part.step_t0, part.step_t1, part.recorded)
    whole = run.timeline.lanes[0]
    assert len(lane.t0) == len(whole.t0)
    assert (lane.key == whole.key).all()
    n = run.program.places
    rows = (kept[:, None] * n + np.arange(n)).ravel()
    assert lane.t0[rows] == pytest.approx(whole.t0[rows])
    assert np.median(np.abs(lane.t0 - whole.t0)) < 0.005
    assert (lane.t1[:-1] <= lane.t0[1:] + 1e-4).all()  # stamps are 5 us off
    assert scatter is not None
    off = np.abs(lane.t0 - whole.t0)[~np.isin(np.arange(len(lane.t0)), rows)]
    assert 0.2 < np.median(off) / np.median(scatter.sd[scatter.sd > 0]) < 2
    assert scatter.sd_at(part.step_t0) == pytest.approx(np.zeros(20), abs=1e-4)


def test_a_short_step_is_filled_from_short_ones() -> None:
    step_t0 = np.array([0.0, 1.0, 11.0, 12.0, 22.0])
    step_t1 = np.array([1.0, 11.0, 12.0, 22.0, 23.0])
    lane = Lane(np.array([0.2, 3.0]), np.array([0.8, 9.0]), np.array([0, 1]))
    done, _ = fill_unprofiled(lane, step_t0, step_t1, np.array([True, True, False, False, False]))
    assert done.key.tolist() == [0, 1, 0, 1, 0]
    assert done.t0 == pytest.approx([0.2, 3.0, 11.2, 14.0, 22.2])
    assert done.t1 == pytest.approx([0.8, 9.0, 11.8, 20.0, 22.8])


def test_nothing_recorded_is_nothing_to_fill_from() -> None:
    lane = Lane(np.empty(0), np.empty(0), np.empty(0, dtype=np.int64))
    done, scatter = fill_unprofiled(lane, np.array([0.0]), np.array([1.0]), np.array([False]))
    assert len(done.t0) == 0
    assert scatter is None
