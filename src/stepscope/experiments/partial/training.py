"""One training of one way with one seed: data and weights, accuracy over time and energy, cost of a step."""

from __future__ import annotations

import copy
import itertools
import pickle
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from stepscope import workloads
from stepscope.analysis.memory.events import memory_over_time
from stepscope.errors import UsageError
from stepscope.experiments.engine.child import Orders
from stepscope.experiments.engine.training import (
    Evaluate,
    TrainingEnvironment,
    TrainingRecord,
    accuracy_of,
    prepare_classifier,
    train_in_session,
    training_environment,
)
from stepscope.experiments.partial.methods import (
    WAYS,
    FreezingSchedule,
    ScheduleSettings,
    TrainedParameters,
    TrainingMethod,
    freeze,
    freeze_filters,
    last_layer,
)
from stepscope.experiments.partial.study import PartialTrainingOrders
from stepscope.files import atomic_write
from stepscope.record.dry import Job, Optimizers
from stepscope.record.dry.dry_run import DryRunStopped, dry_run
from stepscope.record.dry.flops import count_flops
from stepscope.workloads.contract import OPTIMIZERS, Training, Workload
from stepscope.workloads.data import packaged
from stepscope.workloads.data.source import Batch, DataFacts, Splits

EVALUATIONS = 10  # of the accuracy, besides that before the first step


class NoSuchLayers(UsageError):
    """The model has no layers of the kind that a way asks for."""


def train_point(orders: Orders) -> dict[str, Any]:
    """Train one way with one seed, as a task of the engine."""
    content = dict(orders["lesson"])
    training_orders = PartialTrainingOrders(**{**content, "classes": tuple(content["classes"])})
    with training_environment(orders) as environment:
        return train_one_seed(workloads.find(orders["workload"]), training_orders, orders["seed"], environment)


def train_one_seed(
    workload: Workload, orders: PartialTrainingOrders, seed: int, environment: TrainingEnvironment
) -> dict[str, Any]:
    """The cell of one seed: its curve, its cost, notes. Absent, UsageError or DataUnavailable where it cannot be."""
    training = prepare_classifier(workload, orders, seed)
    way = WAYS[orders.way]
    why = way.missing(training.model)
    if why is not None:
        raise NoSuchLayers(f"'{workload.name}' cannot be trained so ({orders.way}): {why}")
    rule = _optimizer_rule(workload, orders)
    training, before, note = _start_training(training, orders, rule, environment)
    torch.manual_seed(seed)  # the same adapters and dropout, however the training was begun
    way.setup(training.model)
    training = replace(training, optimizers=optimizers_of(workload, training.model, rule))
    steps = training_step_count(orders, training)
    schedule = way.schedule(training.model, _schedule_settings(training, orders, steps, seed))
    evaluate = _evaluation(training, before, orders.test_samples)
    record = _run_training(training, schedule, steps, evaluate, environment)
    cost = step_cost(training, way, [schedule(step) for step in probe_steps(steps)], rule)
    notes = [note for note in (note, *cost.notes) if note]
    return {
        "way": orders.way, "fraction": orders.fraction, "seed": seed, "steps": steps,
        "batch": training.batch_size, "data": asdict(training.data), "optimizer": f"{rule.name} {dict(rule.values)}",
        "curve": list(_accuracy_curve(record)), "step_s": float(_median_step_s(record)),
        "energy_kind": record.energy_kind, "energy_note": record.energy_note, "energy_gap": record.gap,
        "background": record.background, "cost": asdict(cost), "notes": notes,
    }  # fmt: skip


def training_step_count(orders: PartialTrainingOrders, training: Training) -> int:
    """Steps of the whole training."""
    return orders.epochs * steps_per_epoch(training) if orders.steps is None else orders.steps


def steps_per_epoch(training: Training) -> int:
    """Steps of an epoch; a rest smaller than a batch is dropped, as the batches do."""
    if training.data.train_size < training.batch_size:
        size, batch = training.data.train_size, training.batch_size
        raise UsageError(f"{size} samples are fewer than a batch of {batch}", f"--batch {max(size, 1)} or less")
    return training.data.train_size // training.batch_size


