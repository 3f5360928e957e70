"""The questions that Python can ask by name: each is a frozen dataclass, and its fields are the options of its command.

    stepscope.study(stepscope.requests.PartialTraining(fractions=(0.125, 0.5)))

A study of one's own is a `StudyRequest` in one file and a row of STUDIES.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.api.questions import CalibrateRequest, ForecastRequest, RunRequest
from stepscope.experiments.breakdown.request import Breakdown
from stepscope.experiments.daily.request import DailyTraining
from stepscope.experiments.engine.request import StudyRequest
from stepscope.experiments.kernels.request import Kernels
from stepscope.experiments.observations.request import Observations
from stepscope.experiments.partial.request import PartialTraining
from stepscope.experiments.suite.request import SuiteRun
from stepscope.experiments.sweeps.request import BatchSweep, OptimizerSweep, PowerModes, PrecisionSweep, ThreadSweep

__all__ = [
    "BatchSweep",
    "Breakdown",
    "CalibrateRequest",
    "DailyTraining",
    "ForecastRequest",
    "Kernels",
    "Observations",
    "OptimizerSweep",
    "PartialTraining",
    "PowerModes",
    "PrecisionSweep",
    "RunRequest",
    "StudyRequest",
    "SuiteRun",
    "ThreadSweep",
]


@dataclass(frozen=True)
class Study:
    """A study: its request, and the function of `report.charts` that draws its figures from the frames."""

    request: type[StudyRequest]
    charts: str = ""


STUDIES = {
    study.request.study: study
    for study in (
        Study(BatchSweep, "trainings:setting_charts"),
        Study(Breakdown, "operators:breakdown_charts"),
        Study(DailyTraining, "trainings:daily_charts"),
        Study(Kernels, "operators:kernel_charts"),
        Study(Observations, "observations:observation_charts"),
        Study(OptimizerSweep, "trainings:setting_charts"),
        Study(PartialTraining, "trainings:partial_charts"),
        Study(PowerModes, "trainings:setting_charts"),
        Study(PrecisionSweep, "trainings:setting_charts"),
        Study(ThreadSweep, "trainings:setting_charts"),
    )
}
