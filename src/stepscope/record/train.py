"""Train a workload inside a session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stepscope.errors import UsageError
from stepscope.record import torch_private
from stepscope.record.flops import FlopCount, count_flops
from stepscope.record.recorders.phases import DATA_SCOPE
from stepscope.record.session import Session, Settings, status_of

if TYPE_CHECKING:
    from stepscope.workloads.contract import Training, Workload

EXIT_CODES = {"interrupted": 130, "oom": 8}  # results of a run in their own right, not faults
Progress = Callable[[int, float | None], None]


def train_workload(
    workload: Workload,
    steps: int,
    settings: Settings,
    *,
    batch: int | None = None,
    optimizer: str | None = None,
    device: str = "cpu",
    seed: int = 0,
    lr: float | None = None,
    progress: Progress = lambda step, loss: None,
) -> tuple[Path, int]:
    """(run folder, exit code) of so many steps; other than Ctrl-C and out of memory, exceptions pass through."""
    if steps < 1:
        raise UsageError(f"--steps {steps}: a run needs at least one step")
    training = workload.prepare(batch=batch, optimizer=optimizer, device=device, seed=seed, lr=lr)
    counted = count_flops(training.model, workload.loss, workload.example(2))
    facts = _facts(workload, training, counted, seed, device)
    session = Session(replace(settings, name=workload.name, facts=facts, flops=counted.by_module))
    session.start(training.model)
    try:
        _train(training, steps, session, progress)
        accuracy = training.evaluate()
        session.update(result={"accuracy": accuracy, "steps": steps})
    except BaseException as error:
        status, reason = status_of(error)
        session.close(status, reason)
        if status not in EXIT_CODES:
            raise
        return session.path, EXIT_CODES[status]
    session.close()
    return session.path, 0


def _train(training: Training, steps: int, session: Session, progress: Progress) -> None:
    fetching = torch_private.make_scope(DATA_SCOPE)
    batches = iter(training.batches())
    for step in range(steps):
        with fetching:
            batch = next(batches)
        training.optimizer.zero_grad()
        loss = training.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        training.optimizer.step()
        value = float(loss.detach())
        session.step(value, samples=training.batch_size)
        progress(step + 1, value)


def _facts(workload: Workload, training: Training, counted: FlopCount, seed: int, device: str) -> dict[str, Any]:
    return {
        "workload": {
            "domain": workload.domain,
            "batch_size": training.batch_size,
            "optimizer": type(training.optimizer).__name__,
            "precision": str(torch.get_default_dtype()).removeprefix("torch."),
            "device": device,
            "input_shape": list(workload.input_shape),
            "parameters": sum(p.numel() for p in training.model.parameters()),
            "data": asdict(training.data),
        },
        "seed": seed,
        "flops_not_counted": counted.reason,
    }
