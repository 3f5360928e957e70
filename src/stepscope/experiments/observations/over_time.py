"""Observations over time: use and power repeat with the step, accuracy rises with the days."""

from __future__ import annotations

import numpy as np

from stepscope.experiments.observations import (
    JudgedClaim,
    Limits,
    Observation,
    Verdict,
    judge_claim,
    undecidable_claim,
    verdict_from_claims,
)
from stepscope.experiments.observations._evidence import Evidence
from stepscope.experiments.observations._statistics import FOLD_TEST, judge_periodicity, mean_of

# Observations of what repeats with the step: use and power.
#
# Observation 2: the use of accelerator and cores is periodic with the step, hence predictable.
#
# Observation 7: power is periodic with the step, hence predictable.

_READING = "counterpart on a CPU: the use of the training process itself"


def judge_use_is_periodic(evidence: Evidence) -> Verdict:
    """Accelerator and mean of the cores; on the CPU alone the cores that the training process keeps busy."""
    if not evidence.accelerated:
        return verdict_from_claims(
            USE_IS_PERIODIC, _periodic(evidence, "use", "trainer", "use of the training process"), _READING
        )
    parts = _periodic(evidence, "use", "accelerator", "use of the accelerator")
    return verdict_from_claims(USE_IS_PERIODIC, [*parts, *_periodic(evidence, "use", "CPU", "use of the CPU")])


def _periodic(evidence: Evidence, of: str, what: str, name: str) -> list[JudgedClaim]:
    """Return the parts on a channel, from runs that had the machine to themselves: a scheduler has a rhythm, too."""
    if evidence.why_all_times_disturbed:
        return [undecidable_claim(f"{name} periodic", FOLD_TEST, evidence.why_all_times_disturbed)]
    alone = evidence.rhythm.join(evidence.runs_without_load.select("run"), on="run", how="semi")
    return judge_periodicity(alone, evidence.runs, of, what, name)


USE_IS_PERIODIC = Observation(
    2,
    "The use of the accelerator and of the cores is periodic, hence predictable",
    "busy cycles alternate with less busy ones; one period is one step (Fig. 3)",
    "rhythm-use",
    "runs",
    judge_use_is_periodic,
)


def judge_power_is_periodic(evidence: Evidence) -> Verdict:
    """Judge the power of the whole device where a rail measures it, else of the first measured component."""
    measured = evidence.rhythm.filter(of="power")["what"].unique(maintain_order=True).to_list()
    if not measured:
        why = evidence.absent.get("power", "no power sensor was read")
        return verdict_from_claims(POWER_IS_PERIODIC, [undecidable_claim("the power is periodic", FOLD_TEST, why)])
    what = "total" if "total" in measured else measured[0]
    return verdict_from_claims(POWER_IS_PERIODIC, _periodic(evidence, "power", what, f"power ({what})"))


POWER_IS_PERIODIC = Observation(
    7,
    "Power is periodic with the step, hence predictable",
    "the power of every component repeats from step to step (Fig. 7)",
    "figure-7-power-over-steps",
    "runs",
    judge_power_is_periodic,
)


# Observation 12: training on a few new images every day slowly raises the accuracy.

_TEST = "least-squares slope of accuracy on day of each seed; mean over the seeds, Student's 95 % CI"
_CLAIM = "accuracy rises"


def judge_days(evidence: Evidence) -> Verdict:
    """Seeds are what repeats: days of one seed hang together. Several batch sizes of a seed count as their mean."""
    if evidence.days.is_empty():
        why = evidence.absent.get("days", "no daily training was made")
        return verdict_from_claims(DAILY_TRAINING, [undecidable_claim(_CLAIM, _TEST, why)])
    slopes, gains = [], []
    for _, seed in evidence.days.group_by("seed", maintain_order=True):
        of_seed = [frame.sort("day") for _, frame in seed.group_by("batch", maintain_order=True)]
        lines = [np.polyfit(frame["day"].to_numpy(), frame["accuracy"].to_numpy(), 1)[0] for frame in of_seed]
        slopes.append(100 * float(np.mean(lines)))
        gains.append([float(np.mean([frame["accuracy"][end] for frame in of_seed])) for end in (0, -1)])
    slope = mean_of(slopes)
    first, last = np.mean(gains, axis=0)
    days = int(evidence.days.select("day").to_series().max())  # type: ignore[arg-type]
    of = f"{len(slopes)} seeds, {days} days: {first:.1%} to {last:.1%}"
    return verdict_from_claims(
        DAILY_TRAINING, [judge_claim(_CLAIM, _TEST, "points of accuracy a day", slope, Limits(least=0.0), of)]
    )


DAILY_TRAINING = Observation(
    12,
    "Training on 64 new images a day slowly raises the accuracy",
    "60.65 to 61.32 % in 17 days: 0.04 points a day (Fig. 10)",
    "figure-10-accuracy-by-day",
    "days",
    judge_days,
)

OBSERVATIONS = (USE_IS_PERIODIC, POWER_IS_PERIODIC, DAILY_TRAINING)
