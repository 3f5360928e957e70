"""Observation 8: energy per step grows with the batch, but less than it."""

from __future__ import annotations

import math

import numpy as np
import polars as pl

from stepscope.experiments.observations._contract import Limits, Observation, Verdict, part, unjudged, verdict
from stepscope.experiments.observations._evidence import Evidence
from stepscope.experiments.observations._statistics import growth_by_model, slope_within
from stepscope.units import plural

_TEST = "least squares of log(energy per step) on log(batch) with an intercept for each model, Student's 95 % CI"
_GROWS, _LESS = "energy per step grows with the batch", "it grows less than the batch"


def judge(evidence: Evidence) -> Verdict:
    """The exponent of the batch: 0 where energy stays, 1 where it grows as the batch."""
    runs = evidence.runs.drop_nulls("energy_per_step_j").filter(pl.col("batch").n_unique().over("workload") > 1)
    if runs.is_empty():
        why = evidence.absent.get(
            "power", "the energy of the whole device was not measured with two batch sizes of a model"
        )
        return verdict(OBSERVATION, [unjudged(claim, _TEST, why) for claim in (_GROWS, _LESS)])
    logs = (np.log(runs[name].to_numpy().astype(np.float64)) for name in ("batch", "energy_per_step_j"))
    exponent = slope_within(runs["workload"].to_list(), *logs)
    growth = growth_by_model(runs, "energy_per_step_j")
    times = "; ".join(f"{row['workload']} {math.exp(row['log']):.2g} times for {row['largest'] / row['smallest']:g}"
                      for row in growth.iter_rows(named=True))  # fmt: skip
    of, effect = f"{plural(len(runs), 'run')}: {times}", "exponent of the batch"
    return verdict(
        OBSERVATION,
        [
            part(_GROWS, _TEST, effect, exponent, Limits(least=0.0), of),
            part(_LESS, _TEST, effect, exponent, Limits(most=1.0), of),
        ],
    )


OBSERVATION = Observation(
    8,
    "Energy per step grows with the batch, but less than it",
    "2.2 to 10.5 times for a batch 16 times as large: an exponent of 0.28 to 0.85 (Fig. 6)",
    "figure-6-energy-by-batch",
    "runs",
    judge,
)
