"""Energies that come out below 0 are taken from those that had them."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.analysis.energy.regression import remove_negative_energies


def test_what_a_part_below_0_lacked_is_taken_from_the_one_that_had_it() -> None:
    covariance = np.array([[1.0, -0.9, 0.0], [-0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert remove_negative_energies(np.array([-1.0, 3.0, 2.0]), covariance) == pytest.approx([0.0, 2.1, 2.0], abs=1e-6)


def test_a_part_that_is_then_below_0_is_held_too() -> None:
    covariance = np.array([[1.0, -0.9], [-0.9, 1.0]])
    assert remove_negative_energies(np.array([-2.0, 1.0]), covariance) == pytest.approx([0.0, 0.0], abs=1e-6)


def test_energies_above_0_are_left_alone_and_errors_that_go_together_are_no_trouble() -> None:
    joules = np.array([1.0, 2.0])
    assert (remove_negative_energies(joules, np.ones((2, 2))) == joules).all()
    assert np.isfinite(remove_negative_energies(np.array([-1.0, -1.0, 5.0]), np.ones((3, 3)))).all()
