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
from stepscope.experiments.daily.study import Routine
from stepscope.experiments.engine.child import Orders
from stepscope.experiments.engine.training import (
    Place,
    TrainingRecord,
    accuracy_of,
    refuse_without_accuracy,
    train_in_session,
    training_place,
)
from stepscope.experiments.partial.training import labels_of
from stepscope.files import replaced
from stepscope.workloads.contract import Batch, Training, Workload

_EVERY = 2  # steps of the pre-training between two looks at its accuracy
_EVALUATION_IMAGES = 1000  # test images for that; the days are judged on all of them
_MOST_STEPS = 2000
_SHARE_BEFORE = 0.5  # of the training images: the days have the rest to themselves


def train_point(orders: Orders) -> dict[str, Any]:
    """Train one setting with one seed, as a task of the engine."""
    with training_place(orders) as place:
        return train_life(workloads.find(orders["workload"]), Routine(**orders["routine"]), orders["seed"], place)


def train_life(workload: Workload, routine: Routine, seed: int, place: Place) -> dict[str, Any]:
    """The cell of one seed: accuracy, time and energy by day. UsageError or DataUnavailable where it cannot be."""
    training = workload.prepare(routine.batch, routine.optimizer, routine.device, seed, routine.lr, routine.data)
    refuse_without_accuracy(training)
    before, days = _deal_images(training, routine, seed)
    _load_pretrained(training, before, routine, place)
    torch.manual_seed(seed)  # the same dropout, whether it was pre-trained here or before
    lessons = _lessons(days, routine, seed)
    ends = _steps_by_day(lessons, routine)
    done = _train_days(training, lessons, ends, routine, place)
    return {
        "seed": seed, "batch": routine.batch, "replay": routine.replay, "data": asdict(training.data),
        "pretrained_on": len(before), "days": list(_evenings(done, ends, lessons)),
        "energy_kind": done.energy_kind, "energy_note": done.energy_note, "energy_gap": done.gap,
    }  # fmt: skip


def _deal_images(training: Training, routine: Routine, seed: int) -> tuple[list[int], list[list[int]]]:
    """(numbers of the images that are pre-trained on, those of each day); all of them differ."""
    total = training.data.train_size
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed)).tolist()
    before = int(_SHARE_BEFORE * total)
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


def _lessons(days: Sequence[Sequence[int]], routine: Routine, seed: int) -> list[list[int]]:
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


def _steps_by_day(lessons: Sequence[Sequence[int]], routine: Routine) -> list[int]:
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
    training: Training, lessons: Sequence[Sequence[int]], ends: Sequence[int], routine: Routine, place: Place
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
        place.settings(training),
        lambda number, batch: training.step(batch),
        lambda: {"accuracy": accuracy_of(training)},
        lambda made: made in set(ends),
    )


def _evenings(done: TrainingRecord, ends: Sequence[int], lessons: Sequence[Sequence[int]]) -> Iterator[dict[str, Any]]:
    yield {"day": 0, "accuracy": done.looks[0].seen["accuracy"], "time_s": None, "energy_j": None, "trained_on": 0}
    for day, (look, begin) in enumerate(zip(done.looks[1:], (0, *ends), strict=False), 1):
        yield {
            "day": day,
            "accuracy": look.seen["accuracy"],
            "time_s": done.seconds(look.steps, begin),
            "energy_j": done.joules(look.steps, begin),
            "trained_on": len(lessons[day - 1]),
        }


def _load_pretrained(training: Training, images: Sequence[int], routine: Routine, place: Place) -> None:
    """Train to the accuracy asked for with the workload's own batch; all settings of a seed begin with one model."""
    file = place.weights / f"{training.seed}.pt"
    if not file.exists():
        workload = training.workload
        first = workload.prepare(None, routine.optimizer, routine.device, training.seed, routine.lr, routine.data)
        _train_to(first, Subset(_images(first), list(images)), routine.start)
        place.weights.mkdir(exist_ok=True)
        with replaced(file) as part:
            torch.save(first.model.state_dict(), part)
    training.model.load_state_dict(torch.load(file, map_location=training.device, weights_only=True))


def _train_to(training: Training, images: Dataset[Batch], start: float) -> None:
    part = replace(training, splits=replace(training.splits, train=images))
    for steps, batch in enumerate(part.batches(), 1):
        part.step(batch)
        if steps % _EVERY == 0 and accuracy_of(part, _EVALUATION_IMAGES) >= start:
            return
        if steps >= _MOST_STEPS:
            said = f"{steps} steps did not bring '{training.workload.name}' to {start:.0%}"
            raise UsageError(said, "ask for a lower --start, or another --lr or --optimizer")


def _images(training: Training) -> Dataset[Batch]:
    assert training.splits.train is not None, "refused before: a workload without training data"
    return training.splits.train
