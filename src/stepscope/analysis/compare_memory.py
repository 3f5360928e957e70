"""Which parts explain a difference between two peaks of live memory: categories, modules, types or ops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from stepscope.analysis.compare_parts import Explanation, Parts, explained, types_of
from stepscope.analysis.memory_events import NOT_ATTRIBUTED, Peak
from stepscope.analysis.own_time import OUTSIDE
from stepscope.analysis.run import Run

BY = ("module", "type", "kind", "category")
_REST = "(not attributed)"
_NO_OP = "(before the recorded steps)"


def memory_explained(first: Sequence[Run], other: Sequence[Run], by: str) -> Explanation:
    """The difference between the live peaks, B: what was alive at each instant. Counted, so without an interval."""
    sides = [_side(runs, by) for runs in (first, other)]
    if sides[0] is None or sides[1] is None:
        which = "the first" if sides[0] is None else "the other"
        return Explanation(
            "memory", by, "B", reason=f"no allocation was recorded in {which}: run it with --record-memory auto"
        )
    return explained("memory", by, "B", sides[0], sides[1], "bytes alive at each side's own peak: counted, not sampled")


def _side(runs: Sequence[Run], by: str) -> Parts | None:
    """Mean over repeats."""
    each = [_held(run, peak, by) for run in runs if (peak := run.peak()) is not None]
    if len(each) < len(runs):
        return None
    whole = pl.concat(each).group_by("name", maintain_order=True).agg(pl.col("bytes").sum() / len(each))
    return Parts(tuple(whole["name"]), np.asarray(whole["bytes"].to_numpy(), dtype=np.float64), None)


def _held(run: Run, peak: Peak, by: str) -> pl.DataFrame:
    """Bytes alive at the peak by name."""
    module = pl.col("module").fill_null(OUTSIDE)
    of = {
        "module": module,
        "type": module.replace_strict(types_of(run), default=OUTSIDE, return_dtype=pl.String),
        "kind": pl.col("op").fill_null(_NO_OP),
        "category": pl.col("category"),
    }[by]
    name = pl.when(NOT_ATTRIBUTED).then(pl.lit(_REST)).otherwise(of).alias("name")
    return peak.tensors.group_by(name, maintain_order=True).agg(pl.col("bytes").sum().cast(pl.Float64))
