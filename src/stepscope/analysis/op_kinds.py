"""Where the step goes by kind of op."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analysis.intervals import Floats
from stepscope.analysis.own_time import CPU, RESIDUAL, PerStep, medians, per_step, residual_ns
from stepscope.analysis.steady import recorded_steps
from stepscope.runfolder import PHASES

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

SCHEMA = {
    "name": pl.String,
    "device": pl.String,
    "count": pl.Float64,
    **{f"{phase}_ns": pl.Float64 for phase in PHASES},
    "total_ns": pl.Float64,
    "low_ns": pl.Float64,
    "high_ns": pl.Float64,
    "mean_ns": pl.Float64,
    "share": pl.Float64,
    "flops": pl.Float64,
    "flops_per_s": pl.Float64,
    "bytes": pl.Float64,
}


def op_kinds(run: Run) -> pl.DataFrame:
    """Own time of each kind of op, ns a step by phase and in total, longest first; the residual is the last row.

    Medians of the recorded steady steps. `share` is of the summed step time, as `mean_ns` is: on the CPU, with the
    residual, it adds up to 1; kernels of an accelerator have rows of their own. `flops` and `bytes` are per step, null
    where unknown.
    """
    steps, table = recorded_steps(run), run.own_times
    if steps.is_empty() or table.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    number, keys = steps["step"], ("name", "device")
    total = per_step(table, number, keys, "self_ns")
    step_time = float(steps["length_ns"].sum())
    flops, spent = _stated(table, number, total, "flops"), total.values.sum(axis=0)
    kinds = total.keys.with_columns(
        pl.Series("count", np.median(per_step(table, number, keys, "count").values, axis=0)),
        *_by_phase(table, number, total),
        **{key: pl.Series(column) for key, column in medians(total.values, "total_ns", "low_ns", "high_ns").items()},
        mean_ns=pl.Series(spent / len(steps)),
        share=pl.Series(spent / step_time),
        flops=pl.Series(flops),
        flops_per_s=pl.Series(flops * len(steps) / np.maximum(spent, 1) * 1e9),
        bytes=pl.Series(_stated(table, number, total, "bytes")),
    )
    rest = residual_ns(table, steps)
    row = {key: column.tolist() for key, column in medians(rest[:, None], "total_ns", "low_ns", "high_ns").items()}
    of_all = {"mean_ns": [float(rest.mean())], "share": [rest.sum() / step_time]}
    last = pl.DataFrame({"name": [RESIDUAL], "device": [CPU], **row, **of_all})
    ordered = kinds.sort("share", "name", descending=[True, False])
    whole = pl.concat([ordered, last], how="diagonal_relaxed")
    return whole.select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items()).fill_nan(None)


def _by_phase(table: pl.DataFrame, steps: pl.Series, total: PerStep) -> list[pl.Series]:
    """Median ns a step of each kind in each phase, in the order of `total`."""
    split = per_step(table, steps, (*total.keys.columns, "phase"), "self_ns")
    middle = dict(zip(split.keys.iter_rows(), np.median(split.values, axis=0).tolist(), strict=True))
    kinds = list(total.keys.iter_rows())
    return [pl.Series(f"{phase}_ns", [middle.get((*kind, phase), 0.0) for kind in kinds]) for phase in PHASES]


def _stated(table: pl.DataFrame, steps: pl.Series, total: PerStep, value: str) -> Floats:
    """Mean per step of a quantity that only some ops state; NaN where none does."""
    known = per_step(table.filter(pl.col(value).is_not_null()), steps, tuple(total.keys.columns), value)
    place, means = known.column_of(), known.values.mean(axis=0)
    return np.array([means[place[key]] if key in place else np.nan for key in total.keys.iter_rows()])
