"""Writes the parts of a distributed training row by row, with times that a test states in microseconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.runfolder import RunWriter, part_of
from stepscope.runfolder.pack import pack

START_NS = 5_000_000_000
TRAINING, GLOO, SECOND_GLOO = 1, 2, 3
CLOCK = {"monotonic_ns": 1_000, "unix_ns": 1_700_000_000_000_001_000, "boottime_ns": 1_000}


@dataclass(frozen=True)
class Row:
    """One row of a step: begin and end, us from the step's start; `parent` is its place in the list of rows."""

    name: str
    phase: str
    t0: float
    t1: float
    thread: int = TRAINING
    parent: int | None = None
    module: str | None = None
    bytes: int | None = None
    device: str = "cpu"


def mm(t0: float, t1: float, phase: str = "backward") -> Row:
    """An operator of the training."""
    return Row("aten::mm", phase, t0, t1, module="fc")


def call(t0: float, t1: float, name: str = "allreduce_", phase: str = "communication") -> Row:
    """The start of a collective on the training thread."""
    return Row(f"c10d::{name}", phase, t0, t1)


def reduce(t0: float, t1: float, thread: int = GLOO, phase: str = "communication", name: str = "all_reduce") -> Row:
    """The collective on a thread of the backend."""
    return Row(f"gloo:{name}", phase, t0, t1, thread, bytes=4_000)


def write_part(
    out: Path,
    step: Callable[[int], Sequence[Row]] | Sequence[Row],
    length_us: float,
    *,
    steps: int = 12,
    rank: int | None = 0,
    world: int = 2,
    start_us: float = 0.0,
    gap_us: Callable[[int], float] = lambda step: 0.0,
    status: str = "ok",
    reason: str | None = None,
    recorded: Callable[[int], bool] = lambda step: True,
    header: dict[str, Any] | None = None,
) -> Path:
    """Write a run of one process; `step` gives the rows of a step, `gap_us` the pause before it. Returns its folder."""
    writer = RunWriter.create(out, "part")
    member = {} if rank is None else {"rank": rank, "world_size": world, "local_rank": rank}
    facts = {"pid": 2**22 + 1, "clock": CLOCK, "warmup_steps": 3, "workload": {"name": "net"}}
    writer.update(**{**facts, **member, **(header or {})})
    now, frames = START_NS + round(start_us * 1000), []
    for number in range(steps):
        now += round(gap_us(number) * 1000)
        rows = step(number) if callable(step) else step
        writer.append_step(number, now, now + round(length_us * 1000), 8, None, recorded(number))
        if rows and recorded(number):
            frames.append(_frame(rows, number, now))
        now += round(length_us * 1000)
    if frames:
        writer.write_ops(part_of(pl.concat(frames), "ops"))
        writer.write_model([])
    writer.flush_steps()
    if status != "running":
        writer.close(status, reason)
        pack(writer.path)
    return writer.path


def _frame(rows: Sequence[Row], step: int, start_ns: int) -> pl.DataFrame:
    spans = [(round(row.t0 * 1000), round(row.t1 * 1000)) for row in rows]
    own = [end - begin for begin, end in spans]
    for row, (begin, end) in zip(rows, spans, strict=True):
        if row.parent is not None:
            own[row.parent] -= end - begin
    schema = {"parent": pl.Int32, "name": pl.String, "module": pl.String, "bytes": pl.Int64}
    return pl.DataFrame(
        {
            "step": [step] * len(rows),
            "t0_ns": [start_ns + begin for begin, _ in spans],
            "t1_ns": [start_ns + end for _, end in spans],
            "self_ns": own,
            "flops": pl.Series([None] * len(rows), dtype=pl.Int64),
            **{name: [getattr(row, name) for row in rows] for name in ("phase", "thread", "device")},
            **{name: pl.Series([getattr(row, name) for row in rows], dtype=kind) for name, kind in schema.items()},
        }
    )


def join(first: Path, *others: Path) -> Path:
    """Move parts into the folder of the first, as one command writes them."""
    for number, other in enumerate(others, 1):
        (first / "ranks").mkdir(exist_ok=True)
        other.rename(first / "ranks" / str(number))
    return first
