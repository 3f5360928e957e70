"""FLOPs and bytes of op instances, learnt in the few steps that record shapes and looked up in all others.

Recording shapes makes a dispatch-bound step a quarter slower, so it is done in warm-up steps only. A later step takes
the numbers over when it ran the same ops in the same places on as many samples; otherwise they stay null.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from stepscope.record.op_cost import count_op_bytes, count_op_flops, has_formula
from stepscope.record.recorders.events import Events
from stepscope.record.recorders.tree import Ints
from stepscope.record.recorders.window import StepProfile, Window

NOT_KNOWN = -1


class Costs(Protocol):
    """What ops cost: per step its profile; per row FLOPs and bytes, NOT_KNOWN where nothing tells."""

    def look_up(
        self,
        window: Window,
        events: Events,
        order: Ints,
        place: Ints,
        name: Ints,
        module: Ints,
        self_ns: Ints,
        texts: list[str],
    ) -> tuple[list[StepProfile], Ints, Ints]:
        """Rows in `order`, each in the step of `place`."""


class ShapeBook:
    """What each op of a step costs, by the step's signature."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int | None], tuple[Ints, Ints]] = {}
        self.missed = False  # a step came by whose shapes were never seen: worth another look

    def look_up(
        self,
        window: Window,
        events: Events,
        order: Ints,
        place: Ints,
        name: Ints,
        module: Ints,
        self_ns: Ints,
        texts: list[str],
    ) -> tuple[list[StepProfile], Ints, Ints]:
        """Per step its profile; per row FLOPs and bytes, NOT_KNOWN where shapes do not tell."""
        flops = np.full(len(order), NOT_KNOWN, dtype=np.int64)
        read = np.full(len(order), NOT_KNOWN, dtype=np.int64)
        profiles = []
        on_cpu = events.gpu[order] < 0
        edges = np.searchsorted(place, np.arange(len(window.steps) + 1))
        for span, first, last in zip(window.steps, edges[:-1], edges[1:], strict=True):
            rows = first + np.flatnonzero(on_cpu[first:last])
            signature = hash((name[rows].tobytes(), module[rows].tobytes()))
            profiles.append(StepProfile(span.step, signature, self_ns[first:last]))
            key = (signature, span.samples)
            if window.shapes and key not in self._known:
                self._known[key] = _costs([events.raw[row] for row in order[rows]], name[rows], texts)
            if key in self._known:
                flops[rows], read[rows] = self._known[key]
            else:
                self.missed = True
        return profiles, flops, read


def _costs(raw: list[Any], name: Ints, texts: list[str]) -> tuple[Ints, Ints]:
    flops, read = [], []
    counted = [has_formula(text) for text in texts]
    for event, index in zip(raw, name.tolist(), strict=True):
        shapes = event.shapes()
        values = event.concrete_inputs() if counted[index] else ()
        flops.append(_or_unknown(count_op_flops(texts[index], shapes, values)) if counted[index] else NOT_KNOWN)
        read.append(_or_unknown(count_op_bytes(shapes, event.dtypes())) if shapes else 0)
    return np.array(flops, dtype=np.int64), np.array(read, dtype=np.int64)


def _or_unknown(value: int | None) -> int:
    return NOT_KNOWN if value is None else value
