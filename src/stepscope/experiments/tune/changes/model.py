"""Changes of what the model computes on: layout and precision of its tensors, how many of them are there at once."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stepscope.experiments.tune.changes import Change, Facts, Switch, remove_hooks_after

if TYPE_CHECKING:
    import torch

    from stepscope.experiments.tune.training import Targets

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


# The arithmetic: bfloat16 under autocast, products of float32 in fewer bits, numbers near zero.

_BF16 = "8 bits of mantissa in forward and backward: compare the loss of a whole training before you keep it"


def _precision_changes(facts: Facts) -> Iterator[Change]:
    device = str(facts["device"])
    refusal = "the training uses autocast already" if facts["autocast"] else ""
    unknown = "" if facts["calls"] else "no module of the training is called"
    code = f'with torch.autocast("{device}", dtype=torch.bfloat16):\n    output = model(x)\n'
    code += "loss = criterion(output.float(), y)"
    yield Change(
        "bf16", "autocast to bfloat16", "precision", code, _BF16, _autocast_switch(device),
        refused=refusal or unknown, lossy=True,
    )  # fmt: skip
    lower = "medium" if device == "cpu" else "high"
    least = "" if facts["matmul_precision"] == "highest" else f"the precision is {facts['matmul_precision']} already"
    yield Change(
        f"matmul={lower}", "float32 products in fewer bits", "matmul", f'torch.set_float32_matmul_precision("{lower}")',
        "products are rounded: compare the loss of a whole training before you keep it", _matmul_precision(lower),
        refused=least, lossy=True,
    )  # fmt: skip
    reason = "on the CPU only" if device != "cpu" else "they are flushed already" if facts["flushes_denormals"] else ""
    yield Change(
        "flush-denormals", "denormal numbers become zero", "denormals", "torch.set_flush_denormal(True)",
        "numbers below 1e-38 become zero", _flush_denormals, refused=reason,
    )  # fmt: skip


def _autocast_switch(device: str) -> Switch:
    @contextlib.contextmanager
    def switch(targets: Targets) -> Iterator[None]:
        """Autocast within the calls of the models; what they return is float32 again, so that any loss takes it.

        It is that of the device of a model's parameters, which a study does not know beforehand.
        """
        import torch

        opened: list[Any] = []

        def begin(module: Any, _args: object) -> None:
            kind = next((parameter.device.type for parameter in module.parameters()), device)
            opened.append(torch.autocast(kind, dtype=torch.bfloat16))
            opened[-1].__enter__()

        def end(_module: object, _args: object, output: Any) -> Any:
            if opened:
                opened.pop().__exit__(None, None, None)
            return _to_float32(output)

        hooks: list[Any] = []
        for model in targets.called:
            hooks += [model.register_forward_pre_hook(begin), model.register_forward_hook(end, always_call=True)]
        try:
            with remove_hooks_after(hooks):
                yield
        finally:
            while opened:
                opened.pop().__exit__(None, None, None)

    return switch


def _to_float32(output: Any) -> Any:
    """The output with float32 in place of bfloat16, in tuples, lists and dictionaries as well."""
    import torch

    if isinstance(output, torch.Tensor):
        return output.float() if output.dtype == torch.bfloat16 else output
    if type(output) in (tuple, list):
        return type(output)(map(_to_float32, output))
    if isinstance(output, dict):
        for name, value in output.items():
            output[name] = _to_float32(value)
    return output


def _matmul_precision(precision: str) -> Switch:
    @contextlib.contextmanager
    def switch(_: Targets) -> Iterator[None]:
        import torch

        before = torch.get_float32_matmul_precision()
        owners: list[Any] = [
            getattr(backend, "matmul", None) for backend in (torch.backends.cuda, torch.backends.mkldnn)
        ]
        own = [(owner, owner.fp32_precision) for owner in owners if hasattr(owner, "fp32_precision")]
        torch.set_float32_matmul_precision(precision)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
            for owner, value in own:  # which the line before sets too, where it was left to a more general setting
                owner.fp32_precision = value

    return switch


@contextlib.contextmanager
def _flush_denormals(_: Targets) -> Iterator[None]:
    import torch

    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


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


def changes(facts: Facts) -> Iterator[Change]:
    """Yield the changes of layout, precision and memory."""
    yield from _layout_changes(facts)
    yield from _precision_changes(facts)
    yield from _memory_changes(facts)
