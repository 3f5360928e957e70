"""Changes of the model: the layout of its tensors, how many are there at once, which parts learn and which record."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from stepscope.experiments.tune.changes import Change, Facts, Switch, calls_within, remove_hooks_after

if TYPE_CHECKING:
    import torch

    from stepscope.experiments.tune.training import Targets

FROZEN = {"half": "half", "most": "three quarters"}  # names of shares of the blocks, as they are told

# Memory layout of pictures and of the weights of convolutions.


def _layout_changes(facts: Facts) -> Iterator[Change]:
    refused = ""
    if not facts["conv2d"]:
        refused = "no convolution over pictures"
    elif facts["channels_last"]:
        refused = "the weights already have this layout"
    code = "model = model.to(memory_format=torch.channels_last)\nx = x.to(memory_format=torch.channels_last)"
    risk = "other kernels of the convolutions: the last digits of the loss"
    switch = functools.partial(apply_memory_format, form="channels_last")
    yield Change("channels_last", "channels_last memory format", "layout", code, risk, switch, refused=refused)
    reason = "" if facts["channels_last"] else "the weights already have this layout"
    code = "model = model.to(memory_format=torch.contiguous_format)\nx = x.contiguous()"
    switch = functools.partial(apply_memory_format, form="contiguous_format")
    name = "contiguous memory format instead of channels_last"
    yield Change("contiguous", name, "layout", code, risk, switch, refused=reason)


@contextlib.contextmanager
def apply_memory_format(targets: Targets, form: str) -> Iterator[None]:
    """Lay out weights, gradients and optimizer state of four dimensions, and the pictures, in a format of torch's.

    Tensors stay the same objects; afterwards each has the memory that it had before.
    """
    import torch

    layout: torch.memory_format = getattr(torch, form)
    moved: list[tuple[torch.Tensor, torch.Tensor]] = []
    layouts: dict[tuple[Any, ...], torch.Tensor] = {}
    for tensor in _tensors_of_four_dims(targets):
        memory = tensor.data
        if memory.untyped_storage().nbytes() != memory.nbytes:
            continue  # a part of other memory, which an optimizer may update whole, or one that `expand` shows
        place = (memory.data_ptr(), memory.shape, memory.stride())  # of weights that share their memory the same
        changed = layouts.setdefault(place, memory.to(memory_format=layout))  # what torch's own `Module.to` does
        if changed.data_ptr() != memory.data_ptr() or changed.stride() != memory.stride():
            tensor.data = changed
            moved.append((tensor, memory))

    def into(_: object, args: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(x.to(memory_format=layout) if isinstance(x, torch.Tensor) and x.dim() == 4 else x for x in args)

    hooks = [model.register_forward_pre_hook(into) for model in targets.called]
    try:
        with remove_hooks_after(hooks):
            yield
    finally:
        with torch.no_grad():
            for tensor, memory in moved:
                memory.copy_(tensor.data)
                tensor.data = memory


def _tensors_of_four_dims(targets: Targets) -> Iterator[torch.Tensor]:
    import torch

    ids: set[int] = set()
    for tensor in targets.tensors():
        if tensor.dim() == 4 and id(tensor) not in ids:
            ids.add(id(tensor))
            yield tensor
            if isinstance(tensor.grad if tensor.is_leaf else None, torch.Tensor):
                assert tensor.grad is not None
                yield tensor.grad


# Memory of a step: activations that are computed again, and a batch in parts whose gradients add up.


def _memory_changes(facts: Facts) -> Iterator[Change]:
    """Yield checkpoints around the blocks that a model repeats, and a batch in two and four parts."""
    blocks = "" if facts["blocks"] else "the model repeats no block of layers"
    yield Change(
        "checkpoint", f"activations of {facts['blocks'] or 'no'} blocks computed again in backward", "checkpoint",
        "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
        "batch statistics are updated twice a step", _checkpoint_blocks, goal="memory", refused=blocks,
    )  # fmt: skip
    for parts in (2, 4):
        refused = "" if facts["divisible"] else "only a step that Stepscope makes itself can be divided"
        if not refused and facts["batch"] % parts:
            refused = f"{facts['batch']} samples are not divisible by {parts}"
        yield Change(
            f"accumulate={parts}", f"the batch in {parts} parts, gradients added up", "accumulate",
            f"for part in batch.chunk({parts}): (loss(part) / {parts}).backward()",
            "batch statistics are of a part of the batch", _accumulation_switch(parts), goal="memory", refused=refused,
        )  # fmt: skip


@contextlib.contextmanager
def _checkpoint_blocks(targets: Targets) -> Iterator[None]:
    from torch.utils.checkpoint import checkpoint

    from stepscope.footprint.transforms import repeated_blocks

    changed: list[Any] = []
    for model in targets.called:
        names = set(repeated_blocks(model))
        for name, module in model.named_modules():
            if name in names and "forward" not in vars(module):
                forward: Any = functools.partial(checkpoint, module.forward, use_reentrant=False)
                module.forward = forward
                changed.append(module)
    try:
        yield
    finally:
        for module in changed:
            del module.forward


def _accumulation_switch(parts: int) -> Switch:
    @contextlib.contextmanager
    def switch(targets: Targets) -> Iterator[None]:
        before, targets.parts = targets.parts, parts
        try:
            yield
        finally:
            targets.parts = before

    return switch


# Parts of the model that do not learn: frozen blocks, and modules that are called without gradients.


def _freezing_changes(facts: Facts) -> Iterator[Change]:
    """Yield half and three quarters of the blocks frozen, the first ones: what fine-tuning may do without."""
    for name, share in FROZEN.items():
        first = facts["first_learning_blocks"].get(name, "")
        yield Change(
            f"freeze={name}", f"the first {share} of the repeated blocks, and what precedes them, do not learn",
            "freeze",
            "for name, parameter in model.named_parameters():\n"
            f'    if name.startswith("{first}."):\n        break\n    parameter.requires_grad_(False)',
            "frozen layers stay as they are: for fine-tuning; `stepscope study partial` measures what that costs",
            functools.partial(_freeze_up_to, first=first),
            refused="" if first else "the model repeats too few blocks of layers", by_name=True,
        )  # fmt: skip


@contextlib.contextmanager
def _freeze_up_to(targets: Targets, first: str) -> Iterator[None]:
    """Parameters before those of a block, in the order of the model's modules, have no gradient meanwhile."""
    frozen: list[torch.nn.Parameter] = []
    for model in targets.called:
        named = list(model.named_parameters())
        place = next((index for index, (name, _) in enumerate(named) if name.startswith(f"{first}.")), 0)
        frozen += [parameter for _, parameter in named[:place] if parameter.requires_grad]
    gradients = [parameter.grad for parameter in frozen]
    for parameter in frozen:
        parameter.requires_grad_(False)
        parameter.grad = None  # else the optimizer would use it in every step
    try:
        yield
    finally:
        for parameter, gradient in zip(frozen, gradients, strict=True):
            parameter.requires_grad_(True)
            parameter.grad = gradient


def _inference_change(facts: Facts) -> Change:
    refused = "" if facts["calls_without_gradients"] else "every module that the steps call is called with gradients"
    return Change(
        "inference-mode", "modules that are only called without gradients run in inference mode", "evaluation",
        "with torch.inference_mode():  # in place of torch.no_grad()\n    output = teacher(x)\noutput = output.clone()",
        "", _call_in_inference_mode, refused=refused,
    )  # fmt: skip


def _call_in_inference_mode(targets: Targets) -> AbstractContextManager[None]:
    """Calls without gradients record nothing; what they return is copied, so that autograd takes it."""
    import torch

    return calls_within(
        targets.evaluated,
        lambda _: None if torch.is_grad_enabled() else torch.inference_mode(),
        lambda tensor: tensor.clone() if tensor.is_inference() else tensor,
    )


def changes(facts: Facts) -> Iterator[Change]:
    """Yield the changes of layout, memory, learning and recording."""
    yield from _layout_changes(facts)
    yield from _memory_changes(facts)
    yield from _freezing_changes(facts)
    yield _inference_change(facts)
