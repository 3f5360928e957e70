"""Slices that nest: what overlaps without nesting goes to a lane of its own, so that no viewer drops or bends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Lane:
    """One row of a viewer: `edges` is what happens in order, row r as r when it begins and as ~r when it ends."""

    edges: Ints
    number: int  # 0 is the lane that everything is in unless it overlaps

    @property
    def rows(self) -> Ints:
        """The rows that lie here, in order of their begin."""
        return self.edges[self.edges >= 0]


def lanes(t0_ns: Ints, t1_ns: Ints) -> list[Lane]:
    """Divide slices into as few lanes as nesting allows, greedily; t0_ns, t1_ns: (n,)."""
    order = np.lexsort((-t1_ns, t0_ns))
    found = _Stacks()
    for row, begin, end in zip(order.tolist(), t0_ns[order].tolist(), t1_ns[order].tolist(), strict=True):
        found.place(row, begin, end)
    return found.lanes()


class _Stacks:
    """What is open in each lane, while slices are placed in order of their begin."""

    def __init__(self) -> None:
        self._edges: list[list[int]] = [[]]
        self._open: list[list[tuple[int, int]]] = [[]]

    def place(self, row: int, begin: int, end: int) -> None:
        for edges, stack in zip(self._edges, self._open, strict=True):
            while stack and stack[-1][0] <= begin:
                edges.append(~stack.pop()[1])
            if not stack or end <= stack[-1][0]:
                break
        else:
            edges, stack = [], []
            self._edges.append(edges)
            self._open.append(stack)
        edges.append(row)
        stack.append((end, row))

    def lanes(self) -> list[Lane]:
        for edges, stack in zip(self._edges, self._open, strict=True):
            while stack:
                edges.append(~stack.pop()[1])
        return [Lane(np.array(edges, dtype=np.int64), number) for number, edges in enumerate(self._edges) if edges]
