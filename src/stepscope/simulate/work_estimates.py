"""Work of a module's call, from the shape of its input and its parameters: what a board that computes has to do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NUMBER_BYTES = 4
_STAYS_BYTES = 512 * 1024  # weights of a recurrent layer: more are read again in each step, out of memory; assumed
_GATES = {"LSTM": 4, "GRU": 3}
_UPDATE_ACCESSES = 5  # parameter, gradient and momentum are read, parameter and momentum are written


class Work(NamedTuple):
    """FLOP (a multiplication and an addition are two), bytes from and to memory, and kernels to launch.

    cells: steps of a recurrent layer through its sequence, each of as many kernels as the board's framework launches.
    """

    flops: float = 0.0
    moved: float = 0.0
    kernels: float = 1.0
    cells: float = 0.0

    def of_backward(self) -> Work:
        """Return the work of both gradients: that of the input, and that of the parameters."""
        return Work(*(2 * number for number in self))


def tensors_of(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Return the tensors in arguments or results, also those in lists, tuples and dicts, in order."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, Mapping):
            yield from tensors_of(value.values())
        elif isinstance(value, (tuple, list)):
            yield from tensors_of(value)


def work_of_call(module: nn.Module, args: Iterable[Any]) -> Work:
    """Return the work of the forward pass; an unknown module's matrices meet each row of its input."""
    tensors = list(tensors_of(args))
    if not tensors:
        return Work()
    first, *others = tensors
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):  # of the table only the rows that are looked up
        rows = first.numel() * module.embedding_dim
        summed = isinstance(module, nn.EmbeddingBag)
        return Work(rows if summed else 0.0, _NUMBER_BYTES * (first.numel() + 2 * rows))
    parameters = sum(parameter.numel() for parameter in module.parameters())
    flops, out, kernels = _flops(module, first, others, parameters)
    if isinstance(module, nn.RNNBase):
        read = _numbers_read_again(module, kernels)
        return Work(flops, _NUMBER_BYTES * (first.numel() + out + read), 0.0, cells=kernels)
    return Work(flops, _NUMBER_BYTES * (first.numel() + out + parameters), kernels)


def _numbers_read_again(module: nn.RNNBase, cells: float) -> float:
    """Return how many numbers of weights are read: those of a layer at once, or in each step where they are many."""
    directions = 2 if module.bidirectional else 1
    steps = cells / (module.num_layers * directions)
    read = 0.0
    for layer in range(module.num_layers):
        ends = (f"_l{layer}", f"_l{layer}_reverse")
        numbers = sum(weight.numel() for name, weight in module.named_parameters() if name.endswith(ends))
        read += numbers * (steps if numbers * _NUMBER_BYTES > directions * _STAYS_BYTES else 1)
    return read


def work_of_update(optimizer: Any) -> Work:
    """Return the work of an optimizer's step: elementwise, two kernels for each tensor."""
    tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    numbers = sum(tensor.numel() for tensor in tensors)
    return Work(_UPDATE_ACCESSES * numbers, _UPDATE_ACCESSES * _NUMBER_BYTES * numbers, 2 * len(tensors))


def _flops(
    module: nn.Module, first: torch.Tensor, others: list[torch.Tensor], parameters: int
) -> tuple[float, float, float]:
    """FLOP, numbers that come out, and kernels, or cells of a recurrent layer."""
    shape, samples = first.shape, first.shape[0] if first.dim() else 1
    if isinstance(module, (*_CONVOLUTIONS, *_TRANSPOSED)):
        dimensions = len(module.kernel_size)
        positions = math.prod(_positions(module, list(shape[-dimensions:])))
        at = math.prod(shape[-dimensions:]) if isinstance(module, _TRANSPOSED) else positions  # the weights meet
        batch = samples if first.dim() == dimensions + 2 else 1
        return 2.0 * module.weight.numel() * at * batch, module.out_channels * positions * batch, 1
    if isinstance(module, nn.Linear):
        rows = first.numel() / max(module.in_features, 1)
        return 2.0 * module.weight.numel() * rows, rows * module.out_features, 1
    if isinstance(module, nn.RNNBase):
        directions = 2 if module.bidirectional else 1
        rows = first.numel() / max(module.input_size, 1)
        if first.dim() == 2 and others and others[0].dim() == 1:  # a packed sequence: batch sizes of each step
            steps = len(others[0])
        else:
            steps = shape[1 if module.batch_first and first.dim() == 3 else 0]
        gates = _GATES.get(module.mode, 1)  # each is written by both products, read, and saved
        numbers = (5 * gates + 3) * rows * module.hidden_size * module.num_layers * directions
        return 2.0 * parameters * rows, numbers, steps * module.num_layers * directions
    if isinstance(module, nn.MultiheadAttention):
        rows = first.numel() / max(module.embed_dim, 1)
        keys = others[0].shape if others and others[0].dim() == first.dim() else shape
        length = keys[1 if module.batch_first and first.dim() == 3 else 0]
        return 2.0 * parameters * rows + 4.0 * rows * length * module.embed_dim, first.numel(), 8
    products, out = _products(module, first)
    kernels = sum(1 for part in module.modules() if not any(True for _ in part.children()))
    return 5.0 * first.numel() + products, out, kernels


def _products(module: nn.Module, first: torch.Tensor) -> tuple[float, float]:
    """FLOP of an unknown module's weights, and numbers that come out.

    A matrix with as many rows or columns as the input has features meets each of its rows, or each of its tokens where
    these are whole numbers; other weights meet each sample once.
    """
    flops, out, width = 0.0, float(first.numel()), first.shape[-1] if first.dim() else 1
    for part in module.modules():
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag)):
            continue
        for weight in part.parameters(recurse=False):
            if weight.dim() < 2:
                continue
            rows = float(first.shape[0] if first.dim() else 1)
            if weight.dim() == 2 and not first.is_floating_point():
                rows = float(first.numel())
            elif weight.dim() == 2 and width in weight.shape:
                rows = first.numel() / max(width, 1)
                out = max(out, rows * weight.numel() / max(width, 1))
            flops += 2.0 * weight.numel() * rows
    return flops, out


def _positions(module: Any, sizes: list[int]) -> list[int]:
    """Size of a convolution's output along each dimension."""
    positions = []
    for index, size in enumerate(sizes):
        kernel, stride, dilation = (value[index] for value in (module.kernel_size, module.stride, module.dilation))
        span = dilation * (kernel - 1)
        padding = module.padding
        around = (span if padding == "same" else 0) if isinstance(padding, str) else 2 * padding[index]
        if isinstance(module, _TRANSPOSED):
            positions.append(max((size - 1) * stride - around + span + module.output_padding[index] + 1, 0))
        else:
            positions.append(max((size + around - span - 1) // stride + 1, 0))
    return positions
