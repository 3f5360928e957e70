"""Shares of a window: they add up, follow the kernel, and are the same however they are computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analysis.energy import sensor_model
from stepscope.analysis.energy.neighbour_errors import gram
from stepscope.analysis.energy.readings import Readings
from stepscope.analysis.energy.sensor_model import (
    SensorModel,
    design,
    fully_covered_flags,
    predict_readings,
)
from stepscope.analysis.energy.timeline import Keys, Lane, PieceUncertainty, Timeline


def _timeline(*lanes: Lane, end: float = 10.0, keys: int = 4) -> Timeline:
    beside = np.zeros(keys, dtype=bool)
    for lane in lanes[1:]:
        beside[lane.key] = True
    numbered = Keys(np.arange(keys), np.arange(keys), beside)
    return Timeline(lanes, numbered, np.array([0.0]), np.array([end]), np.array([True]))


ONE = Lane(np.array([1.0, 2.0, 5.0]), np.array([2.0, 4.0, 6.0]), np.array([0, 1, 0]))


def test_a_box_gives_each_key_the_share_of_the_window_that_it_ran() -> None:
    rows = design(_timeline(ONE), Readings(np.array([5.5, 4.0]), np.zeros(2)), SensorModel(0.0, 4.0)).toarray()
    assert rows == pytest.approx(np.array([[0.125 + 0.125, 0.5, 0.0, 0.25], [0.25, 0.5, 0.0, 0.25]]))


def test_a_lag_moves_the_window_back() -> None:
    readings = Readings(np.array([5.5]), np.zeros(1))
    late, prompt = (
        design(_timeline(ONE), Readings(readings.stamp + lag, readings.watts), SensorModel(lag, 1.0)).toarray()
        for lag in (3.0, 0.0)
    )
    assert late == pytest.approx(prompt)


def test_an_analogue_filter_reaches_back_and_still_adds_up_to_one() -> None:
    timeline = _timeline(ONE)
    rows = design(timeline, Readings(np.array([7.0]), np.zeros(1)), SensorModel(0.0, 0.5, rc=0.4)).toarray()
    assert rows.sum() == pytest.approx(1)
    assert rows[0, 0] == pytest.approx(0.12, abs=0.05)  # it ended half a second before the window began


def test_a_second_lane_comes_on_top() -> None:
    other = Lane(np.array([1.0]), np.array([9.0]), np.array([2]))
    rows = design(_timeline(ONE, other), Readings(np.array([5.0]), np.zeros(1)), SensorModel(0.0, 4.0)).toarray()
    assert rows[0, [0, 1, 3]].sum() == pytest.approx(1)
    assert rows[0, 2] == pytest.approx(1)


def test_windows_that_reach_beyond_the_steps_are_not_covered() -> None:
    readings = Readings(np.array([0.5, 5.0, 10.5]), np.zeros(3))
    assert fully_covered_flags(_timeline(ONE), readings, SensorModel(0.0, 1.0)).tolist() == [False, True, False]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_shares_add_up_and_the_direct_prediction_agrees_with_the_matrix(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=30))
    edges = np.concatenate([[0.5], 0.5 + np.cumsum(lengths)])
    taken = np.array(data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths))))
    taken[0] = True
    keys = np.arange(len(lengths)) % 3
    lane = Lane(edges[:-1][taken], edges[1:][taken], keys[taken])
    timeline = _timeline(lane, end=float(edges[-1]) + 0.5)
    width, rc, smear, hold = (data.draw(st.floats(*ends)) for ends in ((0.05, 0.4), (0, 0.05), (0, 0.02), (0, 0.1)))
    model = SensorModel(0.0, width, rc, smear, hold if hold > 1e-4 else 0.0)
    readings = Readings(np.linspace(0.6, timeline.end, 17), np.zeros(17))
    rows, watts = design(timeline, readings, model), np.array([3.0, 7.0, 2.0, 1.0])
    assert np.asarray(rows.sum(axis=1)).ravel() == pytest.approx(np.ones(17))
    # The matrix forgets a filter's tail after 7 time constants, the sums do not.
    assert predict_readings(timeline, readings, model, watts) == pytest.approx(rows @ watts, abs=7.0 * 1e-3)
    assert gram(rows) == pytest.approx(rows.toarray().T @ rows.toarray())


def test_no_readings_make_an_empty_matrix() -> None:
    assert design(_timeline(ONE), Readings(np.empty(0), np.empty(0)), SensorModel(0.0, 1.0)).shape == (0, 4)


KERNELS: tuple[dict[str, float], ...] = ({}, {"hold": 0.02}, {"smear": 0.001, "hold": 0.02})


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_sums_at_the_edges_of_windows_give_the_shares_that_each_piece_gives(
    kernel: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    edges = np.cumsum(np.random.default_rng(3).exponential(1e-4, 40_001))
    lane = Lane(edges[0:-1:2], edges[1::2], np.arange(20_000) % 3)
    timeline, readings = _timeline(lane, end=float(edges[-1])), Readings(np.linspace(1.0, 3.5, 40), np.zeros(40))
    model = SensorModel(0.002, 0.03, **kernel)
    by_sums = design(timeline, readings, model).toarray()
    monkeypatch.setattr(sensor_model, "_A_PIECE", 0.0)
    by_pieces = design(timeline, readings, model).toarray()
    assert by_sums == pytest.approx(by_pieces, abs=2e-6)
    assert by_sums @ np.array([3.0, 7.0, 2.0, 1.0]) == pytest.approx(
        predict_readings(timeline, readings, model, np.array([3.0, 7.0, 2.0, 1.0])), rel=1e-7
    )


def _blurred(timeline: Timeline, sd: float) -> Timeline:
    """The same, where nothing before 3 s is uncertain, and pieces later than 4 s are."""
    at, nowhere = np.array([0.0, 3.0, 4.0, 10.0]), np.zeros(4, dtype=np.int64)
    unsure = PieceUncertainty(at, np.array([0.0, 0.0, sd, sd]), np.zeros((1, 1)), nowhere, np.ones(4))
    return replace(timeline, scatter=unsure)


@pytest.mark.parametrize("model", [SensorModel(0.0, 0.5, rc=0.3), SensorModel(0.0, 0.5, hold=0.4)])
def test_readings_of_profiled_steps_see_the_kernel_itself_beside_blurred_ones(model: SensorModel) -> None:
    timeline = _timeline(ONE)
    readings = Readings(np.array([6.2, 2.5, 5.1, 2.9]), np.zeros(4))
    exact = design(timeline, readings, model).toarray()
    mixed = design(_blurred(timeline, 0.2), readings, model).toarray()
    assert mixed[[1, 3]] == pytest.approx(exact[[1, 3]])
    assert np.abs(mixed[[0, 2]] - exact[[0, 2]]).max() > 0.01
    assert mixed.sum(axis=1) == pytest.approx(np.ones(4))
    watts = np.array([3.0, 5.0, 0.0, 1.0])
    assert predict_readings(_blurred(timeline, 0.2), readings, model, watts) == pytest.approx(mixed @ watts)


@pytest.mark.parametrize("rc", [0.02, 0.3, 1.0])
def test_a_filter_over_pieces_of_uncertain_times_is_the_mean_over_these_times(rc: float) -> None:
    model, sd = SensorModel(0.0, 0.5, rc=rc), 0.2
    stamp = np.array([5.2, 5.9, 6.4, 7.0])
    blurred = design(_blurred(_timeline(ONE), sd), Readings(stamp, np.zeros(4)), model).toarray()
    off = np.linspace(-6, 6, 241)
    share = np.exp(-(off**2) / 2) / np.exp(-(off**2) / 2).sum()
    moved = [design(_timeline(ONE), Readings(stamp + by * sd, np.zeros(4)), model).toarray() for by in off]
    assert blurred == pytest.approx(np.tensordot(share, moved, axes=1), abs=2e-3)
