"""Stretches of time: what several cover, what they leave, and pieces laid over each other so that one runs at a time.

Spans are (n, 2), begin and end, integers (ns) or floats; a union is disjoint and in order.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from stepscope.arrays import Flags, Floats, Ints

_NONE = -1
Spans = TypeVar("Spans", Ints, Floats)


def union(spans: Spans) -> Spans:
    """Spans (n, 2) as disjoint ones in order."""
    if len(spans) == 0:
        return spans.reshape(-1, 2)
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    until = np.maximum.accumulate(spans[:, 1])
    first = np.append(True, spans[1:, 0] > until[:-1])
    last = np.append(np.flatnonzero(first)[1:] - 1, len(spans) - 1)
    return np.column_stack([spans[first, 0], until[last]])


def complement(busy: Spans, t0: float, t1: float) -> Spans:
    """Stretches between two times in which none of the spans of a union lies."""
    edges = np.column_stack([np.append(t0, busy[:, 1]), np.append(busy[:, 0], t1)])
    gaps: Spans = edges[edges[:, 1] > edges[:, 0]].astype(busy.dtype)
    return gaps


def overlap(spans: Spans, covered: Spans) -> Spans:
    """Time of each span that lies in a union, (n,)."""
    if len(covered) == 0 or len(spans) == 0:
        return np.zeros(len(spans), dtype=spans.dtype)
    edges = np.append(covered[0, 0] - 1, covered.ravel())
    grown = np.cumsum(np.append(0, covered[:, 1] - covered[:, 0]))
    level = np.append(0, np.column_stack([grown[:-1], grown[1:]]).ravel())
    begin, end = (np.interp(spans[:, at] - edges[0], edges - edges[0], level) for at in (0, 1))
    inside = end - begin
    lengths: Spans = (np.rint(inside) if spans.dtype.kind == "i" else inside).astype(spans.dtype)
    return lengths


def subtract(spans: Spans, covered: Spans) -> Spans:
    """Union of what a union leaves of another."""
    edges = np.unique(np.concatenate([spans.ravel(), covered.ravel()]))
    begin, end = edges[:-1], edges[1:]

    def inside(part: np.ndarray[Any, Any]) -> Flags:
        return np.searchsorted(part[:, 0], begin, side="right") > np.searchsorted(part[:, 1], begin, side="right")

    return union(np.column_stack([begin, end])[inside(spans) & ~inside(covered)])


def overlay(
    lower: tuple[Floats, Floats], upper: tuple[Floats, Floats], fill: bool = False
) -> tuple[Floats, Floats, Ints]:
    """Begin, end and number of each piece of both, where each of the two is in order and apart.

    lower, upper: begins and ends (n,) and (m,); numbers count the upper ones behind the lower ones. Where two run, the
    one that began later does, and the other goes on behind it; `fill`: the upper ones have only what the lower leave.
    """
    edges = np.unique(np.concatenate([*lower, *upper]))
    (under, under_t0), (over, over_t0) = (_running(edges[:-1], *pieces) for pieces in (lower, upper))
    above = (over != _NONE) & (under == _NONE if fill else over_t0 >= under_t0)
    running = np.where(above, over + len(lower[0]), under)
    begins = np.flatnonzero(np.diff(running, prepend=_NONE))
    ends = np.append(begins[1:], len(running))[: len(begins)]
    some = running[begins] != _NONE
    return edges[begins[some]], edges[ends[some]], running[begins[some]]


def _running(at: Floats, t0: Floats, t1: Floats) -> tuple[Ints, Floats]:
    """Number of the piece that runs at each time and its begin; _NONE and -inf where none does."""
    place = np.searchsorted(t0, at, side="right") - 1
    number = np.where(at < np.append(t1, -np.inf)[place], place, _NONE).astype(np.int64)
    return number, np.append(t0, -np.inf)[number]
