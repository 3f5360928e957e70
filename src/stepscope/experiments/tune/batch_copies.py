"""Copies of batches, so that a step may alter the one that it gets and the next has it as it was."""

from __future__ import annotations

import collections
import copy
import copyreg
import functools
import itertools
import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stepscope.clock import monotonic_ns
from stepscope.experiments.tune.training_state import PLAIN


def copy_of_batch(value: Any, depth: int = 0) -> Any:
    """Return a batch that a step may alter: containers, its own objects, memory of tensors and arrays are new."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, (dict, collections.UserDict)):
        duplicate = copy.copy(value)
        for name in duplicate:
            duplicate[name] = copy_of_batch(duplicate[name], depth)
        return duplicate
    if isinstance(value, tuple):
        items = (copy_of_batch(inner, depth) for inner in value)
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [copy_of_batch(inner, depth) for inner in value]
    if type(value).__module__ == "numpy" and hasattr(value, "copy"):
        return value.copy()
    return value if isinstance(value, _NOT_OF_A_BATCH) or depth >= _DEEP else _copy_of_object(value, depth)


_DEEP = 3  # objects within objects: what is deeper belongs to no batch, as the data set that one refers to
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)
_NOT_OF_A_BATCH: tuple[Any, ...] = (*PLAIN, type, types.ModuleType, *_FUNCTIONS, nn.Module, Dataset, DataLoader)


def _copy_of_object(value: Any, depth: int) -> Any:
    """Return a copy of a dataclass, or of a class of the user's; one that cannot be copied is the same."""
    slots = slot_names(value)
    if not (slots or getattr(value, "__dict__", None)):
        return value
    try:
        duplicate = copy.copy(value)
        for name in slots:
            object.__setattr__(duplicate, name, copy_of_batch(getattr(value, name), depth + 1))
    except (TypeError, AttributeError):
        return value
    attributes = getattr(duplicate, "__dict__", {})
    attributes.update({name: copy_of_batch(inner, depth + 1) for name, inner in attributes.items()})
    return duplicate


def slot_names(value: Any) -> list[str]:
    """Return the slots of an object that have a value."""
    return [name for name in copyreg._slotnames(type(value)) if hasattr(value, name)]  # type: ignore[attr-defined]


class BatchCopies:
    """Batches of a list again and again, a copy each time. spent_ns: what copying has taken so far."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = itertools.cycle(batches)
        self.spent_ns = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        began_ns = monotonic_ns()
        batch = copy_of_batch(next(self._batches))
        self.spent_ns += monotonic_ns() - began_ns
        return batch
