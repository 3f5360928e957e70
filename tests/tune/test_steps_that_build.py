"""Steps that alter the structure of a training, or hold a state nobody named: after tuning all is as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

from stepscope.experiments.tune.block_runner import LocalTraining, runner_for_loop
from stepscope.experiments.tune.training import Targets


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = nn.Linear(8, 4), nn.ModuleList([nn.Linear(4, 1)])
        self.body.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(head(self.body(x)) for head in self.heads)  # type: ignore[no-any-return]


def _add_head(model: _Net, optimizer: torch.optim.Optimizer) -> None:
    model.heads.append(nn.Linear(4, 1))
    optimizer.add_param_group({"params": list(model.heads[-1].parameters())})


def _unfreeze(model: _Net, optimizer: torch.optim.Optimizer) -> None:
    if not model.body.weight.requires_grad:
        model.body.requires_grad_(True)
        optimizer.param_groups[0]["params"].extend(model.body.parameters())


def _hook(model: _Net, optimizer: torch.optim.Optimizer) -> None:
    model.body.register_forward_hook(lambda *_: None)
    optimizer.register_step_post_hook(lambda *_: None)


def _replace(model: _Net, optimizer: torch.optim.Optimizer) -> None:
    head = model.heads[0]
    assert isinstance(head, nn.Linear)
    head.weight = nn.Parameter(torch.zeros(1, 4))
    head.register_parameter("more", nn.Parameter(torch.zeros(2)))
    optimizer.param_groups = [{**optimizer.param_groups[0], "params": list(head.parameters())}]


def _freeze(model: _Net, optimizer: torch.optim.Optimizer) -> None:
    model.heads[0].requires_grad_(False)
    model.body.requires_grad_(True)


def _structure(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    return [
        [(name, id(module)) for name, module in model.named_modules()],
        [(name, id(p), p.requires_grad, p.detach().tolist(), p.grad is None) for name, p in model.named_parameters()],
        [len(module._forward_hooks) for module in model.modules()],
        len(optimizer._optimizer_step_post_hooks),
        [[id(p) for p in group["params"]] for group in optimizer.param_groups],
        [id(group) for group in optimizer.param_groups],
    ]


@pytest.mark.parametrize("alter", [_add_head, _unfreeze, _hook, _replace, _freeze])
def test_layers_groups_hooks_and_what_is_frozen_are_as_before(alter: Callable[..., None]) -> None:
    model = _Net()
    optimizer = torch.optim.SGD(model.heads.parameters(), lr=0.1)

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(batch).square().mean()
        alter(model, optimizer)
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return loss

    before = _structure(model, optimizer)
    place = LocalTraining(runner_for_loop(step, [torch.ones(2, 8)], Targets((model,), (optimizer,)), (), 1))
    place.ask(9, do="block", changes=[], warmup=1, steps=3)
    place.ask(9, do="losses", changes=["foreach"], steps=3)
    assert _structure(model, optimizer) == before


def test_sparse_gradients_are_put_back() -> None:
    model = nn.Embedding(20, 4, sparse=True)
    optimizer: Any = torch.optim.SparseAdam(list(model.parameters()))

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss  # type: ignore[no-any-return]

    step(torch.tensor([1, 2]))
    weight, gradient = model.weight.detach().clone(), model.weight.grad
    assert gradient is not None
    values = gradient.coalesce().to_dense()
    place = LocalTraining(runner_for_loop(step, [torch.tensor([3, 4, 5])], Targets((model,), (optimizer,)), (), 1))
    place.ask(9, do="block", changes=[], warmup=1, steps=2)
    assert torch.equal(model.weight, weight)
    assert model.weight.grad is gradient
    assert torch.equal(gradient.coalesce().to_dense(), values)


class _Turning(Sampler[int]):
    """An order that follows from a count of its own."""

    def __init__(self) -> None:
        self.epoch, self.inner = 0, [0, 1, 2, 3]

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        self.inner.append(self.inner.pop(0))
        return iter(self.inner)


def test_a_sampler_with_a_count_of_its_own_goes_on_as_before() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = _Turning()
    loader = DataLoader(TensorDataset(torch.arange(4.0).reshape(4, 1)), sampler=sampler, batch_size=2)

    def step(batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batch[0]).square().mean()
        loss.backward()
        optimizer.step()
        return loss  # type: ignore[no-any-return]

    list(loader)
    place = LocalTraining(runner_for_loop(step, loader, Targets((model,), (optimizer,)), (), 2))
    place.ask(9, do="block", changes=[], warmup=1, steps=9)
    assert (sampler.epoch, sampler.inner) == (1, [1, 2, 3, 0])


@dataclass(frozen=True)
class _Frozen:
    values: torch.Tensor


class _Slots:
    __slots__ = ("values",)

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values


class _Own:
    def __init__(self, values: torch.Tensor) -> None:
        self.inner = [_Frozen(values)]

    @property
    def values(self) -> torch.Tensor:
        return self.inner[0].values


@pytest.mark.parametrize("made", [_Frozen, _Slots, _Own])
def test_a_batch_of_a_class_of_the_user_s_may_be_altered(made: Callable[[torch.Tensor], Any]) -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: Any) -> torch.Tensor:
        batch.values.add_(1)
        optimizer.zero_grad()
        loss = model(batch.values).square().mean()
        loss.backward()
        optimizer.step()
        return loss  # type: ignore[no-any-return]

    batch = made(torch.zeros(2, 8))
    place = LocalTraining(runner_for_loop(step, [batch], Targets((model,), (optimizer,)), (), 1))
    place.ask(9, do="block", changes=[], warmup=2, steps=3)
    assert not batch.values.any()
