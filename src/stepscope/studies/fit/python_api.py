"""`stepscope.fit` for a model and an optimizer in the user's hands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from stepscope.analysis.memory_model import Limit, limit_of_board, limit_of_memory, limit_of_this_machine
from stepscope.errors import UsageError
from stepscope.record.job import Job
from stepscope.studies.fit import kept as kept_file
from stepscope.studies.fit.answer import Question, answer
from stepscope.studies.fit.objects import DEFAULT_BATCH, job_of
from stepscope.studies.fit.result import FitResult

BF16_BOARDS = frozenset({"jetson_agx_orin", "jetson_orin_nx", "jetson_orin_nano", "jetson_thor", "apple"})


def fit(
    model: nn.Module,
    optimizer: Optimizer | tuple[Optimizer, ...] | list[Optimizer],
    make_batch: Callable[[int], Any],
    loss: Any = None,
    *,
    batch: int = DEFAULT_BATCH,
    memory: str | None = None,
    device: str | None = None,
    allocator: str = "default",
    options: bool = True,
) -> FitResult:
    """Whether this training fits into a memory, or a device, without running it; nothing given is changed or moved.

    make_batch(n) gives a batch of n samples; loss(model, batch) a scalar (or a criterion of outputs and targets; None
    takes the model's own). With neither memory ("8GB") nor device ("tx2") the question is this machine, now.
    """
    return fit_job(job_of(model, optimizer, make_batch, loss), batch, memory, device, allocator, options)


def fit_job(
    job: Job, batch: int, memory: str | None, device: str | None, allocator: str = "default", options: bool = True
) -> FitResult:
    """The same of a job: a training that has not been built yet."""
    return answer(
        Question(
            job,
            batch,
            limit_of(memory, device, here=memory is None and device is None),
            allocator,
            kept=kept_file.load(kept_file.place()) if device is None else kept_file.Kept(),
            has_bf16=bf16_of(device),
            options=options,
        )
    )


def limit_of(memory: str | None, device: str | None, here: bool) -> Limit | None:
    """The limit that was asked for; a device's memory may be said beside it. None where none was."""
    if here and device is not None:
        raise UsageError("--here and --device are two devices", "give one of them")
    if device is not None:
        return limit_of_board(device, memory)
    if memory is not None:
        return limit_of_memory(memory)
    return limit_of_this_machine() if here else None


def bf16_of(device: str | None) -> bool | None:
    """Whether a board trains in bf16; None where it is this machine, which can be asked."""
    if device is None:
        return None
    from stepscope.analysis.memory_model import board_named

    return board_named(device).name in BF16_BOARDS
