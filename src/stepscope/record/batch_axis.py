"""Batch dimension of a model's input, as the modules within it tell: recurrent ones and attention know it."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn

TELLING = (nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)


class BatchWitness:
    """Hears of the calls within one call of a model; `sizes` are the batches that were given to those that tell."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._thread = threading.get_ident()

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module is called."""
        if isinstance(module, TELLING) and threading.get_ident() == self._thread:
            size = _batch(module, args[0] if args else kwargs.get("input", kwargs.get("query")))
            if size is not None and size not in self.sizes:
                self.sizes.append(size)

    def leave(self) -> None:
        """It has returned."""

    def axis(self, shape: tuple[Any, ...]) -> int | None:
        """The axis of an input of this shape that has the batch; None where more than one may be, or none is."""
        fitting = [axis for axis, size in enumerate(shape[:2]) if size in self.sizes]
        if len(fitting) == 2 and shape[0] == shape[1]:
            return fitting[0]  # as many samples either way
        return fitting[0] if len(fitting) == 1 else None


def _batch(module: nn.Module, given: Any) -> int | None:
    """The samples in what this module is given; None where it is unbatched, packed or something else."""
    if not isinstance(given, torch.Tensor):
        return None
    with torch._C.DisableTorchFunction():
        shape = tuple(given.shape)
    if isinstance(module, nn.RNNCellBase):
        size = shape[0] if len(shape) == 2 else None
    else:
        first = bool(vars(module).get("batch_first", False))
        size = shape[0 if first else 1] if len(shape) == 3 else None
    return size if type(size) is int else None
