"""Daily training: a model that knows some of its task, a few new images every day, its accuracy each evening."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepscope.errors import DataUnavailable, UsageError
from stepscope.studies.measured_training import accuracy_of

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from stepscope.workloads.contract import Training, Workload
    from stepscope.workloads.data.source import Batch

_EVERY = 2  # steps of the pre-training between two looks at its accuracy
_LOOKED_AT = 1000  # test images for that; the days are judged on all of them
_MOST_STEPS = 2000
_SHARE_BEFORE = 0.5  # of the training images: the days have the rest to themselves


@dataclass(frozen=True)
class Daily:
    """The scenario: pre-trained to `start` (as the paper's 60.65 %), then `images` new ones each day, seen once."""

    workload: str = "lenet"
    days: int = 17
    images: int = 64
    start: float = 0.6
    batches: tuple[int, ...] = (16,)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


def daily(workload: Workload, scenario: Daily) -> Iterator[dict[str, Any]]:
    """A row a seed, batch and day: seed, batch, day, accuracy on the whole test data; day 0 is before the first day.

    DataUnavailable where its data is not real, UsageError where there are too few images or it does not get so far.
    """
    for batch in scenario.batches:
        for seed in scenario.seeds:
            for day, accuracy in enumerate(_evenings(workload, scenario, batch, seed)):
                yield {"seed": seed, "batch": batch, "day": day, "accuracy": accuracy}


def _evenings(workload: Workload, scenario: Daily, batch: int, seed: int) -> Iterator[float]:
    import torch
    from torch.utils.data import Subset

    training = workload.prepare(batch=batch, seed=seed)
    train = training.splits.train
    if train is None or training.data.kind == "synthetic":
        raise DataUnavailable(
            f"'{workload.name}' has no real images here: accuracy would say nothing", "stepscope data"
        )
    order = torch.randperm(training.data.train_size, generator=torch.Generator().manual_seed(seed)).tolist()
    before = int(_SHARE_BEFORE * len(order))
    if before + scenario.days * scenario.images > len(order):
        most = (len(order) - before) // scenario.images
        raise UsageError(f"{len(order)} training images are too few for {scenario.days} days", f"--days {most} or less")
    _pre_train(training, Subset(train, order[:before]), scenario.start)
    yield accuracy_of(training)
    for day in range(scenario.days):
        begin = before + day * scenario.images
        for images in _batches(Subset(train, order[begin : begin + scenario.images]), batch, seed + day):
            training.step(images)
        yield accuracy_of(training)


def _pre_train(training: Training, images: Dataset[Batch], start: float) -> None:
    steps, passes = 0, 0
    while steps < _MOST_STEPS:
        for batch in _batches(images, training.batch_size, training.seed + 1000 + passes):
            training.step(batch)
            steps += 1
            if steps % _EVERY == 0 and accuracy_of(training, _LOOKED_AT) >= start:
                return
        passes += 1
    raise UsageError(
        f"{steps} steps did not bring '{training.workload.name}' to {start:.0%}", "ask for a lower --start"
    )


def _batches(images: Dataset[Batch], size: int, seed: int) -> Iterator[Batch]:
    """Shuffled, the last one smaller where they do not divide."""
    import torch
    from torch.utils.data import DataLoader

    shuffle = torch.Generator().manual_seed(seed)
    yield from DataLoader(images, batch_size=size, shuffle=True, generator=shuffle, num_workers=0)
