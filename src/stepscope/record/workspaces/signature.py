"""The identity of an op for its workspace: everything but the number of samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Probed:
    """A measured workspace, B: one share that does not depend on the batch and one a sample."""

    fixed: float
    per_sample: float

    def bytes(self, samples: int) -> int:
        """At a batch of so many samples."""
        return max(0, round(self.fixed + self.per_sample * samples))


def signature(func: Any, args: tuple[Any, ...]) -> str:
    """Name, types, shapes and numbers; of activations (more than two dimensions) the first one is left out."""
    weights = 2 if "backward" in func.__name__ else 1
    return f"{func.__name__}({', '.join(_text(arg, place == weights) for place, arg in enumerate(args))})"


def _text(arg: Any, is_weight: bool) -> str:
    if isinstance(arg, Tensor):
        shape = tuple(arg.shape) if is_weight else tuple(arg.shape[1:])
        return f"{str(arg.dtype).removeprefix('torch.')}{list(shape)}{'' if arg.is_contiguous() else 'strided'}"
    return str(arg)
