"""Live bytes of a real step at its peak, and what a dry run says of the same step."""

from __future__ import annotations

import gc

import torch
from benchmarks.memory_truth import peak_of_allocations
from torch import Tensor, nn

from stepscope.footprint.jobs import job_of
from stepscope.record.dry.dry_run import dry_run
from stepscope.record.dry.platform import this_platform
from stepscope.record.dry.workspaces import Workspaces


def predicted_and_measured(model: nn.Module, x: Tensor) -> tuple[int, int]:
    """Return the peak of a step of SGD on this batch, B: predicted, and measured with batch and parameters."""
    optimizer = torch.optim.SGD(model.parameters())
    job = job_of(model, optimizer, lambda n: x[:n], lambda model, batch: model(batch).square().mean())
    predicted = dry_run(job, len(x), Workspaces(this_platform())).peak_bytes

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step()
    optimizer.zero_grad()  # torch would report the end of what an earlier profile in this process had at its place
    gc.collect()  # what ends within the profile must have begun in it
    return predicted, peak_of_allocations(step) + x.nbytes + sum(p.nbytes for p in model.parameters())
