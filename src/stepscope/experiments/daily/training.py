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
    refuse_without_accuracy,
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
    workload: Workload, routine: DailyTrainingOrders, seed: int, environment: TrainingEnvironment
) -> dict[str, Any]:
    """The cell of one seed: accuracy, time and energy by day. UsageError or DataUnavailable where it cannot be."""
    training = workload.prepare(routine.batch, routine.optimizer, routine.device, seed, routine.lr, routine.data)
    refuse_without_accuracy(training)
    shipped = _shipped(training, routine)
    before, days = _deal_images(training, routine, seed, 0.0 if shipped else _SHARE_BEFORE)
    pretrained = (
        _load_shipped(training, shipped) if shipped else _load_or_pretrain(training, before, routine, environment)
    )
    torch.manual_seed(seed)  # the same dropout, whether it was pre-trained here or before
    lessons = _images_to_train_by_day(days, routine, seed)
    ends = _steps_by_day(lessons, routine)
    done = _train_days(training, lessons, ends, routine, environment)
    return {
        "seed": seed, "batch": routine.batch, "replay": routine.replay, "data": asdict(training.data),
        "pretrained": pretrained, "days": list(_evaluation_rows(done, ends, lessons)),
        "energy_kind": done.energy_kind, "energy_note": done.energy_note, "energy_gap": done.gap,
        "background": done.background,
    }  # fmt: skip


def _shipped(training: Training, routine: DailyTrainingOrders) -> Weights | None:
    """Return the weights that ship for this network where all pictures of the data are new to them."""
    found = packaged.WEIGHTS.get(training.workload.name)
    return found if found is not None and routine.start is None and found.new == training.data.name else None


def _load_shipped(training: Training, shipped: Weights) -> dict[str, Any]:
    """Load them; what is said of a pre-training here is said of theirs."""
    training.model.load_state_dict(packaged.shipped_weights(training.workload.name))
    return {"shipped": shipped.trained_on, "accuracy": shipped.accuracy, "looked_at": training.data.test_size}


def _deal_images(
    training: Training, routine: DailyTrainingOrders, seed: int, share_before: float
) -> tuple[list[int], list[list[int]]]:
    """(numbers of the images that are pre-trained on, those of each day); all of them differ."""
    total = training.data.train_size
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed)).tolist()
    before = int(share_before * total)
    wanted = routine.days * routine.images
    if before + wanted > total:
        most = (total - before) // routine.images
        hint = f"--days {most} or less" if most else f"--images {total - before} or less"
        raise UsageError(f"{total} training images are too few for {routine.days} days of {routine.images}", hint)
    rest = order[before : before + wanted]
    if routine.order == "classes":
        labels = labels_of(_images(training))
        rest.sort(key=lambda number: int(labels[number]))
    return order[:before], [rest[day * routine.images :][: routine.images] for day in range(routine.days)]


def _images_to_train_by_day(days: Sequence[Sequence[int]], routine: DailyTrainingOrders, seed: int) -> list[list[int]]:
    """Return what is trained on each day: the new images, and the older ones that are played again."""
    draw, reservoir, seen = random.Random(f"{seed}:replay"), list[int](), list[int]()
    lessons = []
    for new in days:
        older = {"none": [], "all": list(seen)}.get(routine.replay)
        if older is None:
            older = draw.sample(reservoir, min(len(reservoir), len(new)))
        lessons.append([*new, *older])
        for number in new:  # each image seen so far is in the reservoir with the same chance (Vitter's algorithm R)
            seen.append(number)
            if len(reservoir) < routine.keep:
                reservoir.append(number)
            elif (place := draw.randrange(len(seen))) < routine.keep:
                reservoir[place] = number
    return lessons


def _steps_by_day(lessons: Sequence[Sequence[int]], routine: DailyTrainingOrders) -> list[int]:
    """Return how many steps have been made when each day ends."""
    made, ends = 0, []
    for lesson in lessons:
        made += routine.passes * len(_chunks(lesson, routine.batch))
        ends.append(made)
    return ends


