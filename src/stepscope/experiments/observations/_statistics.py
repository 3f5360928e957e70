"""The tests that the observations share: means over runs, slopes within models, growth over batches, periodicity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from scipy import special  # type: ignore[import-untyped]  # scipy.stats takes half a second to import

from stepscope.analysis.estimate import CONFIDENCE, mean_interval
from stepscope.arrays import Floats
from stepscope.experiments.observations._contract import FEWEST, Interval, Limits, Part, part, unjudged

NORMAL = float(special.ndtri((1 + CONFIDENCE) / 2))
_UNKNOWN = Interval(math.nan)


def mean_of(values: Sequence[float | None] | pl.Series) -> Interval:
    """Mean and Student's interval of values from independent runs; no interval below FEWEST."""
    present = _present(values)
    mean, low, high = mean_interval(present)
    return Interval(mean, low, high) if len(present) >= FEWEST else Interval(mean)


def ratio_of(values: Sequence[float | None] | pl.Series) -> Interval:
    """Geometric mean of ratios with the interval of the mean of their logarithms."""
    present = _present(values)
    return _raised(mean_of(np.log(present[present > 0]).tolist()))


def correlation_of(values: Sequence[float | None] | pl.Series) -> Interval:
    """Mean of correlations with its interval, by Fisher's z."""
    found = mean_of(np.arctanh(np.clip(_present(values), -0.999999, 0.999999)).tolist())
    return Interval(*(math.tanh(x) for x in (found.value, found.low, found.high)))


def difference_of(ours: Sequence[float | None] | pl.Series, others: Sequence[float | None] | pl.Series) -> Interval:
    """Mean of the first less mean of the second, with Welch's interval."""
    a, b = _present(ours), _present(others)
    if not len(a) or not len(b):
        return _UNKNOWN
    value = float(a.mean() - b.mean())
    if min(len(a), len(b)) < FEWEST:
        return Interval(value)
    errors = np.array([a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)])
    if errors.sum() == 0:
        return Interval(value, value, value)
    freedom = errors.sum() ** 2 / (errors**2 / np.array([len(a) - 1, len(b) - 1])).sum()
    half = float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2) * math.sqrt(errors.sum()))
    return Interval(value, value - half, value + half)


def quotient_of(ours: Sequence[float | None] | pl.Series, others: Sequence[float | None] | pl.Series) -> Interval:
    """Geometric mean of the first over that of the second, with Welch's interval of the logarithms."""
    logs = [np.log(part[part > 0]).tolist() for part in (_present(ours), _present(others))]
    return _raised(difference_of(logs[0], logs[1]))


def slope_within(groups: Sequence[Any], x: Floats, y: Floats) -> Interval:
    """Least-squares slope of y on x with an intercept for each group, and its Student interval."""
    place = np.unique(np.array(groups, dtype=str), return_inverse=True)[1]
    if len(place) == 0:
        return _UNKNOWN
    counts = np.bincount(place)
    u, v = (values - (np.bincount(place, values) / counts)[place] for values in (x, y))
    spread, freedom = float(u @ u), len(x) - len(counts) - 1
    if spread == 0:
        return _UNKNOWN
    slope = float(u @ v) / spread
    if freedom < 1:
        return Interval(slope)
    error = math.sqrt(float(((v - slope * u) ** 2).sum()) / freedom / spread)
    half = float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    return Interval(slope, slope - half, slope + half)


def share_of(hits: int, count: int) -> Interval:
    """A share of runs with Wilson's interval."""
    from stepscope.analysis.estimate import share_interval

    found = share_interval(hits, count)
    return Interval(*found) if count >= FEWEST else Interval(found[0])


