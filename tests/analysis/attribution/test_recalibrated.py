"""A rail is calibrated beside one that is known already; one that draws nothing breaks nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.analysis.attribution.simulated import execute, resnet_step, sampled

from stepscope.analysis.energy.calibration import calibrate, recalibrate


def test_a_rail_that_draws_nothing_takes_the_model_of_its_neighbour() -> None:
    run = execute(resnet_step(0), 12, 0)
    readings = sampled(run, 0)
    near = calibrate(run.timeline, readings)
    still = replace(readings, watts=np.zeros(readings.count))
    assert recalibrate(run.timeline, still, near).model.width == pytest.approx(near.model.width)
