"""Count the samples that tensors hold: batches of data loaders, and what models are called with."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from stepscope.record import torch_private


def length(tensor: torch.Tensor) -> int | None:
    """Its first dimension where it has one that is a plain number (not a symbol of a tracer), nested or not."""
    size = tensor.size(0) if tensor.dim() else None
    return size if type(size) is int else None


def batch_size(iterator: Any, batch: Any) -> int | None:
    """The samples of a data loader's batch: its batch size where the first tensor has it as one of its first sides."""
    stated = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
    with torch._C.DisableTorchFunction():
        tensor = first_tensor(batch)
        if tensor is None or not tensor.dim():
            length = len(batch) if type(batch) in (list, tuple) else None
            return stated if isinstance(stated, int) else length
        sides = [tensor.size(0)] if tensor.is_nested else [side for side in tensor.shape[:2] if type(side) is int]
        listed = _listed(batch, stated)
    if listed is None and isinstance(stated, int) and (stated in sides or (sides and sides[0] > stated)):
        return stated
    return listed or (sides[0] if sides else None)


def _listed(batch: Any, most: Any) -> int | None:
    """The samples of a batch that is a list of images, another of targets: as long as each other, not stacked."""
    if type(batch) not in (list, tuple) or len(batch) < 2 or not isinstance(most, int):
        return None
    lengths = {len(column) if type(column) in (list, tuple) else None for column in batch}
    length = lengths.pop() if len(lengths) == 1 else None
    if length is None or not 0 < length <= most:
        return None
    stacked = len({tensor.size(0) for tensor in tensors_in(batch) if tensor.dim()}) == 1  # pairs of pairs, for one
    return None if stacked else length


def packed_samples(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """The sequences of a PackedSequence among the inputs of a model: those that are there at the first time step."""
    packed = next((value for value in (*args, *kwargs.values()) if type(value) is PackedSequence), None)
    first = None if packed is None else torch_private.first_bytes(packed.batch_sizes, 8)  # int64, always in RAM
    return None if first is None else int.from_bytes(first, sys.byteorder)


def mapped_samples(tensor: torch.Tensor) -> int:
    """Return how many samples a tensor stands for within `torch.vmap`, which hides them: 1 outside it."""
    functorch, samples = torch._C._functorch, 1
    while functorch.is_functorch_wrapped_tensor(tensor):
        inner = functorch.get_unwrapped(tensor)
        if functorch.is_batchedtensor(tensor):
            samples *= inner.shape[functorch.maybe_get_bdim(tensor)]
        tensor = inner
    return samples


def telling_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The tensor among the inputs of a model that tells its samples; None where there is none."""
    return args[0] if args and isinstance(args[0], torch.Tensor) else first_tensor((args, kwargs))


def first_tensor(value: Any) -> Any:
    """The first tensor in nested arguments, depth first; None where there is none."""
    return next(tensors_in(value), None)


def tensors_in(value: Any, depth: int = 0) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif type(value) is PackedSequence:
        yield value.data
    elif depth < 8 and type(value) in (dict, list, tuple):
        for item in list(value.values() if isinstance(value, dict) else value):  # other threads may change it
            yield from tensors_in(item, depth + 1)
    elif depth < 3 and issubclass(type(value), Mapping):  # its attributes: to ask it would run the training's code
        with contextlib.suppress(AttributeError):
            yield from tensors_in(object.__getattribute__(value, "__dict__"), depth + 1)
