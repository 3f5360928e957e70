"""A rail is calibrated beside one that is known already; one that draws nothing breaks nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.analysis.attribution.simulated import execute, resnet_step, sampled

from stepscope.analysis.energy.calibration import fit_sensor_model, refit_sensor_model


def test_a_rail_that_draws_nothing_takes_the_model_of_its_neighbour() -> None:
    run = execute(resnet_step(0), 12, 0)
    readings = sampled(run, 0)
    near = fit_sensor_model(run.timeline, readings)
    still = replace(readings, watts=np.zeros(readings.count))
    assert refit_sensor_model(run.timeline, still, near).model.width == pytest.approx(near.model.width)
