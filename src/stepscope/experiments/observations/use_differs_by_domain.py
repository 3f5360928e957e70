"""Observation 5: convolutional networks use the accelerator more than recurrent ones."""

from __future__ import annotations

from stepscope.experiments.observations._contract import Limits, Observation, Verdict, part, unjudged, verdict
from stepscope.experiments.observations._evidence import CONVOLUTIONAL, RECURRENT, Evidence
from stepscope.experiments.observations._statistics import difference_of, quotient_of

APART = 0.10  # of all time
FASTER = 1.25
_SHARE = "mean of the convolutional runs less mean of the recurrent ones, Welch's 95 % CI"
_RATE = "geometric means of both kinds, Welch's 95 % CI of the logarithms"
_CLAIM = "convolution higher than recurrence"
_READING = "counterpart on a CPU: arithmetic done a second, since a training thread is busy in either case"


def judge(evidence: Evidence) -> Verdict:
    """On the CPU alone by FLOP/s: what a busy core gets done is what differs there."""
    column, reading = ("accelerator_use", "as the paper") if evidence.accelerated else ("flop_per_s", _READING)
    known = evidence.runs.drop_nulls(column)
    ours, others = (known.filter(kind=kind)[column] for kind in (CONVOLUTIONAL, RECURRENT))
    test = _SHARE if evidence.accelerated else _RATE
    if ours.is_empty() or others.is_empty():
        lacking = " and ".join(
            kind for kind, values in ((CONVOLUTIONAL, ours), (RECURRENT, others)) if values.is_empty()
        )
        why = f"no {lacking} network was measured: name one with --workloads"
        return verdict(OBSERVATION, [unjudged(_CLAIM, test, why)], reading)
    of = f"{len(ours)} convolutional and {len(others)} recurrent runs"
    if evidence.accelerated:
        found = difference_of(ours, others)
        return verdict(
            OBSERVATION, [part(_CLAIM, test, "difference of the use", found, Limits(least=APART), of)], reading
        )
    found = quotient_of(ours, others)
    return verdict(OBSERVATION, [part(_CLAIM, test, "ratio of FLOP/s", found, Limits(least=FASTER), of)], reading)


OBSERVATION = Observation(
    5,
    "The use of the accelerator differs by domain: recurrent networks low, convolutional ones high",
    "LSTM low, ResNet 95 % (Fig. 4)",
    "figure-4-use-by-batch",
    "runs",
    judge,
)
