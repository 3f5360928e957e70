"""Memory layout of pictures and of the weights of convolutions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepscope.experiments.tune.changes import Change, Facts

if TYPE_CHECKING:
    import torch

    from stepscope.experiments.tune.training import Targets


def changes(facts: Facts) -> Iterator[Change]:
    """Yield channels innermost, for convolutions over pictures that are not laid out so."""
    refused = ""
    if not facts["conv2d"]:
        refused = "no convolution over pictures"
    elif facts["channels_last"]:
        refused = "the weights are laid out so already"
    code = "model = model.to(memory_format=torch.channels_last)\nx = x.to(memory_format=torch.channels_last)"
    risk = "other kernels of the convolutions: the last digits of the loss"
    yield Change("channels_last", "channels_last memory format", "layout", code, risk, channels_last, refused=refused)
    reason = "" if facts["channels_last"] else "the weights are laid out so already"
    yield Change(
        "contiguous", "contiguous memory format instead of channels_last", "layout",
        "model = model.to(memory_format=torch.contiguous_format)", risk, contiguous, refused=reason,
    )  # fmt: skip


@contextlib.contextmanager
def channels_last(targets: Targets) -> Iterator[None]:
    """Lay out weights, gradients and optimizer state of four dimensions with channels innermost, and the pictures."""
    import torch

    with laid_out(targets, torch.channels_last):
        yield


@contextlib.contextmanager
def contiguous(targets: Targets) -> Iterator[None]:
    """Lay them out with the last dimension innermost."""
    import torch

    with laid_out(targets, torch.contiguous_format):
        yield


@contextlib.contextmanager
def laid_out(targets: Targets, form: torch.memory_format) -> Iterator[None]:
    """Move the tensors to a layout, in the same objects; afterwards each has the memory that it had before."""
    import torch

    moved: list[tuple[torch.Tensor, torch.Tensor]] = []
    for tensor in _tensors(targets):
        memory = tensor.data
        changed = memory.to(memory_format=form)  # what torch's own `Module.to` does
        if changed.data_ptr() != memory.data_ptr() or changed.stride() != memory.stride():
            tensor.data = changed
            moved.append((tensor, memory))

    def into(_: object, args: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(x.to(memory_format=form) if isinstance(x, torch.Tensor) and x.dim() == 4 else x for x in args)

    hooks = [model.register_forward_pre_hook(into) for model in targets.called]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        with torch.no_grad():
            for tensor, memory in moved:
                memory.copy_(tensor.data)
                tensor.data = memory


def _tensors(targets: Targets) -> Iterator[torch.Tensor]:
    import torch

    seen: set[int] = set()
    for tensor in targets.tensors():
        if tensor.dim() == 4 and id(tensor) not in seen:
            seen.add(id(tensor))
            yield tensor
            if isinstance(tensor.grad if tensor.is_leaf else None, torch.Tensor):
                assert tensor.grad is not None
                yield tensor.grad