def _optimizer_rule(workload: Workload, orders: PartialTrainingOrders) -> OptimizerRule:
    name = orders.optimizer or workload.default_optimizer
    return OptimizerRule(name, {**workload.hyperparameters[name], **({} if orders.lr is None else {"lr": orders.lr})})


def _schedule_settings(training: Training, orders: PartialTrainingOrders, steps: int, seed: int) -> ScheduleSettings:
    def gradients() -> dict[str, Tensor]:
        """Of the first batch, on a copy: the training begins as if it had never been seen."""
        replica = replace(training, model=copy.deepcopy(training.model))
        with torch.random.fork_rng():
            replica.loss(next(iter(replica.batches()))).backward()  # type: ignore[no-untyped-call]
        named = replica.model.named_parameters()
        return {name: parameter.grad for name, parameter in named if parameter.grad is not None}

    return ScheduleSettings(
        orders.fraction,
        steps,
        1 if orders.each == "step" else steps_per_epoch(training),
        seed,
        gradients,
    )


def _run_training(
    training: Training, schedule: FreezingSchedule, steps: int, evaluate: Evaluate, environment: TrainingEnvironment
) -> TrainingRecord:
    choice = schedule(0)
    frozen_for: TrainedParameters | None = None

    def choose(number: int) -> None:
        nonlocal choice
        choice = schedule(number)

    def step(_: int, batch: Batch) -> Tensor:
        nonlocal frozen_for
        if frozen_for is not choice:
            freeze(training.model, choice)
            frozen_for = choice
        with freeze_filters(training.model, training.optimizers, choice):
            return training.step(batch)

    places = {round(number * steps / EVALUATIONS) for number in range(1, EVALUATIONS + 1)}
    settings = environment.settings(training)
    batches = itertools.islice(training.batches(), steps)
    return train_in_session(training, batches, settings, step, evaluate, lambda made: made in places, choose)


def _evaluation(training: Training, before: Training | None, samples: int) -> Evaluate:
    def evaluate() -> dict[str, float]:
        metrics = {"accuracy": accuracy_of(training, samples)}
        if before is not None:  # what it was pre-trained on: how much of that is left
            metrics["before"] = accuracy_of(replace(before, model=training.model), samples)
        return metrics

    return evaluate


def _accuracy_curve(record: TrainingRecord) -> Iterator[dict[str, float | None]]:
    for evaluation in record.evaluations:
        row: dict[str, float | None] = {"step": evaluation.steps, **evaluation.metrics}
        yield {**row, "time_s": record.seconds(evaluation.steps), "energy_j": record.joules(evaluation.steps)}


