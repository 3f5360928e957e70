"""Observation 12: training on a few new images every day slowly raises the accuracy."""

from __future__ import annotations

import numpy as np

from stepscope.experiments.observations._contract import Interval, Limits, Observation, Verdict, part, unjudged, verdict
from stepscope.experiments.observations._evidence import Evidence
from stepscope.experiments.observations._statistics import mean_of

_TEST = "least-squares slope of accuracy on day of each seed; mean over the seeds, Student's 95 % CI"
_CLAIM = "accuracy rises"


def judge(evidence: Evidence) -> Verdict:
    """Seeds are what repeats: days of one seed hang together. Several batch sizes of a seed count as their mean."""
    if evidence.days.is_empty():
        why = evidence.absent.get("days", "no daily training was made")
        return verdict(DAILY_TRAINING, [unjudged(_CLAIM, _TEST, why)])
    slopes, gains = [], []
    for _, seed in evidence.days.group_by("seed", maintain_order=True):
        of_seed = [frame.sort("day") for _, frame in seed.group_by("batch", maintain_order=True)]
        lines = [np.polyfit(frame["day"].to_numpy(), frame["accuracy"].to_numpy(), 1)[0] for frame in of_seed]
        slopes.append(100 * float(np.mean(lines)))
        gains.append([float(np.mean([frame["accuracy"][end] for frame in of_seed])) for end in (0, -1)])
    slope: Interval = mean_of(slopes)
    first, last = np.mean(gains, axis=0)
    days = int(evidence.days.select("day").to_series().max())  # type: ignore[arg-type]
    of = f"{len(slopes)} seeds, {days} days: {first:.1%} to {last:.1%}"
    return verdict(DAILY_TRAINING, [part(_CLAIM, _TEST, "points of accuracy a day", slope, Limits(least=0.0), of)])


DAILY_TRAINING = Observation(
    12,
    "Training on 64 new images a day slowly raises the accuracy",
    "60.65 to 61.32 % in 17 days: 0.04 points a day (Fig. 10)",
    "figure-10-accuracy-by-day",
    "days",
    judge,
)

OBSERVATIONS = (DAILY_TRAINING,)
