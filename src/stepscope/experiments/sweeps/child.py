"""One training in one setting, in its own process: `python -m stepscope.experiments.sweeps.child ORDERS`, as JSON.

It leaves a run folder, and beside it the size of the optimizer's state.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import DataUnavailable, MissingDependency, StepscopeError, UsageError
from stepscope.experiments.engine.limits import die_with
from stepscope.files import replace_json

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from stepscope.record.settings import Settings
    from stepscope.record.train import Progress, Stop
    from stepscope.workloads.contract import Batch, Training, Workload

_MOST_STEPS = 100_000
_REFUSALS = ((MissingDependency, "not installed"), (DataUnavailable, "no data"), (UsageError, "refused"))


def main(orders: dict[str, Any]) -> None:
    """Train as ordered, and say how it ended."""
    import traceback

    die_with(orders["parent"])
    try:
        status, reason = _train_setting(orders)
    except StepscopeError as error:
        status = next((name for kind, name in _REFUSALS if isinstance(error, kind)), "failed")
        reason = f"{error} ({error.hint})" if error.hint else str(error)
    except Exception as error:  # what a workload raises is a result, and its traceback is in the log
        traceback.print_exc()
        from stepscope.record.session import status_of

        status, reason = status_of(error)[:2]
    replace_json(Path(orders["said"]), {"status": status, "reason": reason}, durable=True)


def _train_setting(orders: dict[str, Any]) -> tuple[str, str | None]:
    import torch

    from stepscope.experiments.sweeps.optimizers import state_bytes
    from stepscope.experiments.sweeps.trainings import STATE_FILE
    from stepscope.record.settings import Settings
    from stepscope.record.train import train_workload
    from stepscope.runfolder import RunReader

    if orders["threads"] is not None:
        torch.set_num_threads(orders["threads"])
    made: list[Optimizer] = []
    workload = _workload(orders, made)
    progress, stop = _stop_condition(orders)
    with _on_board(orders["simulate"], Settings(out=orders["out"])) as settings:
        path, _ = train_workload(
            workload, orders["steps"] or _MOST_STEPS, settings, batch=orders["batch"], optimizer=orders["optimizer"],
            device=orders["device"], precision=orders["precision"], seed=orders["seed"], lr=orders["lr"],
            evaluate=False, progress=progress, stop=stop,
        )  # fmt: skip
    state = {"state_bytes": sum(state_bytes(training) for training in made)}
    replace_json(Path(orders["out"]) / STATE_FILE, state, durable=True)
    run = RunReader(path)
    return run.status, run.meta.get("reason")


def _workload(orders: dict[str, Any], made: list[Optimizer]) -> Workload:
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


def _stop_condition(orders: dict[str, Any]) -> tuple[Progress, Stop]:
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


@contextlib.contextmanager
def _on_board(board: str | None, settings: Settings) -> Iterator[Settings]:
    """The settings with the sensors of a simulated board, where one is asked for."""
    if board is None:
        yield settings
        return
    from stepscope import simulate

    with simulate.start(board) as simulation:
        metering = replace(settings.metering, simulated=board, characterise=False)
        yield replace(settings, root=str(simulation.root), metering=metering)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
