"""One training in one setting, as a task of the engine: it leaves a run folder, and returns the optimizer's state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepscope.errors import UsageError
from stepscope.experiments.engine.child import Orders, ended_run, session_settings

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from stepscope.record.train import Progress, Stop
    from stepscope.workloads.contract import Batch, Training, Workload

_MOST_STEPS = 100_000


def train_setting(orders: Orders) -> dict[str, Any]:
    """Train as ordered; returns how the run ended and the bytes that the optimizer keeps between its steps."""
    from stepscope.experiments.sweeps.optimizers import state_bytes
    from stepscope.record.train import train_workload

    made: list[Optimizer] = []
    workload = _workload(orders, made)
    progress, stop = _stop_condition(orders)
    with session_settings(orders) as settings:
        path, _ = train_workload(
            workload, orders["steps"] or _MOST_STEPS, settings, batch=orders["batch"], optimizer=orders["optimizer"],
            device=orders["device"], precision=orders["precision"], seed=orders["seed"], lr=orders["lr"],
            evaluate=False, progress=progress, stop=stop,
        )  # fmt: skip
    return {**ended_run(path), "state_bytes": sum(state_bytes(training) for training in made)}


def _workload(orders: Orders, made: list[Optimizer]) -> Workload:
    """The workload with every optimizer that is known here, each kept when it is made; or only its forward."""
    from stepscope import workloads
    from stepscope.experiments.sweeps.optimizers import with_every_optimizer

    workload = with_every_optimizer(workloads.find(orders["workload"]), made.append)
    if orders["kind"] == "training":
        return workload
    if workload.step is not None:
        raise UsageError(f"'{workload.name}' has a step of its own: it has no inference to be asked for alone")
    return replace(workload, step=_forward_alone)


def _forward_alone(training: Training, batch: Batch) -> Tensor:
    import torch

    training.model.eval()
    with torch.no_grad():
        return training.workload.loss(training.model, batch)


def _stop_condition(orders: Orders) -> tuple[Progress, Stop]:
    """Return what hears of every loss, and what then says whether that is enough."""
    from stepscope.experiments.suite.rules import Rules, StopCondition
    from stepscope.experiments.sweeps.results import WINDOW

    enough = StopCondition(Rules(steps=orders["steps"], seconds=orders["seconds"]))
    target, last = orders["target_loss"], list[float]()

    def heard(step: int, loss: float | None) -> None:
        last.append(float("nan") if loss is None else loss)

    def reached() -> bool:
        return len(last) >= WINDOW and sum(last[-WINDOW:]) / WINDOW <= target

    stop: Callable[[], bool] = enough if target is None else reached
    return heard, stop
