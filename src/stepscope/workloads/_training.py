"""A workload in training: what a loop needs, and nothing of the loop."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, Subset

from stepscope.workloads.data.source import Batch, DataFacts, Splits

if TYPE_CHECKING:
    from stepscope.workloads.contract import Workload


@dataclass(frozen=True)
class Training:
    """Model, optimizers and data, ready to train.

    `counters` is what the workload itself counts while it trains (emulator frames, episodes), cumulative.
    """

    workload: Workload
    model: nn.Module
    optimizers: tuple[Optimizer, ...]
    batch_size: int
    device: torch.device
    seed: int
    splits: Splits
    counters: dict[str, float] = field(default_factory=dict)

    @property
    def optimizer(self) -> Optimizer:
        """The first optimizer, for most workloads the only one."""
        return self.optimizers[0]

    @property
    def data(self) -> DataFacts:
        return self.splits.facts

    def batches(self) -> Iterator[Batch]:
        """Training batches without end: shuffled and on the host, or made by the training itself (an emulator)."""
        if self.workload.stream is not None:
            return self.workload.stream(self)
        assert self.splits.train is not None, "a workload without a stream of its own has training data"
        loader = self._loader(self.splits.train, shuffle=True, drop_last=True)
        return itertools.chain.from_iterable(itertools.repeat(loader))

    def loss(self, batch: Batch) -> Tensor:
        """Forward and loss of one batch, moved to the device; never waits for the result."""
        return self.workload.loss(self.model, self.moved(batch))

    def step(self, batch: Batch) -> Tensor:
        """One training step: the workload's own, or one update of the optimizer; returns the detached loss."""
        if self.workload.step is not None:
            return self.workload.step(self, self.moved(batch))
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()

    def evaluate(self, samples: int | None = None) -> float | None:
        """Accuracy on the test data (or its first `samples`), 0 to 1; null without any, or where data is not real."""
        correct, test = self.workload.correct, self.splits.test
        if correct is None or test is None or self.data.kind == "synthetic":
            return None
        size = min(self.data.test_size, samples or self.data.test_size)
        part = test if size == self.data.test_size else Subset(test, range(size))
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                right = sum(float(correct(self.model, self.moved(batch))) for batch in self._loader(part))
        finally:
            self.model.train(was_training)
        return right / size

    def moved(self, batch: Batch) -> Batch:
        """The batch on the device of the training."""
        return tuple(tensor.to(self.device, non_blocking=True) for tensor in batch)

    def _loader(self, data: Dataset[Batch], **options: Any) -> DataLoader[Batch]:
        # Its own generator, so that reading data never moves the randomness of the model (dropout).
        # No worker processes: on small boards their fork is what runs out of memory.
        source = torch.Generator().manual_seed(self.seed)
        return DataLoader(data, batch_size=self.batch_size, num_workers=0, generator=source, **options)
