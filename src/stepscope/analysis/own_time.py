"""The one pass over all op instances: own times per step, summed by phase, module and kind.

Everything that is said about ops comes from this table, so its sums and the residual add up to the step times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.intervals import Floats, median_interval
from stepscope.analysis.steady import recorded_steps
from stepscope.runfolder import MODULE_CALL, OPS, RunReader

OUTSIDE = "(outside any module)"
RESIDUAL = "(between operations)"
CPU = "cpu"
TINY_NS = 10_000  # an own time below this is the cost of asking for an op, not of the op
_KEYS = ("phase", "module", "name", "device")


def own_times(run: RunReader) -> pl.DataFrame:
    """Own times of the recorded steady steps.

    Columns: step, phase, module (OUTSIDE for null), name, device; count, calls (of modules), self_ns, tiny_ns
    (part of self_ns below TINY_NS an instance), flops and bytes (null where no instance states them).
    """
    steps = recorded_steps(run)["step"]
    wanted = ("step", "self_ns", *_KEYS, "flops", "bytes")
    ops = run.scan_ops().select(wanted).join(pl.LazyFrame({"step": steps.cast(OPS["step"])}), on="step", how="semi")
    tiny = pl.when(pl.col("self_ns") < TINY_NS).then("self_ns").otherwise(0)
    grouped = ops.group_by("step", *_KEYS).agg(
        pl.len().cast(pl.Int64).alias("count"),
        pl.col("self_ns").sum(),
        tiny.sum().alias("tiny_ns"),
        *(_sum_or_null(name) for name in ("flops", "bytes")),
    )
    texts = [pl.col(name).cast(pl.String) for name in _KEYS]
    return (
        grouped.with_columns(pl.col("step").cast(pl.Int64), *texts)
        .with_columns(
            pl.col("module").fill_null(OUTSIDE),
            calls=pl.when(pl.col("name").str.starts_with(MODULE_CALL)).then("count").otherwise(0),
        )
        .collect()
        .sort("step", *_KEYS)
    )


def _sum_or_null(name: str) -> pl.Expr:
    """Polars sums nulls to 0; nothing stated stays null."""
    return pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum()).alias(name)


@dataclass(frozen=True)
class PerStep:
    """A quantity of each key in each recorded step: `keys` has a row a column of `values` (steps, keys)."""

    keys: pl.DataFrame
    values: Floats

    def column_of(self) -> dict[tuple[str, ...], int]:
        """Column of each key."""
        return {row: index for index, row in enumerate(self.keys.iter_rows())}


def per_step(table: pl.DataFrame, steps: pl.Series, keys: tuple[str, ...], value: str) -> PerStep:
    """Sum a column of `own_times` by step and keys; 0 in the steps that have none."""
    summed = table.group_by("step", *keys).agg(pl.col(value).sum())
    names = summed.select(keys).unique().sort(keys)
    rows = pl.DataFrame({"step": steps, "row": np.arange(len(steps), dtype=np.int64)})
    placed = summed.join(rows, on="step").join(names.with_row_index("column"), on=list(keys))
    values = np.zeros((len(steps), len(names)))
    values[placed["row"].to_numpy(), placed["column"].to_numpy()] = placed[value].to_numpy()
    return PerStep(names, values)


def residual_ns(table: pl.DataFrame, steps: pl.DataFrame) -> Floats:
    """Time of each recorded step in which no op ran on the CPU, ns: below 0 where threads overlap."""
    on_cpu = per_step(table.filter(pl.col("device") == CPU), steps["step"], ("device",), "self_ns")
    lengths: Floats = steps["length_ns"].to_numpy().astype(np.float64)
    rest: Floats = lengths - on_cpu.values.sum(axis=1)
    return rest


def medians(values: Floats, name: str, low: str, high: str) -> dict[str, Floats]:
    """Median and interval of each column, as columns of a frame."""
    return dict(zip((name, low, high), median_interval(values), strict=True))