def growth_by_model(runs: pl.DataFrame, column: str) -> pl.DataFrame:
    """Return the growth of a number from a model's smallest batch to its largest: workload, smallest, largest, log,
    error.

    `log` is the logarithm of the ratio. `error` is its standard error: from the repeats where both ends have two or
    more, otherwise from the interval within each run; null where neither is known.
    """
    rows = []
    known = runs.filter(pl.col(column).is_not_null() & (pl.col(column) > 0))
    for (name,), frame in known.group_by(["workload"], maintain_order=True):
        ends = [frame.filter(pl.col("batch") == batch) for batch in (frame["batch"].min(), frame["batch"].max())]
        if ends[0]["batch"][0] == ends[1]["batch"][0]:
            continue
        logs = [np.log(end[column].to_numpy()) for end in ends]
        errors = [_error(end, values, column) for end, values in zip(ends, logs, strict=True)]
        row = {"workload": name, "smallest": ends[0]["batch"][0], "largest": ends[1]["batch"][0]}
        row["log"] = float(logs[1].mean() - logs[0].mean())
        row["error"] = None if None in errors else math.hypot(*(error or 0.0 for error in errors))
        rows.append(row)
    schema = {"workload": pl.String, "smallest": pl.Int64, "largest": pl.Int64, "log": pl.Float64, "error": pl.Float64}
    return pl.DataFrame(rows, schema=schema)


def _error(end: pl.DataFrame, logs: Floats, column: str) -> float | None:
    """Standard error of the mean logarithm at one end; the larger of that between and within runs."""
    between = float(logs.std(ddof=1) / math.sqrt(len(logs))) if len(logs) > 1 else None
    within = None
    if f"{column}_low" in end.columns:
        bounds = end.select(f"{column}_low", f"{column}_high").drop_nulls()
        if len(bounds) == len(end) and bool((bounds[f"{column}_low"] > 0).all()):
            halves = np.log(bounds[f"{column}_high"].to_numpy() / bounds[f"{column}_low"].to_numpy()) / 2 / NORMAL
            within = float(np.sqrt((halves**2).sum()) / len(halves))
    known = [error for error in (between, within) if error is not None]
    return max(known, default=None)


def _present(values: Sequence[float | None] | pl.Series) -> Floats:
    plain = np.array([math.nan if value is None else float(value) for value in values], dtype=np.float64)
    return plain[np.isfinite(plain)]


def _raised(found: Interval) -> Interval:
    return Interval(*(math.exp(x) for x in (found.value, found.low, found.high)))


OF_THE_STEP = 0.1  # a period within this share of the step's length is the step's
MOST_RUNS, LEAST_EXPLAINED = 0.5, 0.25
PERIOD_TEST = "share of the runs whose autocorrelation has its first peak at one step, Wilson's 95 % CI"
FOLD_TEST = (
    "samples folded by step: variance of the even steps predicted by the mean of the odd ones; mean over the runs"
)


def periodic(rhythm: pl.DataFrame, of: str, what: str, name: str) -> list[Part]:
    """Two claims on one channel: the samples alone show the step as their period; one step predicts another."""
    found, foretold = f"the {name} has the step as its period", f"one step predicts the {name} of another"
    rows = rhythm.filter(of=of, what=what)
    known = rows.drop_nulls("explained")
    if known.is_empty():
        why = _too_short(rows, name)
        return [unjudged(found, PERIOD_TEST, why), unjudged(foretold, FOLD_TEST, why)]
    hits = known.filter((pl.col("period_steps") - 1).abs() <= OF_THE_STEP)
    flat = f", standard deviation {float(np.median(known['deviation'].to_numpy())):.2g}"
    of_runs = f"{len(known)} of {len(rows)} runs, whose steps are long enough for the readings{flat}"
    share, variance = share_of(len(hits), len(known)), mean_of(known["explained"])
    return [
        part(found, PERIOD_TEST, "share of the runs", share, Limits(least=MOST_RUNS), of_runs),
        part(foretold, FOLD_TEST, "share of the variance predicted", variance, Limits(least=LEAST_EXPLAINED), of_runs),
    ]


def _too_short(rows: pl.DataFrame, name: str) -> str:
    if rows.is_empty():
        return f"the {name} was not read"
    longest = rows.sort("readings_per_step", descending=True).row(0, named=True)
    step, readings = longest["step_ms"], longest["readings_per_step"]
    return f"no run has steps long enough to see into: at best {readings:.1f} readings in a step of {step:.3g} ms"
