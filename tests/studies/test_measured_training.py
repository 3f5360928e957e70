"""Time and energy of a stretch of a training, also where the sensor has left something out."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.experiments.engine.training import TrainingRecord


def _trained(joules: list[float] | None) -> TrainingRecord:
    values = None if joules is None else np.array(joules)
    return TrainingRecord((), np.array([1.0, 1.0, 2.0, 1.0, 1.0]), values, "measured", "board", "run")


def test_time_and_energy_are_those_of_the_steps_asked_for() -> None:
    whole = _trained([2.0, 2.0, 4.0, 2.0, 3.0])
    assert whole.seconds(5) == 6
    assert whole.seconds(4, 2) == 3
    assert whole.joules(5) == 13
    assert whole.joules(4, 2) == 6
    assert whole.joules(2, 2) is None
    assert whole.gap == 0


def test_a_small_gap_is_counted_at_the_mean_power_of_the_rest_and_said() -> None:
    holed = _trained([2.0, 2.0, 4.0, 2.0, float("nan")])
    assert holed.joules(5) == pytest.approx(12)
    assert holed.gap == pytest.approx(1 / 6)


def test_what_was_mostly_not_read_is_not_known() -> None:
    assert _trained([2.0, float("nan"), float("nan"), 2.0, 2.0]).joules(5) is None
    assert _trained(None).joules(5) is None
    assert _trained(None).gap is None
