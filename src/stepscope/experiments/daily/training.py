"""One model over all days with one seed: pre-trained, trained on each day's new images, and evaluated each evening."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch.utils.data import Dataset, Subset, default_collate

from stepscope import workloads
from stepscope.errors import UsageError
from stepscope.experiments.daily.study import PATIENCE, RISE, DailyTrainingOrders
from stepscope.experiments.engine.child import Orders
from stepscope.experiments.engine.training import (
    TrainingEnvironment,
    TrainingRecord,
    accuracy_of,
    prepare_classifier,
    train_in_session,
    training_environment,
)
from stepscope.experiments.partial.training import labels_of
from stepscope.files import atomic_write
from stepscope.workloads.contract import Batch, Training, Workload
from stepscope.workloads.data import packaged
from stepscope.workloads.data.packaged import Weights

_LOOKS = 4  # at the accuracy in each epoch of the pre-training
_SHARE_LOOKED_AT = 0.1  # of its images: they are not trained on, and are not those that the days are judged by
_MOST_EPOCHS = 60
_SHARE_BEFORE = 0.5  # of the training images: the days have the rest to themselves


def train_point(orders: Orders) -> dict[str, Any]:
    """Train one setting with one seed, as a task of the engine."""
    with training_environment(orders) as environment:
        return train_all_days(
            workloads.find(orders["workload"]), DailyTrainingOrders(**orders["routine"]), orders["seed"], environment
        )


def train_all_days(
    workload: Workload, orders: DailyTrainingOrders, seed: int, environment: TrainingEnvironment
) -> dict[str, Any]:
    """The cell of one seed: accuracy, time and energy by day. UsageError or DataUnavailable where it cannot be."""
    training = prepare_classifier(workload, orders, seed)
    shipped = _shipped_weights(training, orders)
    before, days = _deal_images(training, orders, seed, 0.0 if shipped else _SHARE_BEFORE)
    pretrained = (
        _load_shipped(training, shipped) if shipped else _load_or_pretrain(training, before, orders, environment)
    )
    torch.manual_seed(seed)  # the same dropout, whether it was pre-trained here or before
    images_by_day = _images_to_train_by_day(days, orders, seed)
    ends = _steps_by_day(images_by_day, orders)
    record = _train_days(training, images_by_day, ends, orders, environment)
    return {
        "seed": seed, "batch": orders.batch, "replay": orders.replay, "data": asdict(training.data),
        "pretrained": pretrained, "days": list(_evaluation_rows(record, ends, images_by_day)),
        "energy_kind": record.energy_kind, "energy_note": record.energy_note, "energy_gap": record.gap,
        "background": record.background,
    }  # fmt: skip


def _shipped_weights(training: Training, orders: DailyTrainingOrders) -> Weights | None:
    """Return the weights that ship for this network where all pictures of the data are new to them."""
    weights = packaged.WEIGHTS.get(training.workload.name)
    return weights if weights is not None and orders.start is None and weights.new == training.data.name else None


def _load_shipped(training: Training, shipped: Weights) -> dict[str, Any]:
    """Load them; what is said of a pre-training here is said of theirs."""
    training.model.load_state_dict(packaged.shipped_weights(training.workload.name))
    return {"shipped": shipped.trained_on, "accuracy": shipped.accuracy, "looked_at": training.data.test_size}


def _deal_images(
    training: Training, orders: DailyTrainingOrders, seed: int, share_before: float
) -> tuple[list[int], list[list[int]]]:
    """(numbers of the images that are pre-trained on, those of each day); all of them differ."""
    total = training.data.train_size
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed)).tolist()
    before = int(share_before * total)
    count = orders.days * orders.images
    if before + count > total:
        most = (total - before) // orders.images
        hint = f"--days {most} or less" if most else f"--images {total - before} or less"
        raise UsageError(f"{total} training images are too few for {orders.days} days of {orders.images}", hint)
    dealt = order[before : before + count]
    if orders.order == "classes":
        labels = labels_of(_images(training))
        dealt.sort(key=lambda number: int(labels[number]))
    return order[:before], [dealt[day * orders.images :][: orders.images] for day in range(orders.days)]


def _images_to_train_by_day(days: Sequence[Sequence[int]], orders: DailyTrainingOrders, seed: int) -> list[list[int]]:
    """Return what is trained on each day: the new images, and the older ones that are played again."""
    draw, reservoir, former = random.Random(f"{seed}:replay"), list[int](), list[int]()
    images_by_day = []
    for new in days:
        older = {"none": [], "all": list(former)}.get(orders.replay)
        if older is None:
            older = draw.sample(reservoir, min(len(reservoir), len(new)))
        images_by_day.append([*new, *older])
        for number in new:  # each image seen so far is in the reservoir with the same chance (Vitter's algorithm R)
            former.append(number)
            if len(reservoir) < orders.keep:
                reservoir.append(number)
            elif (place := draw.randrange(len(former))) < orders.keep:
                reservoir[place] = number
    return images_by_day


def _steps_by_day(images_by_day: Sequence[Sequence[int]], orders: DailyTrainingOrders) -> list[int]:
    steps, ends = 0, []
    for images in images_by_day:
        steps += orders.passes * len(_batches_of(images, orders.batch))
        ends.append(steps)
    return ends


def _batches_of(numbers: Sequence[int], size: int) -> list[Sequence[int]]:
    """Batches; a rest of one joins the batch before it, since batch normalisation cannot train on one sample."""
    chunks = [numbers[begin : begin + size] for begin in range(0, len(numbers), size)]
    if size > 1 and len(chunks) > 1 and len(chunks[-1]) == 1:
        chunks[-2:] = [[*chunks[-2], *chunks[-1]]]
    return chunks


def _train_days(
    training: Training,
    images_by_day: Sequence[Sequence[int]],
    ends: Sequence[int],
    orders: DailyTrainingOrders,
    environment: TrainingEnvironment,
) -> TrainingRecord:
    images = _images(training)

    def batches() -> Iterator[Batch]:
        for day, numbers in enumerate(images_by_day):
            for time in range(orders.passes):
                shuffled = random.Random(f"{training.seed}:{day}:{time}").sample(numbers, len(numbers))
                for chunk in _batches_of(shuffled, orders.batch):
                    yield tuple(default_collate([images[number] for number in chunk]))

    return train_in_session(
        training,
        batches(),
        environment.settings(training),
        lambda number, batch: training.step(batch),
        lambda: {"accuracy": accuracy_of(training, orders.test_samples)},
        lambda steps: steps in set(ends),
    )


def _evaluation_rows(
    record: TrainingRecord, ends: Sequence[int], images_by_day: Sequence[Sequence[int]]
) -> Iterator[dict[str, Any]]:
    first = record.evaluations[0].metrics["accuracy"]
    yield {"day": 0, "accuracy": first, "time_s": None, "energy_j": None, "trained_on": 0}
    for day, (evaluation, begin) in enumerate(zip(record.evaluations[1:], (0, *ends), strict=False), 1):
        yield {
            "day": day,
            "accuracy": evaluation.metrics["accuracy"],
            "time_s": record.seconds(evaluation.steps, begin),
            "energy_j": record.joules(evaluation.steps, begin),
            "trained_on": len(images_by_day[day - 1]),
        }


def _load_or_pretrain(
    training: Training, images: Sequence[int], orders: DailyTrainingOrders, environment: TrainingEnvironment
) -> dict[str, Any]:
    """Pre-train with the workload's own batch, once for all settings of a seed, and load that model.

    Returns how it ended: images trained on, steps, accuracy (0 to 1) on `looked_at` images that were not, and whether
    that had stopped rising.
    """
    file = environment.weights / f"{training.seed}.pt"
    if not file.exists():
        first = training.workload.prepare(None, orders.optimizer, orders.device, training.seed, orders.lr, orders.data)
        ended = _pretrain(first, images, orders.start)
        environment.weights.mkdir(exist_ok=True)
        with atomic_write(file) as part:
            torch.save({"model": first.model.state_dict(), "ended": ended}, part)
    stored = torch.load(file, map_location=training.device, weights_only=True)
    training.model.load_state_dict(stored["model"])
    return dict(stored["ended"])


def _pretrain(training: Training, images: Sequence[int], start: float | None) -> dict[str, Any]:
    """Train until the accuracy is `start`, or rises no more; UsageError where `start` is not reached."""
    whole, looked_at = _images(training), max(int(_SHARE_LOOKED_AT * len(images)), 1)
    train, validation = Subset(whole, list(images[looked_at:])), Subset(whole, list(images[:looked_at]))
    facts = replace(training.data, train_size=len(train), test_size=len(validation))
    splits = replace(training.splits, facts=facts, train=train, test=validation)
    part = replace(training, splits=splits, batch_size=min(training.batch_size, len(train)))
    epoch = max(len(train) // part.batch_size, 1)
    every, best, rose_at, steps, accuracy = max(epoch // _LOOKS, 1), 0.0, 0, 0, 0.0
    for steps, batch in enumerate(part.batches(), 1):
        part.step(batch)
        if steps % every:
            continue
        accuracy = accuracy_of(part)
        if accuracy >= best + RISE:
            best, rose_at = accuracy, steps
        plateau = steps - rose_at >= PATIENCE * epoch
        if (start is None and plateau) or (start is not None and accuracy >= start):
            break
        if steps >= _MOST_EPOCHS * epoch:
            if start is None:
                break
            text = f"{_MOST_EPOCHS} epochs ({steps} steps) did not bring '{training.workload.name}' to {start:.0%}"
            raise UsageError(text, "ask for a lower --start, or another --lr or --optimizer")
    ended = {"images": len(train), "looked_at": looked_at, "steps": steps, "accuracy": accuracy}
    return {**ended, "plateau": steps - rose_at >= PATIENCE * epoch}


def _images(training: Training) -> Dataset[Batch]:
    assert training.splits.train is not None, "refused before: a workload without training data"
    return training.splits.train
