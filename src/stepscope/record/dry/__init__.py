"""A training as a dry run needs it: how its model, optimizers and batches are made, and what one step does."""

from __future__ import annotations

import inspect
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
    return accumulated_step(loss, 1, lambda: None)


def accumulated_step(loss: Loss, parts: int, batch: Callable[[], Any]) -> Step:
    """Make one update from the accumulated gradients of several smaller batches, each made by `batch`.

    An optimizer that evaluates the loss itself (LBFGS, SAM) is given how.
    """

    def step(model: nn.Module, optimizers: Optimizers, first: Any) -> None:
        def backward(inputs: Any) -> Tensor:
            value = loss(model, inputs) / parts if parts > 1 else loss(model, inputs)
            value.backward()  # type: ignore[no-untyped-call]
            return value

        def evaluate() -> Tensor:
            for optimizer in optimizers:
                optimizer.zero_grad()
            value = backward(first)
            for _ in range(parts - 1):
                del value  # before the next pass, whose peak it is no part of
                value = backward(batch())
            return value

        if not all(map(_requires_closure, optimizers)):
            evaluate()
        for optimizer in optimizers:
            _update(optimizer, evaluate)

    return step


def _update(optimizer: Optimizer, evaluate: Callable[[], Tensor]) -> None:
    try:
        if not _requires_closure(optimizer):
            optimizer.step()
            return
    except Exception:  # SAM of many authors: None is the default of what it cannot do without
        if _closure_of_step(optimizer) is None:
            raise
    optimizer.step(evaluate)  # type: ignore[arg-type]


def _requires_closure(optimizer: Optimizer) -> bool:
    closure = _closure_of_step(optimizer)
    return closure is not None and closure.default is closure.empty


def _closure_of_step(optimizer: Optimizer) -> inspect.Parameter | None:
    return inspect.signature(optimizer.step).parameters.get("closure")
