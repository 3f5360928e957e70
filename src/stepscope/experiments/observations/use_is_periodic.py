"""Observation 2: the use of accelerator and cores is periodic with the step, hence predictable."""

from __future__ import annotations

import polars as pl

from stepscope.experiments.observations._contract import Observation, Part, Verdict, unjudged, verdict
from stepscope.experiments.observations._evidence import Evidence
from stepscope.experiments.observations._statistics import FOLD_TEST, periodic

_READING = "counterpart on a CPU: the use of the training process itself"


def judge(evidence: Evidence) -> Verdict:
    """Accelerator and mean of the cores; on the CPU alone the cores that the training process keeps busy."""
    alone = evidence.rhythm.join(evidence.undisturbed.select("run"), on="run", how="semi")
    if not evidence.accelerated:
        return verdict(OBSERVATION, _core_parts(evidence, alone, "trainer", "use of the training process"), _READING)
    parts = periodic(evidence.rhythm, "use", "accelerator", "use of the accelerator")
    return verdict(OBSERVATION, [*parts, *_core_parts(evidence, alone, "CPU", "use of the CPU")])


def _core_parts(evidence: Evidence, alone: pl.DataFrame, what: str, name: str) -> list[Part]:
    """Of runs that had the cores to themselves: a scheduler that hands them round has a rhythm of its own."""
    if evidence.disturbed:
        return [unjudged(f"{name} periodic", FOLD_TEST, evidence.disturbed)]
    return periodic(alone, "use", what, name)


OBSERVATION = Observation(
    2,
    "The use of the accelerator and of the cores is periodic, hence predictable",
    "busy cycles alternate with less busy ones; one period is one step (Fig. 3)",
    "rhythm-use",
    "runs",
    judge,
)
