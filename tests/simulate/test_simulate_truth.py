"""The truth: exact integrals, self times without children, and the file that keeps it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stepscope.simulate.marks import State
from stepscope.simulate.power import SEGMENT, Truth, load_truth

S = 1_000_000_000


@pytest.fixture
def truth() -> Truth:
    """2 W idle for 1 s, 10 W for 2 s, 5 W for 1 s; the second rail takes half of what is above idle."""
    segments = np.array([(10 * S, 0, 1, 1), (11 * S, 1, 1, 1), (13 * S, 2, 0.5, 1)], dtype=SEGMENT)
    above = np.array([[0.0, 0.0], [8.0, 4.0], [6.0, 3.0]])
    states = tuple(State(name, "forward") for name in ("idle", "conv", "relu"))
    return Truth("board", ("all", "half"), states, np.array([2.0, 0.0]), above, segments, 14 * S, 0)


def test_energy_between_any_two_moments_is_exact(truth: Truth) -> None:
    t0 = np.array([10, 10, 12, 13]) * S
    t1 = np.array([14, 11, 13, 14]) * S
    assert truth.energy_between("all", t0, t1).tolist() == pytest.approx([27, 2, 10, 5])
    assert float(truth.energy_between("half", 11 * S + S // 2, 13 * S + S // 2)) == pytest.approx(6.75)


def test_outside_the_simulation_nothing_is_known(truth: Truth) -> None:
    assert np.isnan(truth.energy_between("all", 9 * S, 11 * S))
    assert np.isnan(truth.energy_between("all", 13 * S, 15 * S))


def test_own_energies_leave_children_out_and_add_up_to_the_whole(truth: Truth) -> None:
    t0 = np.array([10, 11, 12, 11]) * S
    t1 = np.array([14, 13, 13, 12]) * S
    own = truth.self_energy("all", t0, t1, np.array([-1, 0, 1, 1]))
    assert own.tolist() == pytest.approx([7, 0, 10, 10])
    assert own.sum() == pytest.approx(27)


def test_parents_count_within_their_step_and_other_lanes_run_beside(truth: Truth) -> None:
    t0, t1 = np.array([10, 10, 12, 12]) * S, np.array([12, 11, 14, 13]) * S
    parent, step = np.array([-1, 0, -1, 0]), np.array([4, 4, 7, 7])
    assert truth.self_energy("all", t0, t1, parent, step).tolist() == pytest.approx([10, 2, 5, 10])
    lane = np.array([0, 1, 0, 0])
    assert truth.self_energy("all", t0, t1, parent, step, lane).tolist() == pytest.approx([12, 2, 5, 10])


def test_what_was_saved_is_read_again_from_file_or_folder(truth: Truth, tmp_path: Path) -> None:
    path = truth.save(tmp_path)
    for place in (path, tmp_path):
        again = load_truth(place)
        assert (again.board, again.rails, again.states, again.end_ns) == ("board", truth.rails, truth.states, 14 * S)
        assert float(again.energy_between("all", 10 * S, 14 * S)) == pytest.approx(27)


def test_an_unknown_rail_is_answered_with_the_known_ones(truth: Truth) -> None:
    with pytest.raises(KeyError, match="all, half"):
        truth.watts("VDD_IN")
