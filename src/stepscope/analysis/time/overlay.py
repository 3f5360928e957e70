"""Two rows of pieces of time laid over each other, so that one piece runs at a time."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Floats, Ints

_NONE = -1


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
