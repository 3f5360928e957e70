"""Which event runs inside which: parents, depth and self time of nested intervals, without a Python loop an event."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]
NO_PARENT = -1


def by_thread_and_time(thread: Ints, t0: Ints, t1: Ints) -> Ints:
    """The order in which a parent comes before its children: by thread, then start, then the longer first."""
    return np.lexsort((-t1, t0, thread))


def depths(thread: Ints, t0: Ints, t1: Ints) -> Ints:
    """How many intervals of the same thread enclose each one; input in the order of `by_thread_and_time`.

    Intervals of a thread are nested or apart, so what encloses one is what began before it less what has ended.
    """
    depth = np.zeros(len(t0), dtype=np.int64)
    for first, last in _runs(thread):
        starts, ends = t0[first:last], np.maximum(t1[first:last], t0[first:last] + 1)
        begun = np.arange(last - first)
        depth[first:last] = begun - np.searchsorted(np.sort(ends), starts, side="right")
    return depth.clip(min=0)


def parents(thread: Ints, depth: Ints) -> Ints:
    """Row of each interval's parent, NO_PARENT at the top: the last row of the same thread that is one level up."""
    parent = np.full(len(depth), NO_PARENT, dtype=np.int64)
    for first, last in _runs(thread):
        levels = depth[first:last]
        above = np.flatnonzero(levels == 0)
        for level in range(1, int(levels.max(initial=0)) + 1):
            here = np.flatnonzero(levels == level)
            if len(above) == 0:
                break
            place = np.searchsorted(above, here) - 1
            parent[first + here] = np.where(place >= 0, first + above[np.maximum(place, 0)], NO_PARENT)
            above = here
    return parent


def self_times(t0: Ints, t1: Ints, parent: Ints) -> Ints:
    """Time of each interval outside its children, ns; never below 0."""
    spans = t1 - t0
    inside = np.zeros(len(t0), dtype=np.int64)
    nested = parent != NO_PARENT
    np.add.at(inside, parent[nested], spans[nested])
    return (spans - inside).clip(min=0)


def _runs(thread: Ints) -> list[tuple[int, int]]:
    """First and past-the-last row of each thread's stretch."""
    edges = np.flatnonzero(np.diff(thread)) + 1
    bounds = [0, *edges.tolist(), len(thread)]
    return [(a, b) for a, b in pairwise(bounds) if b > a]
