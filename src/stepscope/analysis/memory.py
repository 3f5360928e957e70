"""Memory of the trainer: several numbers that are not the same, each under its own name."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stepscope.analysis.intervals import known, median_interval
from stepscope.analysis.measured import Measured
from stepscope.analysis.steady import span_ns
from stepscope.runfolder import RunReader

_PEAKS = ("peak_rss", "rss")
_RESIDENT = ("rss", "pss")


def peak_memory(run: RunReader) -> list[Measured]:
    """Peak memory consumption, B (III-A): the most that was resident at any time of the run, warm-up included.

    The kernel's high-water mark (peak_rss) is read now and then and samples (rss) are taken often: the peak is at
    least the larger of the two. Of the proportional size (pss) the peak is a number of its own.
    """
    resident = pl.concat([run.samples(name).with_columns(quantity=pl.lit(name)) for name in _PEAKS])
    proportional = run.samples("pss").with_columns(quantity=pl.lit("pss"))
    rows = []
    for frame in (resident, proportional):
        for (scope,), part in frame.drop_nulls("value").group_by(["scope"], maintain_order=True):
            most = part.row(int(part["value"].to_numpy().argmax()), named=True)
            value = float(most["value"])
            note = "at least: the largest reading"
            rows.append(Measured("peak_memory", str(scope), value, "B", value, None, len(part), most["quantity"], note))
    return rows


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


def _by_scope(run: RunReader, quantity: str) -> Iterator[tuple[str, pl.DataFrame]]:
    for (scope,), frame in run.samples(quantity).drop_nulls("value").group_by(["scope"], maintain_order=True):
        yield str(scope), frame
