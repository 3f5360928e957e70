"""One step, op by op: the recorded step that is nearest to the median."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.analysis.steady import recorded_steps
from stepscope.runfolder import OPS

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

_TOP = -1


def anatomy(run: Run) -> pl.DataFrame:
    """The op instances of the recorded steady step nearest to the median step time, columns as `runfolder.OPS`.

    And: row (what `parent` counts), depth in the tree of calls, start_ns and end_ns from the start of the step.
    """
    steps = recorded_steps(run)
    if steps.is_empty():
        return _with_place(pl.DataFrame(schema=OPS), 0)
    distance = (pl.col("length_ns") - steps["length_ns"].median()).abs()
    chosen = steps.sort(distance, "step").row(0, named=True)
    ops = run.scan_ops().filter(pl.col("step") == chosen["step"]).collect()
    return _with_place(ops, int(chosen["t0_ns"]))


def _with_place(ops: pl.DataFrame, t0_ns: int) -> pl.DataFrame:
    depth = pl.Series("depth", _depths(ops["parent"].fill_null(_TOP).to_numpy()), dtype=pl.Int64)
    return ops.with_row_index("row").with_columns(
        depth, start_ns=pl.col("t0_ns") - t0_ns, end_ns=pl.col("t1_ns") - t0_ns
    )


def _depths(parent: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How many callers each row has: all rows go up one level at a time."""
    depth, above = np.zeros(len(parent), dtype=np.int64), parent.astype(np.int64)
    for _ in range(len(parent)):
        inside = above != _TOP
        if not inside.any():
            break
        depth += inside
        above = np.where(inside, parent[np.where(inside, above, 0)], _TOP)
    return depth
