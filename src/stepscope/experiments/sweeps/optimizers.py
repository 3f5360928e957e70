"""`stepscope study optimizers`: memory, time and energy of each optimizer for one workload, and the steps to a loss."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from stepscope.analysis.results import Findings
from stepscope.errors import MissingDependency, UnknownName
from stepscope.experiments.engine.engine import Plan
from stepscope.experiments.sweeps import OptimizerSweep, TrainingRules
from stepscope.experiments.sweeps.results import (
    JOULES,
    LEARNING,
    STATE,
    STEP,
    SweepQuestion,
    build_findings,
    lowest_loss,
)
from stepscope.experiments.sweeps.trainings import TrainingRun, training_plan

if TYPE_CHECKING:
    from stepscope.workloads.contract import Workload


def optimizer_plan(request: OptimizerSweep) -> Plan:
    """Train with each optimizer; those that cannot be had here are named with the reason.

    Unless the request has a target, every optimizer makes the same number of steps, and the target is the highest of
    the lowest losses that they reach: the loss that all of them reach.
    """
    judged = (STATE, STEP, *JOULES.values(), *LEARNING)
    title = f"Optimizers for {request.base.workload}"
    sweep = SweepQuestion(request.study, title, "optimizer", lambda setting: str(setting.optimizer), judged)
    missing = {kind.name: kind.why_missing for kind in kinds_named(request.optimizers or ())}
    rates = request.lr or {}
    settings = [replace(request.base, optimizer=name, lr=rates.get(name)) for name, why in missing.items() if not why]

    def judge(trainings: list[TrainingRun]) -> Findings:
        rules, notes = _with_target(request.rules, trainings)
        notes += [f"{name} was excluded: {why}" for name, why in missing.items() if why]
        notes.append("learning rates are the workload's own or follow from them; another rate may change who is first")
        return build_findings(sweep, trainings, rules, notes)

    return training_plan(settings, request.rules, sweep.label, judge)


def _with_target(rules: TrainingRules, runs: Sequence[TrainingRun]) -> tuple[TrainingRules, list[str]]:
    """The rules with the target that was asked for, or with one that every optimizer has reached."""
    if rules.target_loss is not None:
        return rules, []
    lowest = [value for run in runs if run.losses and (value := lowest_loss(run.losses)) is not None]
    if not lowest:
        return rules, ["no target: a loss is smoothed over ten steps, and no training made so many"]
    target = float(np.max(lowest))
    notes = [f"target: a loss of {target:.4g}, the lowest that all of them reached"]
    if len(lowest) < len(runs):
        uncounted = f"{len(runs) - len(lowest)} of {len(runs)} trainings have no loss to count"
        notes.append(f"{uncounted}: the target is without them")
    return replace(rules, target_loss=target), notes


Make = Callable[..., Optimizer]


@dataclass(frozen=True)
class OptimizerKind:
    """One optimizer: where it comes from, and its learning rate as a multiple of what the workload has for `like`."""

    name: str
    place: str  # module and class
    like: str
    times: float = 1.0
    library: str | None = None  # what has to be installed beside torch

    @property
    def why_missing(self) -> str | None:
        """Return why it cannot be had here; null where it can."""
        root = self.place.partition(":")[0].partition(".")[0]
        if importlib.util.find_spec(root) is None:
            return f"{self.library or root} is not installed: pip install {self.library or root}"
        if self.library is None and not hasattr(torch.optim, self.place.partition(":")[2]):
            return f"torch {torch.__version__} has no {self.name}"
        return None

    def make(self, group: Any, **values: Any) -> Optimizer:
        """MissingDependency where its library is not here, or cannot be imported."""
        why = self.why_missing
        if why is not None:
            raise MissingDependency(f"the optimizer {self.name} is not here: {why}", "leave it out, or install it")
        module, _, name = self.place.partition(":")
        try:
            optimizer: Optimizer = getattr(importlib.import_module(module), name)(group, **values)
        except (ImportError, AttributeError) as error:
            raise MissingDependency(f"{self.library} cannot be used here: {error}", "leave it out") from error
        return optimizer


# Learning rates as their authors advise them relative to Adam's: Adagrad's shrink, Adafactor's are relative updates.
KINDS = {
    kind.name: kind
    for kind in (
        OptimizerKind("sgd", "torch.optim:SGD", "sgd"),
        OptimizerKind("momentum", "torch.optim:SGD", "momentum"),
        OptimizerKind("adam", "torch.optim:Adam", "adam"),
        OptimizerKind("adamw", "torch.optim:AdamW", "adamw"),
        OptimizerKind("adagrad", "torch.optim:Adagrad", "adam", 10),
        OptimizerKind("rmsprop", "torch.optim:RMSprop", "rmsprop"),
        OptimizerKind("adafactor", "torch.optim:Adafactor", "adam", 10),
        OptimizerKind("adamw-8bit-torchao", "torchao.optim:AdamW8bit", "adam", library="torchao"),
        OptimizerKind("adamw-8bit-bitsandbytes", "bitsandbytes.optim:AdamW8bit", "adam", library="bitsandbytes"),
    )
}


def with_every_optimizer(workload: Workload, tell: Callable[[Optimizer], None] = lambda _: None) -> Workload:
    """The workload, ready to be trained by each of KINDS; `tell` hears of every optimizer that is made."""
    hyperparameters = {name: dict(values) for name, values in workload.hyperparameters.items()}
    rules = {
        name: hyperparameters.get(name) or _scaled_hyperparameters(kind, hyperparameters)
        for name, kind in KINDS.items()
    }
    makers = {name: _reporting_maker(kind.make, tell) for name, kind in KINDS.items()}
    own = {name: _reporting_maker(make, tell) for name, make in workload.makers.items()}
    return replace(workload, hyperparameters={**rules, **hyperparameters}, makers={**makers, **own})


def kinds_named(names: tuple[str, ...]) -> list[OptimizerKind]:
    """The kinds of these names; all, by default."""
    for name in names:
        if name not in KINDS:
            raise UnknownName("optimizer", name, KINDS)
    return [KINDS[name] for name in names or KINDS]


def state_bytes(optimizer: Optimizer) -> int:
    """Bytes of the tensors that an optimizer keeps between its steps, of packed ones those that they are packed in."""
    return sum(_bytes(value) for state in optimizer.state.values() for value in state.values())


def _bytes(value: Any) -> int:
    if not isinstance(value, Tensor):
        return 0
    flatten = getattr(value, "__tensor_flatten__", None)
    if flatten is not None and type(value) is not Tensor:
        return sum(_bytes(getattr(value, name)) for name in flatten()[0])
    return value.nbytes


def _scaled_hyperparameters(kind: OptimizerKind, hyperparameters: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    model = dict(hyperparameters.get(kind.like) or {"lr": 1e-3})
    others = {} if kind.times != 1 else model  # of another family: it takes no betas
    return {**others, "lr": model["lr"] * kind.times}


def _reporting_maker(make: Make, tell: Callable[[Optimizer], None]) -> Make:
    def made(group: Any, **values: Any) -> Optimizer:
        optimizer = make(group, **values)
        tell(optimizer)
        return optimizer

    return made
