"""Observation 2: the use of accelerator and cores is periodic with the step, hence predictable."""

from __future__ import annotations

from stepscope.studies.observations._contract import Observation, Verdict, unjudged, verdict
from stepscope.studies.observations._evidence import Evidence
from stepscope.studies.observations._periodic import FOLDED, periodic

_READING = "counterpart on a CPU: the use of the training process itself"


def judge(evidence: Evidence) -> Verdict:
    """Accelerator and mean of the cores; on the CPU alone the cores that the training process keeps busy."""
    if not evidence.accelerated:
        return verdict(OBSERVATION, periodic(evidence.rhythm, "use", "trainer", "use of the training process"), _READING)
    parts = periodic(evidence.rhythm, "use", "accelerator", "use of the accelerator")
    if evidence.disturbed:
        return verdict(OBSERVATION, [*parts, unjudged("use of the CPU periodic", FOLDED, evidence.disturbed)])
    return verdict(OBSERVATION, [*parts, *periodic(evidence.rhythm, "use", "CPU", "use of the CPU")])


OBSERVATION = Observation(
    2,
    "The use of the accelerator and of the cores is periodic, hence predictable",
    "busy cycles alternate with less busy ones; one period is one step (Fig. 3)",
    "rhythm-use",
    "runs",
    judge,
)
