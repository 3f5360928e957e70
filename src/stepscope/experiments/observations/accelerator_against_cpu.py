"""Observation 1: the accelerator is much busier than the CPU, and when one is busy the other is not."""

from __future__ import annotations

import polars as pl

from stepscope.experiments.observations._contract import (
    AS_THE_PAPER,
    Limits,
    Observation,
    Part,
    Verdict,
    part,
    unjudged,
    verdict,
)
from stepscope.experiments.observations._evidence import Evidence
from stepscope.experiments.observations._statistics import correlation_of, ratio_of
from stepscope.units import plural

MUCH = 1.5  # times as busy: GPU close to 100 %, each core 0 to 60 % (Fig. 3)
_LEAST = 1e-3  # of a core: below that a ratio says nothing
_BUSIER = "geometric mean over the runs, Student's 95 % CI of the logarithms"
_IN_TURN = "mean over the runs of Pearson's correlation between windows, Fisher's z"


def judge(evidence: Evidence) -> Verdict:
    """On the CPU alone: the cores that train against the other cores."""
    if evidence.disturbed:
        why = f"the use of the cores is not this training's: {evidence.disturbed}"
        return verdict(
            OBSERVATION, [unjudged("busier", _BUSIER, why)], AS_THE_PAPER if evidence.accelerated else _READING
        )
    if evidence.accelerated:
        return verdict(OBSERVATION, _parts(evidence, "accelerator_use", "cpu_use", "alternation", "accelerator", "CPU"))
    names = ("training_cores_use", "other_cores_use", "core_alternation", "training cores", "other cores")
    return verdict(OBSERVATION, _parts(evidence, *names), _READING)


def _parts(evidence: Evidence, ours: str, others: str, together: str, name: str, other: str) -> list[Part]:
    runs = evidence.undisturbed.filter(pl.col(ours).is_not_null() & pl.col(others).is_not_null())
    busier, in_turn = f"the {name} busier than the {other}", f"{name} and {other} busy in turn"
    if runs.is_empty():
        why = f"the use of the {name} or of the {other} was not read"
        if not evidence.accelerated and not evidence.runs.is_empty():
            why += "; every core trains, or the cores were not sampled: give fewer --threads than there are cores"
        return [unjudged(busier, _BUSIER, why), unjudged(in_turn, _IN_TURN, why)]
    ratio = ratio_of((runs[ours] / runs[others].clip(lower_bound=_LEAST)).to_list())
    known = runs[together].drop_nulls()
    effect, of = f"use of the {name} / use of the {other}", plural(len(runs), "run")
    parts = [part(busier, _BUSIER, effect, ratio, Limits(least=MUCH), of)]
    if known.is_empty():
        return [*parts, unjudged(in_turn, _IN_TURN, "one of the two never changes, or too few windows were read")]
    effect, of = "correlation of their use", plural(len(known), "run")
    return [*parts, part(in_turn, _IN_TURN, effect, correlation_of(known), Limits(most=0.0), of)]


_READING = "counterpart on a CPU: the cores that train against the other cores"
OBSERVATION = Observation(
    1,
    "The accelerator is much busier than the CPU, and they alternate",
    "GPU close to 100 %, each core 0 to 60 %; when one is high the other tends to be low",
    "figure-3-use-over-steps",
    "runs",
    judge,
)
