"""Which steps count: everything after the warm-up, and of those the ones whose ops were recorded."""

from __future__ import annotations

import polars as pl

from stepscope.runfolder import RunReader

FEW = 6  # below this many, a median has no interval of 95 %


def steady_steps(run: RunReader) -> pl.DataFrame:
    """The steps after the warm-up, columns as `runfolder.STEPS` and `length_ns`."""
    lasted = run.steps.with_columns(length_ns=pl.col("t1_ns") - pl.col("t0_ns"))
    return lasted.slice(run.warmup_steps).filter(pl.col("length_ns") > 0)


def recorded_steps(run: RunReader) -> pl.DataFrame:
    """The steady steps whose ops were recorded."""
    return steady_steps(run).filter("recorded")


def timed_steps(run: RunReader) -> tuple[pl.DataFrame, str]:
    """The steps that the step time is taken from, and which they are: unrecorded ones where there are enough."""
    steps = steady_steps(run)
    bare = steps.filter(~pl.col("recorded"))
    return (bare, "unrecorded steps") if len(bare) >= FEW else (steps, "all steps")


def span_ns(run: RunReader) -> tuple[int, int] | None:
    """From the first steady step's start to the last one's end, ns; None without steady steps."""
    steps = steady_steps(run)
    return None if steps.is_empty() else (int(steps["t0_ns"][0]), int(steps["t1_ns"][-1]))
