"""A workload of the suite as a job for a dry run: the same step, without its data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.errors import UnknownName

if TYPE_CHECKING:
    from torch import nn

    from stepscope.record.job import Job, Optimizers, Step
    from stepscope.workloads.contract import Workload


def workload_job(workload: Workload, optimizer: str | None = None) -> Job:
    """The training that `workload.prepare(optimizer=...)` makes ready; its batches have the shapes of its examples."""
    from stepscope.record.job import Job

    rule = optimizer or workload.default_optimizer
    if rule not in workload.hyperparameters:
        raise UnknownName("optimizer", rule, workload.hyperparameters)

    def build() -> tuple[nn.Module, Optimizers]:
        model = workload.build().train()
        values = workload.hyperparameters[rule]
        return model, tuple(workload.makers[rule](group, **values) for group in workload.groups(model))

    own_step = workload.step is not None
    return Job(
        workload.name,
        build,
        workload.example,
        _step_of(workload),
        workload.default_batch,
        None if own_step else workload.loss,
    )


def _step_of(workload: Workload) -> Step:
    """The step of the suite's own loop, with a training that has no data."""
    import torch

    from stepscope.workloads.contract import Training
    from stepscope.workloads.data.source import DataFacts, Splits

    no_data = Splits(None, None, DataFacts("none", "synthetic", "", "", "", 0, 0))

    def step(model: nn.Module, optimizers: Optimizers, batch: Any) -> None:
        Training(workload, model, optimizers, len(batch[0]), torch.device("cpu"), 0, no_data).step(batch)

    return step
