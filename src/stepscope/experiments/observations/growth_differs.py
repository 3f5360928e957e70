"""Observation 11: how much throughput grows with the batch differs from model to model."""

from __future__ import annotations

import math

from scipy import special  # type: ignore[import-untyped]

from stepscope.analysis.estimate import CONFIDENCE
from stepscope.experiments.observations._contract import Interval, Limits, Observation, Verdict, part, unjudged, verdict
from stepscope.experiments.observations._evidence import Evidence
from stepscope.experiments.observations._statistics import growth_by_model
from stepscope.units import plural

APART = 1.25  # times
_TEST = "largest growth over smallest, with an interval that allows for having chosen them among all pairs (Bonferroni)"
_CLAIM = "growth differs between models"


def judge(evidence: Evidence) -> Verdict:
    """Per doubling of the batch, so that models with other ranges can be compared, and told for 16 times the batch."""
    growth = growth_by_model(evidence.runs, "samples_per_s").drop_nulls("error")
    if len(growth) < 2:
        why = f"{len(growth)} models ran with two batch sizes and an interval; it takes two"
        return verdict(OBSERVATION, [unjudged(_CLAIM, _TEST, why)])
    rows = []
    for row in growth.iter_rows(named=True):
        scale = math.log(16) / math.log(row["largest"] / row["smallest"])
        rows.append((row["log"] * scale, row["error"] * scale, row["workload"]))
    rows.sort()
    (low, low_error, least), (high, high_error, most) = rows[0], rows[-1]
    pairs = len(rows) * (len(rows) - 1) / 2
    half = float(special.ndtri(1 - (1 - CONFIDENCE) / 2 / pairs)) * math.hypot(low_error, high_error)
    ratio = Interval(*(math.exp(x) for x in (high - low, high - low - half, high - low + half)))
    grown = f"16 times the batch: {most} {math.exp(high):.2g} times, {least} {math.exp(low):.2g}"
    of = f"{plural(len(rows), 'model')}; {grown}"
    return verdict(OBSERVATION, [part(_CLAIM, _TEST, "ratio of the growths", ratio, Limits(least=APART), of)])


OBSERVATION = Observation(
    11,
    "How much throughput grows with the batch differs by model",
    "from batch 4 to 64: deep RL 15.3 times, ResNet50 6.1, DenseNet40 1.7 (Fig. 8)",
    "figure-8-throughput-by-batch",
    "runs",
    judge,
)
