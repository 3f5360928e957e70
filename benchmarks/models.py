"""The two steps that are measured: a real network, and the worst case for anything that costs time per operator."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from stepscope import workloads


def worst_case() -> tuple[nn.Module, Callable[[], None]]:
    """64 x (Linear 32 -> 32, ReLU), batch 8, SGD with momentum: almost nothing but dispatch."""
    layers: list[nn.Module] = []
    for _ in range(64):
        layers += [nn.Linear(32, 32), nn.ReLU()]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(8, 32), torch.randn(8, 32)

    def step() -> None:
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()

    return model, step


def resnet18() -> tuple[nn.Module, Callable[[], None]]:
    """ResNet18 on 32 x 32, batch 16, as the workload trains it."""
    training = workloads.find("resnet18-c32").prepare(batch=16)
    batches = iter(training.batches())

    def step() -> None:
        training.optimizer.zero_grad()
        training.loss(next(batches)).backward()  # type: ignore[no-untyped-call]
        training.optimizer.step()

    return training.model, step


MODELS = {"worst": worst_case, "resnet18": resnet18}
