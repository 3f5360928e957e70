"""Changes of a training that need less memory, alone and combined, applied to a job and written as code."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from stepscope.analysis.memory.limits import ALLOCATORS
from stepscope.record.dry import Job, Optimizers, accumulated_step

# Ways to train the same model in less memory, each as a change of model and optimizers before a dry run.
#
# A change works in place and gives the optimizers to train with. It holds for real tensors as for fake ones, so that
# what is promised can also be measured.

Change = Callable[[nn.Module, tuple[Optimizer, ...]], tuple[Optimizer, ...]]
BATCH_STATISTICS = "running statistics of batch normalization"
RANK = 8  # of adapters: usual for fine-tuning (Hu et al., ICLR 2022)


def replace_optimizer(kind: type[Optimizer], **options: Any) -> Change:
    """Return a change that gives the same parameters another optimizer."""

    def change(_model: nn.Module, optimizers: Optimizers) -> Optimizers:
        return tuple(kind([p for group in o.param_groups for p in group["params"]], **options) for o in optimizers)

    return change


def bf16(model: nn.Module, optimizers: Optimizers) -> Optimizers:
    """Weights, gradients, feature maps, batch statistics and optimizer state in bfloat16; integers as they were."""
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = _to_bf16(buffer)
    model.register_forward_pre_hook(_convert_inputs(_to_bf16), with_kwargs=True)
    model.register_forward_hook(_output_to_float)
    return _replace_parameters(model, optimizers, _to_bf16)


def all_but_last(model: nn.Module, optimizers: Optimizers) -> Optimizers:
    """Train only the last child that has parameters: fine-tuning of the head."""
    names = [name for name, child in model.named_children() if any(True for _ in child.parameters())]
    for name, parameter in model.named_parameters():
        if name.partition(".")[0] not in names[-1:]:
            parameter.requires_grad_(False)
    return optimizers


def checkpointed(segments: Collection[str]) -> Change:
    """Keep only the inputs of these modules and run their forward again in backward."""

    def change(model: nn.Module, optimizers: Optimizers) -> Optimizers:
        for name, module in model.named_modules():
            if name in segments:
                module.forward = functools.partial(_forward_with_checkpoint, module.forward)
        return optimizers

    return change


def repeated_blocks(model: nn.Module) -> list[str]:
    """The modules that a model repeats and that hold others: the outermost of its own types, else lists of layers."""
    counts = Counter(type(module) for module in model.modules())
    named = [(name, module) for name, module in model.named_modules() if name and any(True for _ in module.children())]
    repeated = [(name, module) for name, module in named if counts[type(module)] > 1]
    own = [name for name, module in repeated if not type(module).__module__.startswith("torch.nn.modules.container")]
    lists = [name for name, module in repeated if type(module) is nn.Sequential]
    outermost = [name for name in own if not any(name.startswith(f"{other}.") for other in own)]
    return outermost or [name for name in lists if not any(other.startswith(f"{name}.") for other in lists)]


def checkpointed_blocks(model: nn.Module, optimizers: Optimizers) -> Optimizers:
    """Keep only the inputs of the blocks that the model repeats."""
    return checkpointed(repeated_blocks(model))(model, optimizers)


def lora(model: nn.Module, optimizers: Optimizers) -> Optimizers:
    """Freeze everything and train adapters of low rank beside each linear layer."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    new: list[nn.Parameter] = []
    for module in list(model.modules()):
        if type(module) is nn.Linear:
            module.lora_down = nn.Parameter(module.weight.new_zeros(RANK, module.in_features))
            module.lora_up = nn.Parameter(module.weight.new_zeros(module.out_features, RANK))
            module.forward = functools.partial(_lora_forward, module, module.forward)  # type: ignore[method-assign]
            new += [module.lora_down, module.lora_up]
    if new:
        optimizers[0].add_param_group({"params": new})
    return optimizers


def channels_last(model: nn.Module, optimizers: Optimizers) -> Optimizers:
    """Weights of convolutions and pictures with channels innermost: oneDNN then copies nothing into blocks."""
    model.register_forward_pre_hook(_convert_inputs(_to_channels_last), with_kwargs=True)
    return _replace_parameters(model, optimizers, _to_channels_last)


