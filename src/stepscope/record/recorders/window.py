"""What one recording window hands over to be turned into rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepscope.record.recorders.optimizers import OptimizerCalls
from stepscope.record.recorders.tree import Ints


@dataclass(frozen=True)
class StepSpan:
    """A recorded step; times in ns of the monotonic clock."""

    step: int
    t0_ns: int
    t1_ns: int
    samples: int | None


@dataclass(frozen=True)
class Window:
    """What a recording window caught: raw events, the steps in it, and who called which optimizer."""

    raw: list[Any]
    steps: list[StepSpan]
    unix_offset_ns: int
    optimizer_calls: OptimizerCalls
    shapes: bool
    cuda: bool


@dataclass(frozen=True)
class StepProfile:
    """Self times of one step's rows in order, ns; `signature` is equal where the same ops ran in the same places."""

    step: int
    signature: int
    self_ns: Ints
