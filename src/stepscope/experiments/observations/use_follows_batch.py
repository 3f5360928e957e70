"""Observation 3: the use of the accelerator follows the batch size, that of the CPU does not."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.experiments.observations._contract import (
    AS_THE_PAPER,
    Interval,
    Limits,
    Observation,
    Part,
    Verdict,
    part,
    unjudged,
    verdict,
)
from stepscope.experiments.observations._evidence import Evidence
from stepscope.experiments.observations._statistics import slope_within
from stepscope.units import plural

FOLLOWS, STAYS = 0.03, 0.05  # of all time, for 16 times the batch: the paper saw 0.10 to 0.13, and 0.021
DOUBLINGS = 4  # 16 times, as from 4 to 64
_TEST = "least squares on log2(batch) with an intercept for each model, Student's 95 % CI"
_READING = "counterpart on a CPU: the use of its training threads"


def judge(evidence: Evidence) -> Verdict:
    """On the CPU alone: the share of the time in which its threads run must not depend on the batch."""
    stays, runs = Limits(-STAYS, STAYS), evidence.undisturbed
    own = runs.with_columns(use=pl.col("trainer_cores") / pl.col("threads"))
    what, column, reading = (
        ("CPU", "cpu_use", AS_THE_PAPER) if evidence.accelerated else ("training threads", "use", _READING)
    )
    claim = f"the use of the {what} stays"
    cpu = unjudged(claim, _TEST, evidence.disturbed) if evidence.disturbed else _change(own, column, claim, stays)
    if not evidence.accelerated:
        return verdict(OBSERVATION, [cpu], reading)
    follows = _change(evidence.runs, "accelerator_use", "the use of the accelerator grows", Limits(least=FOLLOWS))
    return verdict(OBSERVATION, [follows, cpu], reading)


def _change(runs: pl.DataFrame, column: str, claim: str, limits: Limits) -> Part:
    known = runs.drop_nulls(column).filter(pl.col("batch").n_unique().over("workload") > 1)
    if known.is_empty():
        why = "not read in any run" if runs[column].null_count() == len(runs) else "no model ran with two batch sizes"
        return unjudged(claim, _TEST, why)
    slope = slope_within(known["workload"].to_list(), np.log2(known["batch"].to_numpy()), known[column].to_numpy())
    change = Interval(*(DOUBLINGS * bound for bound in (slope.value, slope.low, slope.high)))
    of = f"{plural(len(known), 'run')}; models: {known['workload'].n_unique()}"
    return part(claim, _TEST, "change of the share of busy time for a 16 times larger batch", change, limits, of)


OBSERVATION = Observation(
    3,
    "The use of the accelerator follows the batch size, that of the CPU does not",
    "GPU: 71.4 to 84.5 % and 85.6 to 95.6 % from batch 4 to 64; CPU: 2.1 points on average (Fig. 4)",
    "figure-4-use-by-batch",
    "runs",
    judge,
)
