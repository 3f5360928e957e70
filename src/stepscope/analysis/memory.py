"""Memory of the trainer: several numbers that are not the same, each under its own name."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stepscope.analysis.intervals import known, median_interval
from stepscope.analysis.measured import Measured
from stepscope.analysis.steady import span_ns
from stepscope.runfolder import RunReader

_RESIDENT = ("rss", "pss")


def peak_memory(run: RunReader) -> list[Measured]:
    """Peak memory consumption, B (III-A): the most that was used at any time of the run, warm-up included.

    `peak_rss` is the kernel's own high-water mark; of the sampled quantities the true peak is at least the largest.
    """
    return [
        _peak(quantity, scope, frame["value"])
        for quantity in ("peak_rss", *_RESIDENT)
        for scope, frame in _by_scope(run, quantity)
    ]


def resident_memory(run: RunReader) -> list[Measured]:
    """Memory in the steady part of the run, B: median of the samples, resident (rss) and proportional (pss)."""
    span = span_ns(run)
    rows = []
    for quantity in _RESIDENT if span is not None else ():
        assert span is not None
        for scope, frame in _by_scope(run, quantity):
            values = frame.filter(pl.col("t0_ns").is_between(*span))["value"]
            value, low, high = (known(float(x)) for x in median_interval(values.to_numpy()))
            if value is not None:
                rows.append(Measured("resident_memory", scope, value, "B", low, high, len(values), quantity))
    return rows


def _peak(quantity: str, scope: str, values: pl.Series) -> Measured:
    most = float(values.cast(pl.Float64).to_numpy().max())
    if quantity == "peak_rss":
        return Measured("peak_memory", scope, most, "B", most, most, len(values), quantity, "kernel's high-water mark")
    return Measured("peak_memory", scope, most, "B", most, None, len(values), quantity, "largest sample: at least this")


def _by_scope(run: RunReader, quantity: str) -> Iterator[tuple[str, pl.DataFrame]]:
    for (scope,), frame in run.samples(quantity).drop_nulls("value").group_by(["scope"], maintain_order=True):
        yield str(scope), frame
