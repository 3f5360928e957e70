"""Contract of a workload: a model, its data and its training step; and a training of it, on a device that is here.

It knows nothing of measuring, and a training has what a loop needs, and nothing of the loop.

A file of this folder names its workloads in `WORKLOADS`; `Workload.prepare` makes one ready to train:

    training = stepscope.workloads.find("lenet").prepare(batch=64)
    for batch in training.batches():
        loss = training.step(batch)
"""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, Subset

from stepscope.errors import MissingDependency, UnknownName, UsageError
from stepscope.workloads._loss_bands import BANDS, NO_BAND, Band
from stepscope.workloads.data.source import Batch, DataFacts, DataKind, Source, Splits, best_present_source, find_source


def device_of(name: str) -> torch.device:
    """The torch device of this name, or an error that lists those present."""
    present = _device_counts()
    kind = name.partition(":")[0]
    if kind == "cuda" and kind not in present:
        built = "sees no GPU" if torch.version.cuda or torch.version.hip else "was built without CUDA"
        raise UsageError(f"device '{name}' is not here: this torch ({torch.__version__}) {built}", "--device cpu")
    if kind not in present:
        hint = f"present on this machine: {', '.join(present)}"
        raise UnknownName("device", name, present, f"{hint}; a board is simulated with --simulate")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UnknownName("device", name, present, f"present on this machine: {', '.join(present)}") from error
    if device.index is not None and device.index >= present[kind]:
        raise UsageError(f"there is no device '{name}'", f"this machine has {present[kind]} of the kind '{kind}'")
    return device


