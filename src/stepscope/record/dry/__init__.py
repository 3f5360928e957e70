"""A training as a dry run needs it: how its model, optimizers and batches are made, and what one step does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

Optimizers = tuple[Optimizer, ...]
Step = Callable[[nn.Module, Optimizers, Any], None]
Loss = Callable[[nn.Module, Any], Tensor]


@dataclass(frozen=True)
class Job:
    """One training. `build` may be called often, also where tensors have no numbers; what it gives is never changed.

    Without `loss` a step cannot be divided into smaller ones; `step` is one update. A batch is of the model that was
    built last. `home` is the module of the user's code. `is_built`: `build` gives objects that exist already.
    """

    name: str
    build: Callable[[], tuple[nn.Module, Optimizers]]
    batch: Callable[[int], Any]  # so many samples
    step: Step
    default_batch: int
    loss: Loss | None = None
    home: str | None = None
    is_built: bool = False


def plain_step(loss: Loss) -> Step:
    """zero_grad, loss, backward, step of every optimizer: the usual loop."""

    def step(model: nn.Module, optimizers: Optimizers, batch: Any) -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()  # type: ignore[no-untyped-call]
        del value
        for optimizer in optimizers:
            optimizer.step()

    return step


def accumulated_step(loss: Loss, parts: int, batch: Callable[[], Any]) -> Step:
    """Make one update from the accumulated gradients of several smaller batches, each made by `batch`."""

    def step(model: nn.Module, optimizers: Optimizers, first: Any) -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        for part in range(parts):
            value = loss(model, first if part == 0 else batch()) / parts
            value.backward()  # type: ignore[no-untyped-call]
            del value
        for optimizer in optimizers:
            optimizer.step()

    return step
