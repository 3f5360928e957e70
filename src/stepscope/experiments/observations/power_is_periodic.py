"""Observation 7: power is periodic with the step, hence predictable."""

from __future__ import annotations

from stepscope.experiments.observations._contract import Observation, Verdict, unjudged, verdict
from stepscope.experiments.observations._evidence import Evidence
from stepscope.experiments.observations._statistics import FOLD_TEST, periodic


def judge(evidence: Evidence) -> Verdict:
    """Of the whole device where a rail holds it, else of the component that was measured first."""
    measured = evidence.rhythm.filter(of="power")["what"].unique(maintain_order=True).to_list()
    if not measured:
        why = evidence.absent.get("power", "no power sensor was read")
        return verdict(OBSERVATION, [unjudged("the power is periodic", FOLD_TEST, why)])
    what = "total" if "total" in measured else measured[0]
    return verdict(OBSERVATION, periodic(evidence.rhythm, "power", what, f"power ({what})"))


OBSERVATION = Observation(
    7,
    "Power is periodic with the step, hence predictable",
    "the power of every component repeats from step to step (Fig. 7)",
    "figure-7-power-over-steps",
    "runs",
    judge,
)