def _device_counts() -> dict[str, int]:
    """Kinds of device that can train here, with how many there are."""
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    return {kind: count for kind, count in counts.items() if count}


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
        if len(loader) == 0:
            few = f"fewer than {self.batch_size} training samples make no batch of that size"
            raise UsageError(f"{self.workload.name}: {few}", "give a smaller --batch, or more data")
        return itertools.chain.from_iterable(itertools.repeat(loader))

    def loss(self, batch: Batch) -> Tensor:
        """Forward and loss of one batch, moved to the device; never waits for the result."""
        return self.workload.loss(self.model, self.to_device(batch))

    def step(self, batch: Batch) -> Tensor:
        """One training step: the workload's own, or one update of the optimizer; returns the detached loss."""
        if self.workload.step is not None:
            return self.workload.step(self, self.to_device(batch))
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()

    def evaluate(self, samples: int | None = None) -> float | None:
        """Accuracy on the test data, 0 to 1; null without any, or where data is not real.

        `samples` looks at so many, spread evenly: folders of pictures are in the order of their classes.
        """
        correct, test = self.workload.correct, self.splits.test
        if correct is None or test is None or self.data.kind == "synthetic":
            return None
        size = min(self.data.test_size, samples or self.data.test_size)
        whole = self.data.test_size
        part = test if size == whole else Subset(test, [number * whole // size for number in range(size)])
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                right = sum(float(correct(self.model, self._prepare_evaluation(batch))) for batch in self._loader(part))
        finally:
            self.model.train(was_training)
        return right / size

    def _prepare_evaluation(self, batch: Batch) -> Batch:
        """A batch of the test data; on a CPU with channels innermost: 1 to 1.6x faster."""
        moved = self.to_device(batch)
        if self.device.type != "cpu":
            return moved
        return tuple(
            tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor for tensor in moved
        )

    def to_device(self, batch: Batch) -> Batch:
        """The batch on the device of the training."""
        return tuple(tensor.to(self.device, non_blocking=True) for tensor in batch)

    def _loader(self, data: Dataset[Batch], **options: Any) -> DataLoader[Batch]:
        # Its own generator, so that reading data never moves the randomness of the model (dropout).
        # No worker processes: on small boards their fork is what runs out of memory.
        source = torch.Generator().manual_seed(self.seed)
        return DataLoader(data, batch_size=self.batch_size, num_workers=0, generator=source, **options)


__all__ = [
    "HYPERPARAMETERS", "OPTIMIZERS", "TIERS", "Band", "Batch", "DataFacts", "DataKind", "Extra", "Published", "Source",
    "Splits", "Tier", "Training", "Workload", "rates",
]  # fmt: skip

Tier = Literal["smoke", "paper-2019", "paper-low-power", "edge"]
TIERS: tuple[Tier, ...] = ("smoke", "paper-2019", "paper-low-power", "edge")
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
}


def rates(sgd: float, momentum: float, adam: float, rmsprop: float) -> dict[str, dict[str, Any]]:
    """Return the arguments of each optimizer, from its learning rate; AdamW takes that of Adam."""
    return {
        "sgd": {"lr": sgd},
        "momentum": {"lr": momentum, "momentum": 0.9},
        "adam": {"lr": adam},
        "adamw": {"lr": adam},
        "rmsprop": {"lr": rmsprop},
    }


HYPERPARAMETERS = rates(sgd=0.1, momentum=0.02, adam=1e-3, rmsprop=5e-4)


@dataclass(frozen=True)
class Published:
    """A figure as a paper prints it, with our remark where it cannot be taken at face value."""

    quantity: str
    value: str
    source: str
    remark: str = ""


@dataclass(frozen=True)
class Extra:
    """A library that a workload needs beyond torch, and the extra of this package that brings it."""

    module: str
    extra: str


def all_trainable(model: nn.Module) -> tuple[Iterable[nn.Parameter], ...]:
    """One group of parameters, hence one optimizer: whatever takes a gradient."""
    return ([parameter for parameter in model.parameters() if parameter.requires_grad],)


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
    build: Callable[[], nn.Module]
    sources: tuple[Source, ...]  # in order of preference within a kind
    example: Callable[[int], Batch]  # a batch of so many samples, right in shape and type only: for counting
    loss: Callable[[nn.Module, Batch], Tensor]  # forward and loss; a scalar with a graph
    correct: Callable[[nn.Module, Batch], Tensor] | None = None  # how many samples are right, a scalar
    loss_name: str = "cross entropy"
    step: Callable[[Training, Batch], Tensor] | None = None  # where one update of one optimizer does not fit
    stream: Callable[[Training], Iterator[Batch]] | None = None  # where the training makes its own batches
    groups: Callable[[nn.Module], tuple[Iterable[nn.Parameter], ...]] = all_trainable  # an optimizer each
    own_data: Callable[[Path], Splits] | None = None  # from a file or folder of the user's
    hyperparameters: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: HYPERPARAMETERS)
    makers: Mapping[str, Callable[..., Optimizer]] = field(default_factory=lambda: OPTIMIZERS)
    tiers: tuple[Tier, ...] = ()
    least_batch: int = 1  # 2 where batch norm sees single values: of one sample there is no variance
    needs: tuple[Extra, ...] = ()
    published: tuple[Published, ...] = ()
    own_band: Band | None = None  # of a workload from another package; ours are in _loss_bands.py

    @property
    def data(self) -> Source:
        """Return the data it would be trained on here, by default."""
        return best_present_source(self.sources)

    @property
    def band(self) -> Band | None:
        """Return the band of its loss after some seeded steps; null where none was recorded."""
        return self.own_band or BANDS.get(self.name)

    @property
    def no_band(self) -> str | None:
        """Return why it has no band; null where it has one."""
        return None if self.band else NO_BAND.get(self.name, "none was recorded")

    def prepare(
        self,
        batch: int | None = None,
        optimizer: str | None = None,
        device: str = "cpu",
        seed: int = 0,
        lr: float | None = None,
        data: str | Path | None = None,
    ) -> Training:
        """Model, optimizers and data, ready to train; seeds torch's global generators, so that a run repeats.

        data: the name of one of `sources`, or a path of the user's; by default, the best that is on this machine.
        """
        size = self.default_batch if batch is None else batch
        rule = optimizer or self.default_optimizer
        self.refuse_small_batch(size)
        _refuse_bad_rate(lr)
        if rule not in self.hyperparameters:
            raise UnknownName("optimizer", rule, self.hyperparameters)
        place = device_of(device)
        self._refuse_missing()
        splits = self.loading_function(data)()
        if splits.train is not None and size > splits.facts.train_size:
            raise UsageError(
                f"a batch of {size} is larger than the {splits.facts.train_size} training samples of '{self.name}'",
                f"use --batch {splits.facts.train_size} or less",
            )
        torch.manual_seed(seed)
        model = self.build().to(place).train()
        values = {**self.hyperparameters[rule], **({} if lr is None else {"lr": lr})}
        optimizers = tuple(self.makers[rule](group, **values) for group in self.groups(model))
        return Training(self, model, optimizers, size, place, seed, splits)

    def loading_function(self, data: str | Path | None) -> Callable[[], Splits]:
        """Return what loads these data, as `prepare` takes them; an error where they are not there, before any work."""
        if data is None:
            return self.data.load
        names = {source.name for source in self.sources}
        if isinstance(data, Path) or (data not in names and Path(data).exists()):
            if self.own_data is None:
                raise UsageError(f"'{self.name}' takes no file or folder of your own", "leave the data out")
            return partial(self.own_data, Path(data))
        return find_source(self.sources, data).load

    def refuse_small_batch(self, batch: int) -> None:
        """Raise UsageError for a batch that no step can be made with."""
        if batch < self.least_batch:
            samples = "1 sample" if batch == 1 else f"{batch} samples"
            because = "" if batch < 1 else f" by '{self.name}': its batch norm needs more than one value a channel"
            raise UsageError(
                f"a batch of {samples} cannot be trained{because}", f"use --batch {self.least_batch} or more"
            )

    def _refuse_missing(self) -> None:
        for need in self.needs:
            if importlib.util.find_spec(need.module) is None:
                hint = f"pip install 'stepscope[{need.extra}]'"
                raise MissingDependency(f"'{self.name}' needs {need.module}, which is not installed", hint)


def _refuse_bad_rate(lr: float | None) -> None:
    if lr is not None and not (math.isfinite(lr) and lr > 0):
        raise UsageError(f"a learning rate of {lr} cannot be trained with", "use --lr with a number above 0")