def in_place(model: nn.Module, optimizers: Optimizers) -> Optimizers:
    """Activations that can write over their input do."""
    for module in model.modules():
        if getattr(module, "inplace", None) is False:
            module.inplace = True  # type: ignore[assignment]
    return optimizers


def unchanged(model: nn.Module, optimizers: Optimizers) -> Optimizers:
    """The training as it is."""
    return optimizers


VARIANTS: dict[str, Change] = {
    "": unchanged,
    "bf16": bf16,
    "frozen": all_but_last,
    "checkpointed": checkpointed_blocks,
    "lora": lora,
    "channels-last": channels_last,
    "in-place": in_place,
}


def _forward_with_checkpoint(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)


def _lora_forward(module: Any, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return forward(x) + nn.functional.linear(nn.functional.linear(x, module.lora_down), module.lora_up)


def _replace_parameters(model: nn.Module, optimizers: Optimizers, convert: Callable[[Tensor], Tensor]) -> Optimizers:
    """Give modules and optimizers `convert` of each parameter in its place; the optimizer's state moves with it."""
    converted: dict[Tensor, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if parameter not in converted:
                numbers = parameter.detach()
                changed = convert(numbers)
                same = changed is numbers
                converted[parameter] = (
                    parameter if same else nn.Parameter(changed, requires_grad=parameter.requires_grad)
                )
            module._parameters[name] = converted[parameter]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            # in the same list, which an optimizer may hold besides
            group["params"][:] = [converted.get(parameter, parameter) for parameter in group["params"]]
        for old, new in converted.items():
            if new is not old and old in optimizer.state:
                state = optimizer.state.pop(old)
                optimizer.state[new] = {
                    key: value if key == "step" else _like_parameter(value, old, new) for key, value in state.items()
                }
    return optimizers


def _like_parameter(value: Any, old: Tensor, new: Tensor) -> Any:
    """Return a value of an optimizer's state as the new parameter is: its type, and of one of its shape its strides."""
    if not isinstance(value, Tensor) or value.dtype != old.dtype:
        return value
    if value.shape != old.shape:
        return value.to(new.dtype)
    return torch.empty_like(new, requires_grad=False).copy_(value)


def _to_bf16(x: Tensor) -> Tensor:
    return x.bfloat16() if x.dtype == torch.float32 else x


def _to_channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def _convert_inputs(convert: Callable[[Tensor], Tensor]) -> Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]:
    """Return a hook before forward that gives the model `convert` of each of its tensors."""

    def convert_input(value: Any) -> Any:
        return convert(value) if isinstance(value, Tensor) else value

    def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        return tuple(map(convert_input, args)), {name: convert_input(value) for name, value in kwargs.items()}

    return hook


def _output_to_float(_module: nn.Module, _args: Any, output: Any) -> Any:
    return output.float() if isinstance(output, Tensor) and output.dtype == torch.bfloat16 else output


# Combinations of changes that need less memory, applied to a job and written as code.
#
# Only torch is imported here: what measures a training must not add to it.

_BF16_CODE = """\
import torch
def cast(value, old, new):
    return value.to(new) if isinstance(value, torch.Tensor) and value.dtype == old else value
def cast_inputs(_, args, kwargs):
    args, names = [cast(x, torch.float32, torch.bfloat16) for x in (*args, *kwargs.values())], list(kwargs)
    first = len(args) - len(names)
    return tuple(args[:first]), dict(zip(names, args[first:]))
model.bfloat16()
optimizer.load_state_dict(optimizer.state_dict())  # its state, in the type of the weights
model.register_forward_pre_hook(cast_inputs, with_kwargs=True)
model.register_forward_hook(lambda _, args, output: cast(output, torch.bfloat16, torch.float32))"""
_SGD_CODE = """\
import torch
parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
optimizer = torch.optim.SGD(parameters, lr=1e-3{momentum})"""
_LAST_CODE = """\
last = [name for name, child in model.named_children() if any(True for _ in child.parameters())][-1]
for name, parameter in model.named_parameters():
    if name.split(".")[0] != last:
        parameter.requires_grad_(False)"""
_LEARNING_RATE = "another learning rate and schedule: choose them anew"

# Each with what it costs and the lines that do it, after `model` and `optimizer` are made and before the first step.
CHANGES: dict[str, tuple[Change, str, str]] = {
    "bf16": (bf16, "8 bits of precision", _BF16_CODE),
    "SGD with momentum": (
        replace_optimizer(torch.optim.SGD, lr=1e-3, momentum=0.9),
        _LEARNING_RATE,
        _SGD_CODE.format(momentum=", momentum=0.9"),
    ),
    "SGD": (replace_optimizer(torch.optim.SGD, lr=1e-3), _LEARNING_RATE, _SGD_CODE.format(momentum="")),
    "last layers only": (all_but_last, f"the weights of the others stay; {BATCH_STATISTICS} move on", _LAST_CODE),
}


@dataclass(frozen=True)
class Variant:
    """One combination: passes of a step, modules that run forward again, a change of the training, the allocator."""

    parts: int = 1
    recomputed: tuple[str, ...] = ()
    change: str = ""
    allocator: str = "default"

    def apply(self, job: Job, batch: int) -> tuple[Job, int]:
        """Return the job that trains so, and the samples of one pass."""
        small = batch // self.parts

        def build() -> tuple[nn.Module, Optimizers]:
            model, optimizers = job.build()
            return model, self.apply_to_model(model, optimizers)

        if self.parts == 1 or job.loss is None:
            return replace(job, build=build), small
        step = accumulated_step(job.loss, self.parts, lambda: job.batch(small))
        return replace(job, build=build, step=step), small

    def apply_to_model(self, model: nn.Module, optimizers: Optimizers) -> Optimizers:
        """Change a model in place; the optimizers to train it with."""
        if self.change:
            optimizers = CHANGES[self.change][0](model, optimizers)
        return checkpointed(self.recomputed)(model, optimizers) if self.recomputed else optimizers

    def code(self, batch: int) -> str:
        """Lines of Python and of the shell that train so."""
        lines = []
        if self.allocator != "default":
            allocator = ALLOCATORS.get(self.allocator)
            how = f"PYTORCH_CUDA_ALLOC_CONF={self.allocator}" if allocator is None else allocator.how
            lines.append(f"# start it with: {how} python ...")
        if self.change:
            lines += [f"# {self.change}: {CHANGES[self.change][1]}", CHANGES[self.change][2]]
        if self.recomputed:
            lines += [
                "from functools import partial",
                "from torch.utils.checkpoint import checkpoint",
                f"for name in {list(self.recomputed)!r}:",
                "    module = model.get_submodule(name)",
                "    module.forward = partial(checkpoint, module.forward, use_reentrant=False)",
            ]
        if self.parts > 1:
            lines += [
                f"# {self.parts} batches of {batch // self.parts} for each update: the same one where the loss is",
                "# a mean over samples that do not see each other (no batch normalization, no mean over tokens)",
                f"(loss / {self.parts}).backward()",
                f"if (number + 1) % {self.parts} == 0:",
                "    optimizer.step()",
                "    optimizer.zero_grad()",
            ]
        return "\n".join(lines)

    def differences(self, model: nn.Module, batch: int) -> list[str]:
        """Return sentences that say where the update is another one than that of the training as it is."""
        sentences = []
        norms = [(name, module) for name, module in model.named_modules() if isinstance(module, _BatchNorm)]
        norms = [(name, module) for name, module in norms if module.training]
        again = [name for name, _ in norms if any(f"{name}.".startswith(f"{part}.") for part in self.recomputed)]
        if self.parts > 1:
            small = batch // self.parts
            if norms:
                sentences.append(f"plan: {len(norms)} layers of batch normalization see {small} samples, not {batch}")
            sentences.append(
                f"plan: {self.parts} passes make the same update where the loss is a mean over samples that do not see "
                "each other: not a sum, a mean over tokens, nor in-batch negatives"
            )
        if again:
            sentences.append(f"plan: {BATCH_STATISTICS} of {len(again)} layers are updated twice a step")
        return sentences

    @property
    def words(self) -> str:
        """Return the combination in words, for the table."""
        words = [f"{self.parts} passes"] if self.parts > 1 else []
        words += [f"{len(self.recomputed)} modules recomputed"] if self.recomputed else []
        words += [self.change] if self.change else []
        words += [self.allocator] if self.allocator != "default" else []
        return ", ".join(words) or "as it is"
