"""What a part of a step costs: FLOPs on tensors without numbers, and the peak of memory on a dry run.

Both are counted for steps spread evenly over the training, since what is trained may change from step to step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import torch
from torch import nn

from stepscope.analysis.memory_events import memory_over_time
from stepscope.record.dry_run import DryRunStopped, dry_run
from stepscope.record.flops import count_flops
from stepscope.record.job import Job, Optimizers
from stepscope.studies.partial.choice import Choice, freeze, holding
from stepscope.studies.partial.ways import Way
from stepscope.workloads.contract import OPTIMIZERS, Training, Workload
from stepscope.workloads.data.source import DataFacts, Splits

_PROBES = 8


@dataclass(frozen=True)
class Rule:
    """An optimizer by its name, and what it is called with."""

    name: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Cost:
    """Of one step: FLOPs forward and backward (means over the probed steps), and the peak of live bytes (their most).

    saved_bytes: what is kept for backward at its most in a step, the mean over the steps. trained_share: of the numbers
    of the model. Null, with a reason in `notes`, is "not counted".
    """

    flops_forward: float | None
    flops_backward: float | None
    peak_bytes: int | None
    saved_bytes: float | None
    trained_share: float
    notes: tuple[str, ...] = ()


def probed(steps: int) -> list[int]:
    """Numbers of the steps that are looked at, without repeats."""
    return sorted({round(place * (steps - 1) / max(_PROBES - 1, 1)) for place in range(_PROBES)})


def cost_of(training: Training, way: Way, choices: Sequence[Choice], rule: Rule) -> Cost:
    """The cost of a step with these choices; the model is left with the last of them."""
    share = sum(choice.share(training.model) for choice in choices) / len(choices)
    flops, not_counted = _flops(training, choices)
    job = _job(training.workload, way, choices, rule)
    memory: tuple[int | None, float | None] = (None, None)
    stopped = None
    try:
        memory = _memory(job, training.batch_size, len(choices))
    except DryRunStopped as error:
        stopped = f"memory not counted: fake tensors stopped at {error}"
    notes = tuple(note for note in (not_counted, stopped) if note)
    return Cost(*flops, *memory, share, notes)


def _flops(training: Training, choices: Sequence[Choice]) -> tuple[tuple[float | None, float | None], str | None]:
    """Means over the choices, of a batch, forward and backward; a reason where they cannot be counted."""
    workload, found = training.workload, []
    for choice in choices:
        freeze(training.model, choice)
        counted = count_flops(training.model, workload.loss, workload.example(2))
        if counted.total_forward is None or counted.total_backward is None:
            return (None, None), f"FLOPs {counted.reason}"
        found.append((counted.total_forward, counted.total_backward))
    forward, backward = (training.batch_size * sum(each) / len(found) for each in zip(*found, strict=True))
    return (forward, backward), None


def _memory(job: Job, batch: int, steps: int) -> tuple[int, float]:
    """(peak of live bytes, what was kept for backward) over all steps but the first, which makes the state."""
    held = memory_over_time(dry_run(job, batch, steps=steps + 1).events())
    later = held.filter(pl.col("step") > 0)
    kept = later.group_by("step").agg(pl.col("saved").max())["saved"].to_numpy()
    return int(later["live"].to_numpy().max()), float(kept.mean())


def _job(workload: Workload, way: Way, choices: Sequence[Choice], rule: Rule) -> Job:
    """The training of a way without its data; its first step trains all that any of the choices does."""
    everything = Choice(frozenset(name for choice in choices for name in choice.trained))
    order = iter((everything, *choices))
    no_data = Splits(None, None, DataFacts("none", "synthetic", "", "", "", 0, 0))

    def build() -> tuple[nn.Module, Optimizers]:
        model = workload.build().train()
        way.setup(model)
        return model, optimizers_of(workload, model, rule)

    def step(model: nn.Module, optimizers: Optimizers, batch: Any) -> None:
        choice = next(order)
        freeze(model, choice)
        training = Training(workload, model, optimizers, len(batch[0]), torch.device("cpu"), 0, no_data)
        with holding(model, optimizers, choice):
            training.step(batch)

    return Job(workload.name, build, workload.example, step, workload.default_batch)


def optimizers_of(workload: Workload, model: nn.Module, rule: Rule) -> Optimizers:
    """The workload's optimizers over all parameters of a model whose layers may have been changed."""
    return tuple(OPTIMIZERS[rule.name](group, **rule.values) for group in workload.groups(model))
