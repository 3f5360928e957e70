"""Trainings that a change breaks, or that keep state where nobody would look: tuned in their loop they go on as before.

Written from the documentation of tune, by someone who had not read it.
"""

from __future__ import annotations

import collections
import contextlib
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.patience import HANG_S
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import stepscope
from stepscope.errors import UsageError
from stepscope.experiments.tune.block_runner import LocalTraining, runner_for_loop
from stepscope.experiments.tune.changes import all_changes
from stepscope.experiments.tune.process import TrainingEnded
from stepscope.experiments.tune.training import Targets


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other while other tests compute take seconds a step."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Product(torch.autograd.Function):
    """A product whose backward is the user's own, and which views its weight."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(values, weight)
        return values @ weight.view(weight.shape[0], -1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        values, weight = ctx.saved_tensors
        return gradient @ weight.t(), values.t() @ gradient


class Remembering(nn.Module):
    """A network that breaks with channels_last (`view`), and remembers in lists, dictionaries and tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 4, 3, padding=1)
        self.weight = nn.Parameter(torch.randn(64, 10) * 0.1)
        self.dropout = nn.Dropout(0.2)
        self.calls, self.history, self.counts = 0, [0], collections.Counter({"calls": 0})
        self.cache: dict[str, Any] = {"mean": torch.zeros(1), "all": [torch.zeros(1)]}
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(2), persistent=False)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.history.append(self.calls)
        self.counts["calls"] += 1
        self.cache["all"][0] += pictures.mean()
        self.cache["mean"] = pictures.mean().detach()
        self.cache["late"] = self.calls
        self.seen = self.seen + 1
        self.fresh = getattr(self, "fresh", 0) + 1  # an attribute that it did not have
        values = self.dropout(self.layer(pictures).view(len(pictures), -1))
        product: torch.Tensor = Product.apply(values[:, :64], self.weight)  # type: ignore[no-untyped-call]
        return product

    def remembered(self) -> str:
        return repr(
            [self.calls, self.history, self.counts, self.cache, self.seen, getattr(self, "fresh", None)],
        )


class Training:
    """A training with batches, and what else its step changes."""

    def __init__(self, kind: str) -> None:
        self.others: list[Any] = []
        self.batches: Any = [(torch.randn(4, 1, 8, 8), torch.randint(0, 10, (4,))) for _ in range(3)]
        self.kind, self.step = kind, self._step
        normed = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)]
        self.model: Any = nn.Sequential(*normed) if kind not in ("remembering", "two") else Remembering()
        makes: Callable[[Any], Any] = {
            "momentum": lambda weights: torch.optim.SGD(weights, lr=0.01, momentum=0.9),
            "lbfgs": lambda weights: torch.optim.LBFGS(weights, max_iter=3),
        }.get(kind, lambda weights: torch.optim.AdamW(weights, amsgrad=True))
        self.optimizer: Any = makes(self.model.parameters())
        getattr(self, f"_{kind}", lambda: None)()

    def _scheduler(self) -> None:
        self.others.append(torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.1, total_steps=10_000))

    def _average(self) -> None:
        average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)  # type: ignore[no-untyped-call]
        self.others.append(torch.optim.swa_utils.AveragedModel(self.model, multi_avg_fn=average))

    def _scaler(self) -> None:
        self.others.append(torch.amp.GradScaler("cpu", growth_interval=2))

    def _generator(self) -> None:
        self.others += [torch.Generator().manual_seed(5), [0], torch.zeros(1)]

    def _two(self) -> None:
        self.model = [self.model, nn.Linear(10, 10)]
        self.optimizer = [self.optimizer, torch.optim.SGD(self.model[1].parameters(), lr=0.1, momentum=0.9)]

    def _workers(self) -> None:
        generator = torch.Generator().manual_seed(3)
        data = TensorDataset(torch.randn(48, 1, 8, 8), torch.arange(48) % 10)
        self.batches = DataLoader(
            data, 4, shuffle=True, generator=generator, num_workers=1, persistent_workers=True, prefetch_factor=2
        )
        self.drawn = generator

    def _step(self, batch: Any) -> torch.Tensor:
        pictures, labels = batch
        models = self.model if isinstance(self.model, list) else [self.model]
        optimizers = self.optimizer if isinstance(self.optimizer, list) else [self.optimizer]
        if self.kind == "generator":
            generator, count, total = self.others
            pictures = pictures + torch.randn(pictures.shape, generator=generator) + random.random()
            pictures += float(np.random.rand())
            count[0] += 1
            total += 1

        def close() -> torch.Tensor:
            for optimizer in optimizers:
                optimizer.zero_grad()
            values = pictures
            for model in models:
                values = model(values)
            loss: Any = functional.cross_entropy(values, labels)
            scaler = self.others[0] if self.kind == "scaler" else None
            (scaler.scale(loss) if scaler else loss).backward()
            return loss  # type: ignore[no-any-return]

        if self.kind == "lbfgs":
            return optimizers[0].step(close).detach()  # type: ignore[no-any-return]
        loss = close()
        for optimizer in optimizers:
            if self.kind == "scaler":
                self.others[0].step(optimizer)
                self.others[0].update()
            else:
                optimizer.step()
        if self.kind == "scheduler":
            self.others[0].step()
        if self.kind == "average":
            self.others[0].update_parameters(self.model)
        return loss.detach()

    def state(self) -> str:
        """Return everything that a step changes, as text with all digits."""
        torch.set_printoptions(precision=12, threshold=1_000_000)  # type: ignore[no-untyped-call]
        models = self.model if isinstance(self.model, list) else [self.model]
        optimizers = self.optimizer if isinstance(self.optimizer, list) else [self.optimizer]
        others = [o.state_dict() if hasattr(o, "state_dict") else o for o in self.others if not _generates(o)]
        try:
            return repr(
                [
                    *(model.state_dict() for model in models), *(o.state_dict() for o in optimizers), others,
                    *([p.grad for p in model.parameters()] for model in models),
                    *(o.get_state() for o in (*self.others, getattr(self, "drawn", None)) if _generates(o)),
                    *(model.remembered() for model in models if isinstance(model, Remembering)),
                    random.getstate(), np.random.get_state(), torch.get_rng_state().tolist(),
                ]
            )  # fmt: skip
        finally:
            torch.set_printoptions(profile="default")  # type: ignore[no-untyped-call]


