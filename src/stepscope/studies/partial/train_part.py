"""One training of one way with one seed: accuracy over time and energy, and what a step costs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepscope.errors import UsageError
from stepscope.studies.measured_training import Place, Trained, accuracy_of, refuse_without_accuracy, train
from stepscope.studies.partial.checkpoint import put_weights, read_weights
from stepscope.studies.partial.choice import Choice, freeze, holding
from stepscope.studies.partial.classes import halves, labels_of, of_classes
from stepscope.studies.partial.savings import Rule, cost_of, optimizers_of, probed
from stepscope.studies.partial.ways import WAYS, Plan, Terms
from stepscope.workloads.contract import Training, Workload
from stepscope.workloads.data.source import Batch, Splits

LOOKS = 10  # at the accuracy, besides that before the first step


class Absent(UsageError):
    """The model has no layers of the kind that a way asks for."""


@dataclass(frozen=True)
class Lesson:
    """What one process is told of the trainings that it makes; the fields of `Asked` that a training depends on."""

    way: str
    fraction: float
    each: str
    steps: int | None
    epochs: int
    batch: int | None
    optimizer: str | None
    lr: float | None
    data: str | None
    device: str
    transfer: bool
    classes: tuple[int, ...]
    checkpoint: str | None


def learn(workload: Workload, lesson: Lesson, seed: int, place: Place) -> dict[str, Any]:
    """The cell of one seed: its curve, its cost, notes. Absent, UsageError or DataUnavailable where it cannot be."""
    training = workload.prepare(lesson.batch, lesson.optimizer, lesson.device, seed, lesson.lr, lesson.data)
    refuse_without_accuracy(training)
    way = WAYS[lesson.way]
    why = way.missing(training.model)
    if why is not None:
        raise Absent(f"'{workload.name}' cannot be trained so ({lesson.way}): {why}")
    rule = _rule(workload, lesson)
    training, before, note = _begun(training, lesson, rule, place)
    torch.manual_seed(seed)  # the same adapters and dropout, however the training was begun
    way.setup(training.model)
    training = replace(training, optimizers=optimizers_of(workload, training.model, rule))
    steps = steps_of(lesson, training)
    plan = way.plan(training.model, _terms(training, lesson, steps, seed))
    done = _trained(training, plan, steps, before, place)
    cost = cost_of(training, way, [plan(step) for step in probed(steps)], rule)
    notes = [note for note in (note, *cost.notes) if note]
    return {
        "way": lesson.way, "fraction": lesson.fraction, "seed": seed, "steps": steps,
        "batch": training.batch_size, "data": asdict(training.data), "optimizer": f"{rule.name} {dict(rule.values)}",
        "curve": list(_curve(done)), "step_s": float(_median(done)), "energy_kind": done.energy_kind,
        "energy_note": done.energy_note, "energy_gap": done.gap,
        "run": str(Path(done.run).relative_to(place.weights.parent)), "cost": asdict(cost), "notes": notes,
    }  # fmt: skip


def steps_of(lesson: Lesson, training: Training) -> int:
    """Steps of the whole training."""
    if lesson.steps is not None:
        return lesson.steps
    return lesson.epochs * epoch_of(training)


def epoch_of(training: Training) -> int:
    """Steps of an epoch; a rest smaller than a batch is left out, as the batches do."""
    if training.data.train_size < training.batch_size:
        size, batch = training.data.train_size, training.batch_size
        raise UsageError(f"{size} samples are fewer than a batch of {batch}", f"--batch {max(size, 1)} or less")
    return training.data.train_size // training.batch_size


def _rule(workload: Workload, lesson: Lesson) -> Rule:
    name = lesson.optimizer or workload.default_optimizer
    return Rule(name, {**workload.hyperparameters[name], **({} if lesson.lr is None else {"lr": lesson.lr})})


def _terms(training: Training, lesson: Lesson, steps: int, seed: int) -> Terms:
    def gradients() -> dict[str, Tensor]:
        training.model.zero_grad(set_to_none=True)
        training.loss(next(iter(training.batches()))).backward()  # type: ignore[no-untyped-call]
        named = training.model.named_parameters()
        found = {name: parameter.grad.clone() for name, parameter in named if parameter.grad is not None}
        training.model.zero_grad(set_to_none=True)
        return found

    return Terms(lesson.fraction, steps, 1 if lesson.each == "step" else epoch_of(training), seed, gradients)


def _trained(training: Training, plan: Plan, steps: int, before: Training | None, place: Place) -> Trained:
    frozen_as: list[Choice] = []

    def step(number: int, batch: Batch) -> Tensor:
        choice = plan(number)
        if not frozen_as or frozen_as[0] is not choice:
            freeze(training.model, choice)
            frozen_as[:] = [choice]
        with holding(training.model, training.optimizers, choice):
            return training.step(batch)

    places = {round(look * steps / LOOKS) for look in range(1, LOOKS + 1)}
    settings = place.settings(training)
    batches = itertools.islice(training.batches(), steps)
    return train(training, batches, settings, step, _seen(training, before), lambda made: made in places)


def _seen(training: Training, before: Training | None) -> Callable[[], Mapping[str, float]]:
    def look() -> dict[str, float]:
        found = {"accuracy": accuracy_of(training)}
        if before is not None:  # what it was pre-trained on: how much of that is left
            found["before"] = accuracy_of(replace(before, model=training.model))
        return found

    return look


def _curve(done: Trained) -> Iterator[dict[str, float | None]]:
    for look in done.looks:
        row: dict[str, float | None] = {"step": look.steps, **look.seen}
        yield {**row, "time_s": done.seconds(look.steps), "energy_j": done.joules(look.steps)}


def _median(done: Trained) -> Any:
    steps = sorted(done.step_s[min(3, len(done.step_s) - 1) :])  # without the warm-up
    return steps[len(steps) // 2]


def _begun(
    training: Training, lesson: Lesson, rule: Rule, place: Place
) -> tuple[Training, Training | None, str | None]:
    """The training as it begins, the one that it was pre-trained in (null: not here), and what to know of it."""
    if lesson.checkpoint is not None:
        note = put_weights(training.model, read_weights(Path(lesson.checkpoint)), f"'{lesson.checkpoint}'")
        return (_limited(training, lesson.classes) if lesson.classes else training), None, note
    if not lesson.transfer:
        return (_limited(training, lesson.classes) if lesson.classes else training), None, None
    everything = sorted(set(labels_of(_train_data(training.splits)).tolist()))
    known, new = (
        (tuple(sorted(set(everything) - set(lesson.classes))), lesson.classes) if lesson.classes else halves(everything)
    )
    if not known:
        raise UsageError("no class is left to pre-train on", "give fewer --classes")
    before = _limited(training, known)
    _pre_trained(before, lesson, place)
    fresh = replace(training, optimizers=optimizers_of(training.workload, training.model, rule))
    return _limited(fresh, new), before, None


def _limited(training: Training, classes: tuple[int, ...]) -> Training:
    return replace(training, splits=of_classes(training.splits, classes))


def _train_data(splits: Splits) -> Any:
    assert splits.train is not None, "refused before: a workload without training data"
    return splits.train


def _pre_trained(before: Training, lesson: Lesson, place: Place) -> None:
    """Train all on the known classes, as long as the lesson; all ways of a seed begin with the same weights."""
    file = place.weights / f"{before.seed}.pt"
    if file.exists():
        before.model.load_state_dict(torch.load(file, map_location=before.device, weights_only=True))
        return
    for batch in itertools.islice(before.batches(), steps_of(lesson, before)):
        before.step(batch)
    place.weights.mkdir(exist_ok=True)
    unfinished = file.with_suffix(".part")
    torch.save(before.model.state_dict(), unfinished)
    unfinished.replace(file)
