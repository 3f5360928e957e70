"""Memory of a training step by what holds it, for several batch sizes, counted on fake tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.analysis.memory_events import memory_over_time

if TYPE_CHECKING:
    from stepscope.record.job import Job

HOLDERS = {
    "parameters": ("parameter",),
    "gradients": ("gradient",),
    "input data": ("input",),
    "intermediate data": ("saved", "temporary", "workspace", "other"),
    "optimizer and buffers": ("optimizer", "buffer"),
}


def memory_by_batch(job: Job, batches: Sequence[int]) -> Iterator[dict[str, Any]]:
    """A row a batch and holder: workload, batch, part, bytes; the most that each held at any time of the second step.

    Each has its own time: gradients are whole after backward, when most intermediate data are gone. Raises
    DryRunStopped where fake tensors cannot run the step.
    """
    from stepscope.record.dry_run import dry_run

    for batch in batches:
        held = memory_over_time(dry_run(job, batch).events())
        for part, categories in HOLDERS.items():
            most = held.select(pl.sum_horizontal(categories)).to_series().to_numpy().max(initial=0)
            yield {"workload": job.name, "batch": batch, "part": part, "bytes": int(most)}
