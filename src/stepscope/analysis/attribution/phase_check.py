"""Do the samples fall at all places of the step, or always at the same ones?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.analysis.attribution.readings import Readings
from stepscope.analysis.attribution.timeline import Timeline

WIDE = 0.004  # s: a stretch of the step without a sample that hides ops
_BY_CHANCE = 1e-3  # a stretch that is less likely than this among random phases is a lock


@dataclass(frozen=True)
class PhaseCheck:
    """The longest stretch of the step in which no sample ends, s; `locked`: not by chance; `wide`: it hides ops."""

    unsampled: float
    wide: bool
    locked: bool

    @property
    def sentence(self) -> str:
        """What is wrong and what to do; empty where nothing is."""
        if not self.wide:
            return ""
        stretch = f"no sample falls into {self.unsampled * 1e3:.1f} ms of the step"
        if self.locked:
            return f"the sampler is locked to the step: {stretch}; dither the period or change it by a few percent"
        return f"too few samples: {stretch}; train more steps"


def phase_check(timeline: Timeline, readings: Readings, lag: float) -> PhaseCheck:
    """Where in the step the windows end. A stretch counts from 4 ms, or a typical op where that is longer."""
    t = readings.at - lag
    step = timeline.step_of(t)
    begin, length = timeline.step_t0[step], timeline.step_t1[step] - timeline.step_t0[step]
    inside = (t >= begin) & (t < begin + length)
    phase = np.sort((t - begin)[inside] / length[inside])
    if len(phase) == 0:
        return PhaseCheck(timeline.step_length, wide=True, locked=False)
    empty = float(np.diff(np.append(phase, phase[0] + 1)).max())
    unsampled = empty * timeline.step_length
    limit = max(WIDE, float(np.nanmedian(timeline.piece_seconds)))
    by_chance = len(phase) * np.exp(-len(phase) * empty)  # of the longest of so many random gaps
    wide = unsampled > limit
    return PhaseCheck(unsampled, wide, bool(wide and by_chance < _BY_CHANCE))
