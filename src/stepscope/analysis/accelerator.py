"""How busy an accelerator is: the time in which at least one kernel runs on it."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analysis.intervals import Floats
from stepscope.analysis.measured import Measured
from stepscope.analysis.own_time import CPU
from stepscope.analysis.steady import FEW, recorded_steps
from stepscope.runfolder import RunReader

_RESAMPLES = 1000


def accelerator_utilisation(run: RunReader) -> list[Measured]:
    """Utilisation of each accelerator (Eq. 3): active time / total time, active while any kernel runs."""
    steps = recorded_steps(run).select("step", "length_ns")
    kernels = kernel_time(run, steps["step"])
    rows = []
    for (device,), frame in kernels.group_by(["device"], maintain_order=True):
        both = steps.join(frame, on="step", how="left").with_columns(pl.col("active_ns").fill_null(0))
        active, total = (both[name].to_numpy().astype(np.float64) for name in ("active_ns", "length_ns"))
        share = min(float(active.sum() / total.sum()), 1.0)
        low, high = _ratio_interval(active, total)
        note = "union of kernels in recorded steps"
        rows.append(Measured("accelerator_utilisation", str(device), share, "1", low, high, len(steps), "ops", note))
    return rows


def kernel_time(run: RunReader, steps: pl.Series) -> pl.DataFrame:
    """Union of the kernel intervals of each device and step, ns: device, step, active_ns."""
    ops = run.scan_ops().select("step", "device", "t0_ns", "t1_ns").filter(pl.col("device") != CPU)
    ordered = (
        ops.with_columns(pl.col("device").cast(pl.String), pl.col("step").cast(pl.Int64))
        .join(pl.LazyFrame({"step": steps}), on="step", how="semi")
        .sort("device", "t0_ns")
    )
    covered_until = pl.col("t1_ns").cum_max().shift(1).over("device").fill_null(0)
    new = (pl.col("t1_ns") - pl.max_horizontal("t0_ns", covered_until)).clip(lower_bound=0)
    return (
        ordered.with_columns(active_ns=new)
        .group_by("device", "step")
        .agg(pl.col("active_ns").sum())
        .collect()
        .sort("device", "step")
    )


def _ratio_interval(active: Floats, total: Floats) -> tuple[float | None, float | None]:
    """Bootstrap over the steps, which are alike; null where there are too few."""
    if len(active) < FEW:
        return None, None
    picks = np.random.default_rng(0).integers(0, len(active), (_RESAMPLES, len(active)))
    shares = active[picks].sum(axis=1) / total[picks].sum(axis=1)
    low, high = np.quantile(shares, (0.025, 0.975))
    return min(float(low), 1.0), min(float(high), 1.0)
