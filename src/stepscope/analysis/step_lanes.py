"""One step as a picture shows it: a lane for each thread and stream, and in it who called whom, one row a level."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.analysis.own_time import CPU

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

SCHEMA = {
    "lane": pl.Int64,
    "label": pl.String,  # "thread 1", "cuda:0 stream 7"
    "level": pl.Int64,  # row within the lane, 0 the outermost
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "name": pl.String,
    "module": pl.String,
    "phase": pl.String,
    "flops": pl.Int64,
    "bytes": pl.Int64,
}


def step_lanes(run: Run) -> pl.DataFrame:
    """Ops of the step nearest to the median (`Run.anatomy`), times from its start, ns; threads first, then streams.

    What overlaps in a lane without nesting takes the next free row.
    """
    ops = run.anatomy().with_columns(pl.col("name", "module", "phase", "device").cast(pl.String))
    frames = []
    for (device, thread), rows in ops.group_by(["device", "thread"], maintain_order=True):
        label = f"thread {thread}" if device == CPU else f"{device} stream {thread}"
        ordered = rows.sort("start_ns", pl.col("end_ns").neg(), "row")
        level = _levels(ordered["start_ns"].to_numpy(), ordered["end_ns"].to_numpy())
        frames.append((device != CPU, label, ordered.with_columns(pl.lit(label).alias("label"), level)))
    frames.sort(key=lambda frame: (frame[0], -int((frame[2]["end_ns"] - frame[2]["start_ns"]).sum())))
    placed = [frame.with_columns(lane=pl.lit(place, dtype=pl.Int64)) for place, (_, _, frame) in enumerate(frames)]
    return pl.concat([pl.DataFrame(schema=SCHEMA), *(frame.select(list(SCHEMA)) for frame in placed)])


def _levels(start: np.ndarray[Any, Any], end: np.ndarray[Any, Any]) -> pl.Series:
    """Row of each op, (n,), which are sorted by start and, from the same start, longest first."""
    levels: list[int] = []
    until: list[int] = []  # when each row is free again
    for begin, finish in zip(start.tolist(), end.tolist(), strict=True):
        while until and until[-1] <= begin:
            until.pop()
        level = len(until)
        until.append(max(finish, begin))
        for above in range(level):  # one that outlives its caller holds all rows above until it ends
            until[above] = max(until[above], until[level])
        levels.append(level)
    return pl.Series("level", levels, dtype=pl.Int64)
