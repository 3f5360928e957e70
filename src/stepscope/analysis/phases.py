"""Where the step goes by phase."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analysis.own_time import CPU, RESIDUAL, medians, per_step, residual_ns
from stepscope.analysis.steady import recorded_steps
from stepscope.runfolder import PHASES

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

SCHEMA = {
    "phase": pl.String,
    "ns": pl.Float64,
    "low_ns": pl.Float64,
    "high_ns": pl.Float64,
    "mean_ns": pl.Float64,
    "share": pl.Float64,
    "device_ns": pl.Float64,
}


def phases(run: Run) -> pl.DataFrame:
    """CPU time of each phase, ns a step (median of the recorded steady steps), and the residual.

    `share` is of the summed step time, as `mean_ns` is, and adds up to 1; `device_ns` is kernel time, null without an
    accelerator.
    """
    steps, table = recorded_steps(run), run.own_times
    if steps.is_empty() or table.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    on_cpu = per_step(table.filter(pl.col("device") == CPU), steps["step"], ("phase",), "self_ns")
    kernels = per_step(table.filter(pl.col("device") != CPU), steps["step"], ("phase",), "self_ns")
    place, device_place = on_cpu.column_of(), kernels.column_of()
    columns = [on_cpu.values[:, place[(phase,)]] for phase in PHASES if (phase,) in place]
    values = np.column_stack([*columns, residual_ns(table, steps)])
    names = [phase for phase in PHASES if (phase,) in place]
    device = [
        float(np.median(kernels.values[:, device_place[(name,)]])) if (name,) in device_place else None
        for name in names
    ]
    return pl.DataFrame(
        {
            "phase": [*names, RESIDUAL],
            **medians(values, "ns", "low_ns", "high_ns"),
            "mean_ns": values.mean(axis=0),
            "share": values.sum(axis=0) / float(steps["length_ns"].sum()),
            "device_ns": [*device, None],
        },
        schema=SCHEMA,
        nan_to_null=True,
    )
