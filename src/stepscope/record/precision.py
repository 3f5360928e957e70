"""The arithmetic of a workload: as torch does it, or in bfloat16 where autocast finds it safe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import torch

from stepscope.errors import UnknownName

PRECISIONS = {"fp32": "float32", "bf16": "bfloat16 (autocast)"}
Work = TypeVar("Work")


def describe_precision(precision: str) -> str:
    """Return its content for run.json."""
    return PRECISIONS[precision]


def in_precision(workload: Work, precision: str, device: str) -> Work:
    """The workload with its forward and loss under autocast; weights, their gradients and the optimizer stay float32.

    A step of the workload's own runs under autocast as a whole: what it computes is not known from outside.
    bfloat16 has the exponents of float32, so no loss scaling is needed.
    """
    if precision not in PRECISIONS:
        raise UnknownName("precision", precision, PRECISIONS)
    if precision == "fp32":
        return workload
    known: Any = workload
    kind = torch.device(device).type

    def cast(function: Any) -> Any:
        def called(*arguments: Any) -> Any:
            with torch.autocast(kind, dtype=torch.bfloat16):
                return function(*arguments)

        return called

    changed: Work = replace(known, loss=cast(known.loss), step=None if known.step is None else cast(known.step))
    return changed
