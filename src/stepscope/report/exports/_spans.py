"""What a viewer shows beside the ops: steps, phases and threads, and the arrows from forward to backward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.report.exports._excerpt import Excerpt
from stepscope.report.exports._lanes import Ints, Lane, lanes
from stepscope.runfolder import MODULE_CALL

_CPU = "cpu"


@dataclass(frozen=True)
class Thread:
    """The ops of one thread, or one stream of an accelerator, in one lane; `rows` count those of the excerpt."""

    device: str
    thread: int
    lane: int
    rows: Ints
    edges: Ints  # as in a Lane, but of rows of the excerpt

    @property
    def name(self) -> str:
        """What the viewer calls it."""
        place = f"thread {self.thread}" if self.device == _CPU else f"{self.device} stream {self.thread}"
        return place if self.lane == 0 else f"{place}, overlapping ({self.lane})"


def threads(ops: pl.DataFrame) -> list[Thread]:
    """Every op in exactly one thread, in lanes that nest; the trainer's threads first, then streams."""
    if ops.is_empty():
        return []
    places = ops.select("t0_ns", "t1_ns", "thread", device=pl.col("device").cast(pl.String).fill_null(_CPU))
    found: list[Thread] = []
    for (device, thread), rows in places.with_row_index("at").group_by(["device", "thread"], maintain_order=True):
        at = rows["at"].to_numpy().astype(np.int64)
        placed = lanes(rows["t0_ns"].to_numpy(), rows["t1_ns"].to_numpy())
        found.extend(_thread(str(device), int(str(thread or 0)), at, lane) for lane in placed)
    return sorted(found, key=lambda thread: (thread.device != _CPU, thread.device, thread.thread, thread.lane))


def _thread(device: str, thread: int, at: Ints, lane: Lane) -> Thread:
    edges = np.where(lane.edges >= 0, at[lane.edges], ~at[~lane.edges])
    return Thread(device, thread, lane.number, edges[edges >= 0], edges)


def steps(excerpt: Excerpt) -> pl.DataFrame:
    """Every chosen step as a slice: t0_ns, t1_ns, name, and as the run has them step, samples, loss, recorded."""
    name = pl.format("step {}", "step").alias("name")
    return excerpt.steps.select("t0_ns", "t1_ns", name, "step", "samples", "loss", "recorded")


def phases(ops: pl.DataFrame) -> pl.DataFrame:
    """Each stretch of a step in which the outermost ops are of one phase: t0_ns, t1_ns, name."""
    top = ops.filter(pl.col("parent").is_null() & (pl.col("device").cast(pl.String) == _CPU))
    top = top.with_columns(pl.col("phase").cast(pl.String)).sort("step", "t0_ns", maintain_order=True)
    turns = (pl.struct("step", "phase") != pl.struct("step", "phase").shift(1)).fill_null(True).cum_sum()
    stretches = top.group_by(turns.alias("turn"), maintain_order=True)
    return stretches.agg(pl.col("t0_ns").min(), pl.col("t1_ns").max(), name=pl.col("phase").first()).drop("turn")


def flows(ops: pl.DataFrame) -> pl.DataFrame:
    """Pairs of rows of the excerpt (forward, backward), one a module and step: its call and where its backward begins.

    Of a module that is called several times in a step it is the last call: autograd goes back through that one first.
    """
    placed = ops.select("step", "module", "t0_ns", phase=pl.col("phase").cast(pl.String), name=pl.col("name").cast(str))
    placed = placed.with_row_index("at").filter(pl.col("module").is_not_null())
    called = placed.filter((pl.col("phase") == "forward") & pl.col("name").str.starts_with(MODULE_CALL))
    forward = called.group_by("step", "module").agg(forward=pl.col("at").sort_by("t0_ns").last())
    back = placed.filter(pl.col("phase") == "backward")
    backward = back.group_by("step", "module").agg(backward=pl.col("at").sort_by("t0_ns").first())
    pairs = forward.join(backward, on=["step", "module"]).select("forward", "backward").cast(pl.Int64)
    return pairs.sort("forward")