def _generates(other: Any) -> bool:
    return isinstance(other, torch.Generator)


def _tried(training: Training) -> None:
    """Make blocks with every change that applies, as tune does in a loop; one that breaks the step is a result."""
    models, optimizers = (
        tuple(made) if isinstance(made, list) else (made,) for made in (training.model, training.optimizer)
    )
    targets = Targets(models, optimizers)
    place = LocalTraining(runner_for_loop(training.step, training.batches, targets, tuple(training.others), 2))
    names = [change.name for change in all_changes(place.ask(9, do="facts")).values() if not change.refused]
    live = {"channels_last", "bf16", "fused", "foreach", "flush-denormals", "matmul=medium", "workers=1"}
    for name in live & set(names):
        with contextlib.suppress(TrainingEnded):
            place.ask(9, do="block", changes=[name], warmup=1, steps=2)
            place.ask(9, do="losses", changes=[name], steps=2)
    place.ask(9, do="memory", changes=[])


def _went(kind: str, tuned: bool) -> tuple[list[float], str]:
    """Return losses and state of some steps, in the midst of which it may be tuned."""
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    training = Training(kind)
    losses = []
    for place, batch in enumerate(iter(training.batches)):
        losses.append(float(training.step(batch)))
        if tuned and place == 1:
            _tried(training)
    return losses, training.state()


KINDS = ("scheduler", "average", "scaler", "generator", "two", "remembering", "momentum", "lbfgs", "workers")


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_that_was_tuned_in_its_loop_goes_on_bit_by_bit_as_one_that_was_not(kind: str) -> None:
    assert _went(kind, True) == _went(kind, False)


def test_libraries_that_tune_imports_draw_none_of_the_trainings_random_numbers(tmp_path: Path) -> None:
    code = """
import random, sys
import torch, stepscope
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def step(batch):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
step(torch.ones(4, 2))
before = random.getstate()
batch, out = torch.ones(4, 2), sys.argv[1]
stepscope.tune(step, [batch], model=model, optimizer=optimizer, minutes=1e-3, only=["foreach"], out=out)
assert random.getstate() == before
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")], check=True, timeout=HANG_S)


@pytest.fixture
def breaking() -> tuple[Any, ...]:
    model = Remembering()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss: Any = functional.cross_entropy(model(batch), torch.zeros(4, dtype=torch.long))
        loss.backward()
        optimizer.step()
        return loss  # type: ignore[no-any-return]

    return step, [torch.randn(4, 1, 8, 8)], model, optimizer


def test_a_change_with_which_the_users_step_raises_is_a_result_and_the_others_go_on(
    breaking: tuple[Any, ...],
) -> None:
    step, batches, model, optimizer = breaking
    place = LocalTraining(runner_for_loop(step, batches, Targets((model,), (optimizer,)), (), 1))
    with pytest.raises(TrainingEnded, match="with it the step raises RuntimeError: view size is not compatible"):
        place.ask(9, do="block", changes=["channels_last"], warmup=0, steps=1)
    assert model.layer.weight.is_contiguous()
    assert len(place.ask(9, do="block", changes=["foreach"], warmup=0, steps=2)["seconds"]) == 2


def test_what_nobody_can_put_back_is_refused_before_a_step(breaking: tuple[Any, ...], tmp_path: Path) -> None:
    step, batches, model, optimizer = breaking
    with pytest.raises(UsageError, match="others: 'object' cannot be put back"):
        stepscope.tune(step, batches, model=model, optimizer=optimizer, others=[object()], out=tmp_path)
    assert model.calls == 0


def test_a_step_that_takes_more_than_a_batch_is_refused_with_the_way_to_write_it(breaking: tuple[Any, ...]) -> None:
    _, batches, model, optimizer = breaking

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        raise AssertionError

    with pytest.raises(UsageError, match=r"'step' cannot be called with one batch \(missing .*'targets'\)"):
        stepscope.tune(step, batches, model=model, optimizer=optimizer)  # type: ignore[arg-type]
