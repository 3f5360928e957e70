"""The step time that a comparison states, per run: the sum that the parts of the recorded steps are set against."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analysis.intervals import Floats
from stepscope.analysis.run import Run
from stepscope.analysis.steady import FEW, timed_steps

TIMED = "(timed less recorded steps)"
_BLOCKS, _LEAST_IN_BLOCK = 10, 4


def timed_length(run: Run, per_sample: bool, draws: int) -> tuple[float, Floats | None]:
    """Median time of a step, ns (of a sample with `per_sample`), of the steps that the step time is taken from.

    With draws of that median (draws,); None where these steps are too few for an interval.
    """
    steps, _ = timed_steps(run)
    per = pl.col("length_ns") / pl.max_horizontal("samples", 1) if per_sample else pl.col("length_ns")
    lengths = steps.select(per.cast(pl.Float64)).to_series().drop_nulls().to_numpy()
    median = float(np.median(lengths))
    if len(lengths) < FEW:
        return median, None
    return median, np.median(lengths[_picks(len(lengths), draws)], axis=1)


def geometric_mean(values: list[float]) -> float:
    """Of repeats, as the step time of a side is pooled."""
    return float(np.exp(np.mean(np.log(values))))


def _picks(count: int, draws: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Positions of resampled steps (draws, n): consecutive stretches together, since a drifting machine's are alike."""
    random = np.random.default_rng(2)
    if count < _BLOCKS * _LEAST_IN_BLOCK:
        return random.integers(0, count, (draws, count))
    length = count // _BLOCKS
    starts = random.integers(0, count - length + 1, (draws, _BLOCKS))
    return (starts[:, :, None] + np.arange(length)).reshape(draws, -1)
