"""Observation 10: throughput grows with the batch."""

from __future__ import annotations

import math

import numpy as np
import polars as pl

from stepscope.experiments.observations._contract import Limits, Observation, Verdict, part, unjudged, verdict
from stepscope.experiments.observations._evidence import Evidence
from stepscope.experiments.observations._statistics import NORMAL, growth_by_model, slope_within
from stepscope.units import plural

_TEST = "least squares of log(samples a second) on log(batch) with an intercept for each model, Student's 95 % CI"
_CLAIM = "samples a second grow with the batch"


def judge(evidence: Evidence) -> Verdict:
    """Over all models together; those that clearly go the other way are named."""
    runs = evidence.runs.drop_nulls("samples_per_s").filter(pl.col("batch").n_unique().over("workload") > 1)
    if runs.is_empty():
        return verdict(OBSERVATION, [unjudged(_CLAIM, _TEST, "no model ran with two batch sizes")])
    logs = (np.log(runs[name].to_numpy().astype(np.float64)) for name in ("batch", "samples_per_s"))
    exponent = slope_within(runs["workload"].to_list(), *logs)
    growth = growth_by_model(runs, "samples_per_s")
    shrink = growth.filter(pl.col("log") + NORMAL * pl.col("error") < 0)
    against = "".join(
        f"; {row['workload']} shrinks to {math.exp(row['log']):.2g}" for row in shrink.iter_rows(named=True)
    )
    of = f"{plural(len(runs), 'run')}; models: {len(growth)}{against}"
    return verdict(OBSERVATION, [part(_CLAIM, _TEST, "exponent of the batch", exponent, Limits(least=0.0), of)])


OBSERVATION = Observation(
    10,
    "Throughput grows with the batch",
    "for all models; ResNet50 from 9 to 55 samples a second from batch 4 to 64 (Fig. 8)",
    "figure-8-throughput-by-batch",
    "runs",
    judge,
)
