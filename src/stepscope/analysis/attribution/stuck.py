"""Readings of a source that stopped moving: what it showed then is not what was drawn."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.attribution.timeline import Flags
from stepscope.analysis.intervals import Floats

_STEPS = 3  # what only rests moves again in the next step
_LEAST_S, _FEWEST = 1.0, 50  # of a stretch, and of readings beside it that tell how often the source moves
_CHANCE = 1e-9  # that a source which moves as this one does rests so long by itself


def stuck(t: Floats, watts: Floats, step_s: float) -> Flags:
    """Readings (M,) of the longest stretch of one value, where chance and a step's own pauses do not explain it."""
    none = np.zeros(len(watts), dtype=bool)
    known = np.flatnonzero(~np.isnan(watts))
    if len(known) < 2 * _FEWEST:
        return none
    moved = np.append(True, np.diff(watts[known]) != 0)
    begin = np.flatnonzero(moved)
    size = np.diff(np.append(begin, len(known)))
    longest = int(np.argmax(size))
    inside = known[begin[longest] : begin[longest] + size[longest]]
    beside = len(known) - len(inside)
    if beside < _FEWEST or t[inside[-1]] - t[inside[0]] < max(_LEAST_S, _STEPS * step_s):
        return none
    resting = 1 - (len(begin) - 1) / beside
    if resting > 0 and len(inside) * np.log(resting) > np.log(_CHANCE / len(known)):
        return none
    none[inside] = True
    return none
