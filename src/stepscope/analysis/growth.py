"""What a source has measured between its readings: growth, in joules for energy, and gaps in which nothing is known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from stepscope.analysis.intervals import Floats

Bools = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class Growth:
    """Growth over each interval between two good readings; one that is a gap counts for nothing, however much it grew.

    t_ns: (n,) middles of the good readings; steps: (n - 1,), NaN where not even the two ends tell; gap: (n - 1,).
    """

    t_ns: Floats
    steps: Floats
    gap: Bools
    wraps: int = 0
    refused: int = 0  # intervals and readings that cannot be true: set back, too fast, spikes

    @cached_property
    def grown(self) -> Floats:
        """Growth since the first reading, gaps left out: (n,)."""
        return _running(np.where(self.gap, 0.0, self.steps))

    @cached_property
    def covered_ns(self) -> Floats:
        """Time since the first reading in which growth is known: (n,)."""
        return _running(np.where(self.gap, 0.0, np.diff(self.t_ns)))

    @cached_property
    def skipped(self) -> Floats:
        """Growth over gaps whose two ends tell it, since the first reading: (n,). Known, but no part of `grown`."""
        return _running(np.where(self.gap & ~np.isnan(self.steps), self.steps, 0.0))

    @cached_property
    def dark_ns(self) -> Floats:
        """Time in gaps of which nothing at all is known, since the first reading: (n,)."""
        return _running(np.where(self.gap & np.isnan(self.steps), np.diff(self.t_ns), 0.0))

    @property
    def period_ns(self) -> float:
        """Typical distance of two readings, ns; 0 where there are fewer than two."""
        return float(np.median(np.diff(self.t_ns))) if len(self.t_ns) > 1 else 0.0

    @property
    def gaps_ns(self) -> Floats:
        """Begin and end of each gap, neighbours joined: (m, 2)."""
        edges = np.flatnonzero(np.diff(np.concatenate([[0], self.gap.astype(np.int8), [0]])))
        return np.column_stack([self.t_ns[edges[::2]], self.t_ns[edges[1::2]]]) if len(edges) else np.empty((0, 2))

    def at(self, running: Floats, t_ns: Floats) -> Floats:
        """A running sum of this source at any time; flat before the first reading and after the last."""
        return np.asarray(np.interp(t_ns, self.t_ns, running)) if len(self.t_ns) else np.zeros(len(t_ns))

    def between(self, t0_ns: Floats, t1_ns: Floats) -> Floats:
        """Growth over each of many stretches, (n,): NaN where a gap touches one or it was not read throughout."""
        grown, covered = (self.at(sums, t1_ns) - self.at(sums, t0_ns) for sums in (self.grown, self.covered_ns))
        return np.where(covered > (1 - _ROUNDING) * (t1_ns - t0_ns), grown, np.nan)


_ROUNDING = 1e-6


def _running(steps: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(steps)])


def cut(growth: Growth, spans_ns: Floats, known: bool = False) -> Growth:
    """The same with every interval that touches one of these spans, (m, 2) ns, made a gap.

    `known`: what the readings at both ends tell still holds; else it does not, as over a clock that jumped.
    """
    if not len(spans_ns) or len(growth.t_ns) < 2:
        return growth
    first = np.clip(np.searchsorted(growth.t_ns, spans_ns[:, 0], side="right") - 1, 0, len(growth.gap))
    last = np.clip(np.searchsorted(growth.t_ns, spans_ns[:, 1], side="left"), 0, len(growth.gap))
    change = np.zeros(len(growth.gap) + 1, dtype=np.int64)
    np.add.at(change, first, 1)
    np.add.at(change, np.maximum(last, first), -1)
    touched = np.cumsum(change)[:-1] > 0
    steps = growth.steps if known else np.where(touched, np.nan, growth.steps)
    return replace(growth, steps=steps, gap=growth.gap | touched)


def still_spans(growth: Growth, at_least_ns: float) -> Floats:
    """Spans, (m, 2) ns, in which it did not grow for this long; each reaches to the reading that moves again."""
    moved = np.flatnonzero(growth.gap | (np.nan_to_num(growth.steps) > 0))
    if not len(moved):
        return np.empty((0, 2))
    begins = np.concatenate([[0], moved + 1])  # readings: the last one that moved
    ends = np.concatenate([moved + 1, [len(growth.t_ns) - 1]])
    still = growth.t_ns[ends] - growth.t_ns[begins] > at_least_ns
    return np.asarray(np.column_stack([growth.t_ns[begins], growth.t_ns[ends]])[still])
