"""What a workload is: a model, its data and its training step. It knows nothing of measuring.

A file of this folder names its workloads in `WORKLOADS`; `Workload.prepare` makes one ready to train:

    training = stepscope.workloads.find("lenet").prepare(batch=64)
    for batch in training.batches():
        training.optimizer.zero_grad()
        training.loss(batch).backward()
        training.optimizer.step()
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from stepscope.errors import UnknownName, UsageError

Batch = tuple[Tensor, ...]  # of the same first dimension: samples
DataKind = Literal["real-full", "real-subset", "synthetic"]

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
}
HYPERPARAMETERS: dict[str, dict[str, float]] = {
    "sgd": {"lr": 0.1},
    "momentum": {"lr": 0.02, "momentum": 0.9},
    "adam": {"lr": 1e-3},
    "adamw": {"lr": 1e-3},
    "rmsprop": {"lr": 5e-4},
}


@dataclass(frozen=True)
class DataFacts:
    """Where the data of a workload comes from; only "real-*" data may report accuracy."""

    name: str
    kind: DataKind
    sha256: str  # of the content, not of the file
    licence: str
    origin: str
    train_size: int
    test_size: int


@dataclass(frozen=True)
class Splits:
    """Data sets of tuples of tensors; `test` is null where a workload has no accuracy."""

    train: Dataset[Batch]
    test: Dataset[Batch] | None
    facts: DataFacts


@dataclass(frozen=True)
class Published:
    """A figure as a paper prints it, with our remark where it cannot be taken at face value."""

    quantity: str
    value: str
    source: str
    remark: str = ""


@dataclass(frozen=True)
class Workload:
    """One entry of the suite; everything that can be known without training it."""

    name: str
    domain: str
    summary: str
    dominant_layer: str
    input_shape: tuple[int, ...]  # of one sample
    default_batch: int
    default_optimizer: str
    references: tuple[str, ...]
    data: DataFacts
    build: Callable[[], nn.Module]
    load: Callable[[], Splits]
    example: Callable[[int], Batch]  # a batch of so many samples, right in shape and type only: for counting
    loss: Callable[[nn.Module, Batch], Tensor]  # forward and loss; a scalar with a graph
    correct: Callable[[nn.Module, Batch], Tensor] | None = None  # how many samples are right, a scalar
    hyperparameters: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: HYPERPARAMETERS)
    published: tuple[Published, ...] = ()

    def prepare(
        self,
        batch: int | None = None,
        optimizer: str | None = None,
        device: str = "cpu",
        seed: int = 0,
        lr: float | None = None,
    ) -> Training:
        """Model, optimizer and data, ready to train; seeds torch's global generators, so that a run repeats."""
        size = self.default_batch if batch is None else batch
        rule = optimizer or self.default_optimizer
        _refuse_bad_numbers(size, lr)
        if rule not in self.hyperparameters:
            raise UnknownName("optimizer", rule, self.hyperparameters)
        place = _device(device)
        splits = self.load()
        if size > splits.facts.train_size:
            raise UsageError(
                f"a batch of {size} is larger than the {splits.facts.train_size} training samples of '{self.name}'",
                f"use --batch {splits.facts.train_size} or less",
            )
        torch.manual_seed(seed)
        model = self.build().to(place).train()
        values = {**self.hyperparameters[rule], **({} if lr is None else {"lr": lr})}
        return Training(self, model, OPTIMIZERS[rule](model.parameters(), **values), size, place, seed, splits)


@dataclass(frozen=True)
class Training:
    """A workload in training: what a loop needs, and nothing of the loop."""

    workload: Workload
    model: nn.Module
    optimizer: Optimizer
    batch_size: int
    device: torch.device
    seed: int
    splits: Splits

    @property
    def data(self) -> DataFacts:
        return self.splits.facts

    def batches(self) -> Iterator[Batch]:
        """Shuffled training batches without end, on the host; the same seed gives the same batches."""
        loader = self._loader(self.splits.train, shuffle=True, drop_last=True)
        return itertools.chain.from_iterable(itertools.repeat(loader))

    def loss(self, batch: Batch) -> Tensor:
        """Forward and loss of one batch, moved to the device; never waits for the result."""
        return self.workload.loss(self.model, self._moved(batch))

    def evaluate(self) -> float | None:
        """Accuracy on the test data, 0 to 1; null where the workload has none or its data is not real."""
        correct, test = self.workload.correct, self.splits.test
        if correct is None or test is None or self.data.kind == "synthetic":
            return None
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                right = sum(int(correct(self.model, self._moved(batch))) for batch in self._loader(test))
        finally:
            self.model.train(was_training)
        return right / self.data.test_size

    def _loader(self, data: Dataset[Batch], **options: Any) -> DataLoader[Batch]:
        # Its own generator, so that reading data never moves the randomness of the model (dropout).
        # No worker processes: on small boards their fork is what runs out of memory.
        source = torch.Generator().manual_seed(self.seed)
        return DataLoader(data, batch_size=self.batch_size, num_workers=0, generator=source, **options)

    def _moved(self, batch: Batch) -> Batch:
        return tuple(tensor.to(self.device, non_blocking=True) for tensor in batch)


def _refuse_bad_numbers(batch: int, lr: float | None) -> None:
    if batch < 1:
        raise UsageError(f"a batch of {batch} samples cannot be trained", "use --batch 1 or more")
    if lr is not None and not (math.isfinite(lr) and lr > 0):
        raise UsageError(f"a learning rate of {lr} cannot be trained with", "use --lr with a number above 0")


def _device(name: str) -> torch.device:
    """The torch device of this name, or an error that lists those present."""
    present = _devices()
    kind = name.partition(":")[0]
    if kind not in present:
        raise UnknownName("device", name, present, f"present on this machine: {', '.join(present)}")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UnknownName("device", name, present, f"present on this machine: {', '.join(present)}") from error
    if device.index is not None and device.index >= present[kind]:
        raise UsageError(f"there is no device '{name}'", f"this machine has {present[kind]} of the kind '{kind}'")
    return device


def _devices() -> dict[str, int]:
    """Kinds of device that can train here, with how many there are."""
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    return {kind: count for kind, count in counts.items() if count}
