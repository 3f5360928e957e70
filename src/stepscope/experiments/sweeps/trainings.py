"""The trainings of a sweep: a point for each setting and repeat, the task that trains one, and the result of each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.analysis.run import Run
from stepscope.errors import UsageError
from stepscope.experiments.engine.child import Orders, run_status_and_reason, session_settings
from stepscope.experiments.engine.engine import Plan, Point, Result
from stepscope.experiments.engine.sweep_points import in_rounds
from stepscope.experiments.suite.sweep import read_run
from stepscope.experiments.sweeps import TrainingRules, TrainingSetting
from stepscope.experiments.sweeps.user_training import TASK as OWN_TASK
from stepscope.experiments.sweeps.user_training import is_user_training

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from stepscope.analysis.results import Findings
    from stepscope.record.train import Progress, Stop
    from stepscope.workloads.contract import Batch, Training, Workload


TASK = "stepscope.experiments.sweeps.trainings:train_setting"
ENERGY = ("energy_per_sample_j", "estimated_energy_per_sample_j", "simulated_energy_per_sample_j")


@dataclass(frozen=True)
class TrainingRun:
    """One training as it ended. numbers: value, low and high by name, as the suite has them; times_s: end of each step.

    state_bytes: what the optimizer keeps beside the parameters, B. run: the run folder.
    """

    setting: TrainingSetting
    repeat: int
    status: str
    reason: str | None = None
    numbers: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    losses: Sequence[float] = ()
    times_s: Sequence[float] = ()
    state_bytes: int | None = None
    flags: Sequence[str] = ()
    run: Path | None = None


@dataclass(frozen=True)
class DevicePreparation:
    """The state that a setting needs of the device. `enter` may raise PointRefused: the training is not made then.

    order: settings in the order in which a round of repeats makes them; shuffled by default. around: holds meanwhile.
    """

    enter: Callable[[TrainingSetting], None] = lambda setting: None
    order: Callable[[TrainingSetting], int] | None = None
    around: Callable[[Path], AbstractContextManager[Any]] = lambda folder: contextlib.nullcontext()


def training_plan(
    settings: Sequence[TrainingSetting],
    rules: TrainingRules,
    title: Callable[[TrainingSetting], str],
    judge: Callable[[list[TrainingRun]], Findings],
    state: DevicePreparation | None = None,
) -> Plan:
    """Return the plan that trains in every setting, in shuffled rounds of repeats, and judges all trainings."""
    state, rounds = state or DevicePreparation(), in_rounds(settings, rules.repeats, rules.seed)
    if state.order is not None:
        place = state.order
        rounds.sort(key=lambda point: (point[1], place(point[0])))
    points, setting_of = [], {}
    for setting, repeat in rounds:
        orders = {**asdict(setting), **asdict(rules), "seed": rules.seed + repeat}
        name = f"{title(setting)}, repeat {repeat + 1}"
        task = OWN_TASK if is_user_training(setting.workload) else TASK
        points.append(Point(_point_id(setting, repeat), name, task, orders, setting=setting.id))
        setting_of[points[-1].id] = setting

    def judge_results(results: Mapping[str, Result]) -> Findings:
        repeats = range(rules.repeats)
        return judge(
            [_training_run(setting, n, results[_point_id(setting, n)]) for setting in settings for n in repeats]
        )

    return Plan(
        points,
        judge_results,
        read=_read_training,
        before=lambda point: state.enter(setting_of[point.id]),
        around=state.around,
        time_limit_s=rules.time_limit_s,
    )


def _point_id(setting: TrainingSetting, repeat: int) -> str:
    return f"{setting.id}-r{repeat}"


def _read_training(path: Path) -> dict[str, Any]:
    content, steps = read_run(path, True), Run(path).steps
    began = steps["t0_ns"][0] if len(steps) else 0
    losses = {"losses": steps["loss"].to_list(), "times_s": ((steps["t1_ns"] - began) / 1e9).to_list()}
    return {"numbers": content["numbers"], "flags": content["flags"], **losses}


def _training_run(setting: TrainingSetting, repeat: int, result: Result) -> TrainingRun:
    names = ("reason", "numbers", "losses", "times_s", "state_bytes", "flags", "run")
    content = {name: result[name] for name in names if result.get(name) is not None}
    return TrainingRun(setting, repeat, result["status"], **content)


_MOST_STEPS = 100_000


def train_setting(orders: Orders) -> dict[str, Any]:
    """Train as ordered; returns how the run ended and the bytes that the optimizer keeps between its steps."""
    from stepscope.experiments.sweeps.optimizers import state_bytes
    from stepscope.record.train import TrainingChoices, train_workload

    optimizers: list[Optimizer] = []
    workload = _workload(orders, optimizers)
    progress, stop = _stop_condition(orders)
    with session_settings(orders) as settings:
        path, _ = train_workload(
            workload, orders["steps"] or _MOST_STEPS, settings,
            TrainingChoices(**{part.name: orders[part.name] for part in fields(TrainingChoices)}),
            evaluate=False, progress=progress, stop=stop,
        )  # fmt: skip
    return {**run_status_and_reason(path), "state_bytes": sum(state_bytes(training) for training in optimizers)}


def _workload(orders: Orders, optimizers: list[Optimizer]) -> Workload:
    """The workload with every optimizer that is known here, each kept when it is made; or only its forward."""
    from stepscope import workloads
    from stepscope.experiments.sweeps.optimizers import with_every_optimizer

    workload = with_every_optimizer(workloads.find(orders["workload"]), optimizers.append)
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
    from stepscope.experiments.suite.rules import RunRules, StopCondition
    from stepscope.experiments.sweeps.results import WINDOW

    enough = StopCondition(RunRules(steps=orders["steps"], seconds=orders["seconds"]))
    target, last = orders["target_loss"], list[float]()

    def heard(step: int, loss: float | None) -> None:
        last.append(float("nan") if loss is None else loss)

    def reached() -> bool:
        return len(last) >= WINDOW and sum(last[-WINDOW:]) / WINDOW <= target

    stop: Callable[[], bool] = enough if target is None else reached
    return heard, stop