def _chunks(numbers: Sequence[int], size: int) -> list[Sequence[int]]:
    """Batches; a rest of one joins the batch before it, since batch normalisation cannot train on one sample."""
    found = [numbers[begin : begin + size] for begin in range(0, len(numbers), size)]
    if size > 1 and len(found) > 1 and len(found[-1]) == 1:
        found[-2:] = [[*found[-2], *found[-1]]]
    return found


def _train_days(
    training: Training,
    lessons: Sequence[Sequence[int]],
    ends: Sequence[int],
    routine: DailyTrainingOrders,
    environment: TrainingEnvironment,
) -> TrainingRecord:
    images = _images(training)

    def batches() -> Iterator[Batch]:
        for day, lesson in enumerate(lessons):
            for time in range(routine.passes):
                shuffled = random.Random(f"{training.seed}:{day}:{time}").sample(lesson, len(lesson))
                for chunk in _chunks(shuffled, routine.batch):
                    yield tuple(default_collate([images[number] for number in chunk]))

    return train_in_session(
        training,
        batches(),
        environment.settings(training),
        lambda number, batch: training.step(batch),
        lambda: {"accuracy": accuracy_of(training, routine.test_samples)},
        lambda made: made in set(ends),
    )


def _evaluation_rows(
    done: TrainingRecord, ends: Sequence[int], lessons: Sequence[Sequence[int]]
) -> Iterator[dict[str, Any]]:
    yield {"day": 0, "accuracy": done.looks[0].seen["accuracy"], "time_s": None, "energy_j": None, "trained_on": 0}
    for day, (look, begin) in enumerate(zip(done.looks[1:], (0, *ends), strict=False), 1):
        yield {
            "day": day,
            "accuracy": look.seen["accuracy"],
            "time_s": done.seconds(look.steps, begin),
            "energy_j": done.joules(look.steps, begin),
            "trained_on": len(lessons[day - 1]),
        }


def _load_or_pretrain(
    training: Training, images: Sequence[int], routine: DailyTrainingOrders, environment: TrainingEnvironment
) -> dict[str, Any]:
    """Pre-train with the workload's own batch, once for all settings of a seed, and load that model.

    Returns how it ended: images trained on, steps, accuracy (0 to 1) on `looked_at` images that were not, and whether
    that had stopped rising.
    """
    file = environment.weights / f"{training.seed}.pt"
    if not file.exists():
        workload = training.workload
        first = workload.prepare(None, routine.optimizer, routine.device, training.seed, routine.lr, routine.data)
        ended = _pretrain(first, images, routine.start)
        environment.weights.mkdir(exist_ok=True)
        with atomic_write(file) as part:
            torch.save({"model": first.model.state_dict(), "ended": ended}, part)
    kept = torch.load(file, map_location=training.device, weights_only=True)
    training.model.load_state_dict(kept["model"])
    return dict(kept["ended"])


def _pretrain(training: Training, images: Sequence[int], start: float | None) -> dict[str, Any]:
    """Train until the accuracy is `start`, or rises no more; UsageError where `start` is not reached."""
    whole, looked_at = _images(training), max(int(_SHARE_LOOKED_AT * len(images)), 1)
    seen, unseen = Subset(whole, list(images[looked_at:])), Subset(whole, list(images[:looked_at]))
    facts = replace(training.data, train_size=len(seen), test_size=len(unseen))
    splits = replace(training.splits, facts=facts, train=seen, test=unseen)
    part = replace(training, splits=splits, batch_size=min(training.batch_size, len(seen)))
    epoch = max(len(seen) // part.batch_size, 1)
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
    ended = {"images": len(seen), "looked_at": looked_at, "steps": steps, "accuracy": accuracy}
    return {**ended, "plateau": steps - rose_at >= PATIENCE * epoch}


def _images(training: Training) -> Dataset[Batch]:
    assert training.splits.train is not None, "refused before: a workload without training data"
    return training.splits.train