def _median_step_s(record: TrainingRecord) -> Any:
    steps = sorted(record.step_s[min(3, len(record.step_s) - 1) :])  # without the warm-up
    return steps[len(steps) // 2]


def _start_training(
    training: Training, orders: PartialTrainingOrders, rule: OptimizerRule, environment: TrainingEnvironment
) -> tuple[Training, Training | None, str | None]:
    """The training as it begins, the one that it was pre-trained in (null: not here), and what to know of it."""
    if orders.pretrained:
        name = training.workload.name
        training.model.load_state_dict(packaged.shipped_weights(name))
        text = f"begins with the weights that ship, trained on {packaged.WEIGHTS[name].trained_on}"
        return _with_classes(training, orders.classes), None, text
    if orders.checkpoint is not None:
        note = load_weights(training.model, read_weights(Path(orders.checkpoint)), f"'{orders.checkpoint}'")
        return _with_classes(training, orders.classes), None, note
    if not orders.transfer:
        return _with_classes(training, orders.classes), None, None
    assert training.splits.train is not None, "refused before: a workload without training data"
    everything = sorted(set(labels_of(training.splits.train).tolist()))
    former, new = (
        (tuple(sorted(set(everything) - set(orders.classes))), orders.classes)
        if orders.classes
        else split_classes(everything)
    )
    if not former:
        raise UsageError("no class is left to pre-train on", "give fewer --classes")
    before = _with_classes(training, former)
    _load_or_pretrain(before, orders, environment)
    fresh = replace(training, optimizers=optimizers_of(training.workload, training.model, rule))
    return _with_classes(fresh, new), before, None


def _with_classes(training: Training, classes: tuple[int, ...]) -> Training:
    """Return the training on these classes; on all where none is named."""
    return training if not classes else replace(training, splits=splits_of_classes(training.splits, classes))


def _load_or_pretrain(before: Training, orders: PartialTrainingOrders, environment: TrainingEnvironment) -> None:
    """Train all on the known classes, for as many steps; all ways of a seed begin with the same weights."""
    file = environment.weights / f"{before.seed}.pt"
    if file.exists():
        before.model.load_state_dict(torch.load(file, map_location=before.device, weights_only=True))
        return
    for batch in itertools.islice(before.batches(), training_step_count(orders, before)):
        before.step(batch)
    environment.weights.mkdir(exist_ok=True)
    with atomic_write(file) as part:
        torch.save(before.model.state_dict(), part)


# Both are counted for steps spread evenly over the training, since what is trained may change from step to step.

_PROBES = 8


@dataclass(frozen=True)
class OptimizerRule:
    """An optimizer by its name, and what it is called with."""

    name: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class StepCost:
    """Cost of one step: FLOPs forward and backward (means over the probed steps), and the peak of live bytes (maximum).

    saved_bytes: activations at their most in a step, the mean over the steps. trained_share: of the numbers
    of the model. Null, with a reason in `notes`, is "not counted".
    """

    flops_forward: float | None
    flops_backward: float | None
    peak_bytes: int | None
    saved_bytes: float | None
    trained_share: float
    notes: tuple[str, ...] = ()


def probe_steps(steps: int) -> list[int]:
    """Numbers of the steps that are looked at, without repeats."""
    return sorted({round(place * (steps - 1) / max(_PROBES - 1, 1)) for place in range(_PROBES)})


def step_cost(
    training: Training, way: TrainingMethod, choices: Sequence[TrainedParameters], rule: OptimizerRule
) -> StepCost:
    """The cost of a step with these choices; the model is left with the last of them."""
    share = sum(choice.share(training.model) for choice in choices) / len(choices)
    flops, not_counted = _mean_flops(training, choices)
    job = _dry_run_job(training.workload, way, choices, rule)
    memory: tuple[int | None, float | None] = (None, None)
    stopped = None
    try:
        memory = _peak_and_activations(job, training.batch_size, len(choices))
    except DryRunStopped as error:
        stopped = f"memory not counted: fake tensors stopped at {error}"
    notes = tuple(note for note in (not_counted, stopped) if note)
    return StepCost(*flops, *memory, share, notes)


def _mean_flops(
    training: Training, choices: Sequence[TrainedParameters]
) -> tuple[tuple[float | None, float | None], str | None]:
    """Means over the choices, of a batch, forward and backward; a reason where they cannot be counted."""
    workload, counts_by_choice = training.workload, []
    for choice in choices:
        freeze(training.model, choice)
        counted = count_flops(training.model, workload.loss, workload.example(2))
        if counted.total_forward is None or counted.total_backward is None:
            return (None, None), f"FLOPs {counted.reason}"
        counts_by_choice.append((counted.total_forward, counted.total_backward))
    forward, backward = (
        training.batch_size * sum(counts) / len(counts_by_choice) for counts in zip(*counts_by_choice, strict=True)
    )
    return (forward, backward), None


def _peak_and_activations(job: Job, batch: int, steps: int) -> tuple[int, float]:
    """(peak of live bytes, activations) over all steps but the first, which makes the state."""
    memory = memory_over_time(dry_run(job, batch, steps=steps + 1).events())
    later = memory.filter(pl.col("step") > 0)
    activations = later.group_by("step").agg(pl.col("saved").max())["saved"].to_numpy()
    return int(later["live"].to_numpy().max()), float(activations.mean())


def _dry_run_job(
    workload: Workload, way: TrainingMethod, choices: Sequence[TrainedParameters], rule: OptimizerRule
) -> Job:
    """The training of a way without its data; its first step trains all that any of the choices does."""
    everything = TrainedParameters(frozenset(name for choice in choices for name in choice.trained))
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
        with freeze_filters(model, optimizers, choice):
            training.step(batch)

    return Job(workload.name, build, workload.example, step, workload.default_batch)


def optimizers_of(workload: Workload, model: nn.Module, rule: OptimizerRule) -> Optimizers:
    """The workload's optimizers over all parameters of a model whose layers may have been changed."""
    return tuple(OPTIMIZERS[rule.name](group, **rule.values) for group in workload.groups(model))


_WRAPPED = ("state_dict", "model_state_dict", "model")
_HINT = "save plain weights: torch.save(model.state_dict(), 'weights.pt')"
_MAX_PROBLEMS = 5


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name; UsageError where the file holds anything but weights."""
    if not path.is_file():
        raise UsageError(f"there is no checkpoint '{path}'", "give the path of a file of weights: --checkpoint FILE")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch speaks of its own support; what is no file of weights is refused
            content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, zipfile.BadZipFile, OSError) as error:
        why = (
            "it holds more than tensors, or no tensors at all"  # torch says how to execute what is in such files
            if isinstance(error, (pickle.UnpicklingError, EOFError)) or not str(error)
            else str(error).split("\n")[0]
        )
        raise UsageError(f"'{path}' is not a file of plain weights, so it was not loaded: {why}", _HINT) from error
    for name in _WRAPPED:
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
    named = isinstance(content, dict) and all(isinstance(name, str) for name in content)
    if not named or not content or not all(isinstance(value, Tensor) for value in content.values()):
        raise UsageError(f"'{path}' holds something else than tensors by name", _HINT)
    return {name.removeprefix("module."): tensor for name, tensor in content.items()}


def load_weights(model: nn.Module, weights: dict[str, Tensor], origin: str) -> str | None:
    """Load them into the model; a last layer of another size stays as it is, and is said. UsageError on others."""
    own, last = model.state_dict(), set(last_layer(model))
    other = {name for name in own.keys() & weights.keys() if own[name].shape != weights[name].shape}
    wrong = [
        *(f"lacks {name}" for name in sorted(own.keys() - weights.keys())),
        *(f"has {name}, which the model does not" for name in sorted(weights.keys() - own.keys())),
        *(f"{name} is {_shape_text(weights[name])}, not {_shape_text(own[name])}" for name in sorted(other - last)),
    ]
    if wrong:
        more = f" and {len(wrong) - _MAX_PROBLEMS} more" if len(wrong) > _MAX_PROBLEMS else ""
        raise UsageError(
            f"{origin} does not fit the model: {'; '.join(wrong[:_MAX_PROBLEMS])}{more}",
            "give weights of the same model",
        )
    model.load_state_dict({name: tensor for name, tensor in weights.items() if name not in other}, strict=False)
    return f"the last layer is new: in {origin} it has another size" if other else None


def _shape_text(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a number"


def labels_of(data: Dataset[Batch]) -> Tensor:
    """The class of every sample, [N]; UsageError where samples do not end with one."""
    labels = [batch[-1] for batch in DataLoader(data, batch_size=512, num_workers=0)]
    if not labels or labels[0].dim() != 1 or labels[0].is_floating_point():
        raise UsageError("the samples of this workload have no classes", "leave --transfer and --classes out")
    return torch.cat(labels)


def split_classes(classes: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(to pre-train on, to train on): the lower and the upper half."""
    ordered = sorted(classes)
    if len(ordered) < 2:
        raise UsageError("one class cannot be divided into two parts", "leave --transfer out")
    return tuple(ordered[: len(ordered) // 2]), tuple(ordered[len(ordered) // 2 :])


def splits_of_classes(splits: Splits, classes: Sequence[int]) -> Splits:
    """The samples of these classes; UsageError where there are none of one of them."""
    train, test = (_subset_of_classes(data, classes) for data in (splits.train, splits.test))
    return Splits(train, test, replace(splits.facts, train_size=len(train or ()), test_size=len(test or ())))


def _subset_of_classes(data: Dataset[Batch] | None, classes: Sequence[int]) -> Subset[Batch] | None:
    if data is None:
        return None
    labels = labels_of(data)
    present = set(labels.tolist())
    absent = sorted(set(classes) - present)
    if absent:
        choices = ", ".join(map(str, sorted(present)))
        raise UsageError(f"there is no class {', '.join(map(str, absent))} in the data", f"there are {choices}")
    return Subset(data, torch.isin(labels, torch.tensor(list(classes))).nonzero().flatten().tolist())
