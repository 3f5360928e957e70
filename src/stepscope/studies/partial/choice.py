"""Which part of a model takes part in a step, and how the rest is kept from it.

What is frozen needs no gradient, so autograd computes none and keeps nothing for it. Where only some filters of a
weight are trained, the gradient of all of them is computed all the same: the others' is set to 0 before the update,
and what momentum or weight decay make of them is undone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


@dataclass(frozen=True)
class Choice:
    """Parameters that are trained, by name; of those in `held`, the filters of these numbers are not."""

    trained: frozenset[str]
    held: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def share(self, model: nn.Module) -> float:
        """Part of the model's numbers that this trains, 0 to 1."""
        sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
        rows = {name: len(parameter) for name, parameter in model.named_parameters() if name in self.held}
        kept = sum(sizes[name] * (1 - len(self.held.get(name, ())) / rows.get(name, 1)) for name in self.trained)
        return kept / sum(sizes.values())


def freeze(model: nn.Module, choice: Choice) -> None:
    """Only what is trained asks for a gradient; gradients of the rest are dropped."""
    for name, parameter in model.named_parameters():
        wanted = name in choice.trained
        if parameter.requires_grad != wanted:
            parameter.requires_grad_(wanted)
        if not wanted:
            parameter.grad = None


@contextlib.contextmanager
def holding(model: nn.Module, optimizers: tuple[Optimizer, ...], choice: Choice) -> Iterator[None]:
    """The filters that are held stay as they are in every update that is made inside."""
    if not choice.held:
        yield
        return
    named = dict(model.named_parameters())
    pairs = [(named[name], torch.tensor(rows)) for name, rows in choice.held.items()]
    owner = {id(p): optimizer for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    handles = []
    for optimizer in optimizers:
        own = [(p, rows.to(p.device)) for p, rows in pairs if owner.get(id(p)) is optimizer]
        handles += _hooked(optimizer, own)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hooked(optimizer: Optimizer, own: list[tuple[nn.Parameter, Tensor]]) -> list[torch.utils.hooks.RemovableHandle]:
    kept: list[tuple[nn.Parameter, Tensor, Tensor]] = []

    def before(*_: object) -> None:
        for parameter, rows in own:
            if parameter.grad is not None:
                parameter.grad.index_fill_(0, rows, 0)
            kept.append((parameter, rows, parameter.detach().index_select(0, rows)))

    def after(*_: object) -> None:
        for parameter, rows, values in kept:
            parameter.detach().index_copy_(0, rows, values)
        kept.clear()

    return [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]
