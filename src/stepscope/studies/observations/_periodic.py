"""Whether something that was sampled repeats with the step: shared by the observations on use and on power."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.studies.observations._contract import Limits, Part, part, unjudged
from stepscope.studies.observations._statistics import mean_of, share_of

OF_THE_STEP = 0.1  # a period within this share of the step's length is the step's
MOST_RUNS, FORETOLD = 0.5, 0.25
FOUND = "share of the runs whose autocorrelation has its first peak at one step, Wilson's interval"
FOLDED = "samples folded by step: variance of the even steps foretold by the mean of the odd ones; mean over the runs"


def periodic(rhythm: pl.DataFrame, of: str, what: str, name: str) -> list[Part]:
    """Two claims on one channel: the samples alone show the step as their period; one step foretells another."""
    found, foretold = f"the {name} has the step as its period", f"one step foretells the {name} of another"
    rows = rhythm.filter(of=of, what=what)
    known = rows.drop_nulls("explained")
    if known.is_empty():
        why = _too_short(rows, name)
        return [unjudged(found, FOUND, why), unjudged(foretold, FOLDED, why)]
    hits = known.filter((pl.col("period_steps") - 1).abs() <= OF_THE_STEP)
    flat = f", standard deviation {float(np.median(known['deviation'].to_numpy())):.2g}"
    of_runs = f"{len(known)} of {len(rows)} runs, whose steps are long enough for the readings{flat}"
    share, variance = share_of(len(hits), len(known)), mean_of(known["explained"])
    return [
        part(found, FOUND, "share of the runs", share, Limits(least=MOST_RUNS), of_runs),
        part(foretold, FOLDED, "share of the variance foretold", variance, Limits(least=FORETOLD), of_runs),
    ]


def _too_short(rows: pl.DataFrame, name: str) -> str:
    if rows.is_empty():
        return f"the {name} was not read"
    longest = rows.sort("readings_per_step", descending=True).row(0, named=True)
    step, readings = longest["step_ms"], longest["readings_per_step"]
    return f"no run has steps long enough to see into: at best {readings:.1f} readings in a step of {step:.3g} ms"
