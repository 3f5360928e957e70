"""Phases of the step that a gauge never reads, since its readings keep step with the training: what they may hide.

A gauge that converts for a moment each 100 ms, beside steps of 99.9 ms, reads the same part of every step. The mean of
its readings is not the mean power then, however many there are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepscope.analysis.energy.power_sources import PowerSource
from stepscope.analysis.energy.rails import Energy
from stepscope.analysis.energy.regression import BY_CHANCE
from stepscope.analysis.time.steps import steps_after_warmup
from stepscope.runfolder import RunReader
from stepscope.units import percent

_FEWEST = 20  # readings in steps
_OF_A_BIN, _BINS = 10, (4, 40)  # readings; bins of the step
_AVERAGED = 0.5  # of the time between two readings: a gauge that averages over so much misses no phase


@dataclass(frozen=True)
class UnreadPhase:
    """Bounds of the mean power, W, where a share of the step was never read: it may be the least or the most seen."""

    share: float
    low_w: float
    high_w: float

    def widened(self, energy: Energy) -> Energy:
        """Return an energy whose CI reaches to these bounds."""
        if energy.joules is None or energy.low_w is None or energy.high_w is None:
            return energy
        low_j, high_j = (watts * energy.covered_s for watts in (self.low_w, self.high_w))
        return replace(
            energy,
            low_w=min(energy.low_w, self.low_w),
            high_w=max(energy.high_w, self.high_w),
            low_j=min(energy.low_j or 0.0, low_j),
            high_j=max(energy.high_j or 0.0, high_j),
        )

    def sentence(self, name: str) -> str:
        """Return what to know of a rail's energy."""
        return (
            f"{name}: its readings keep step with the training, and {percent(self.share)} of the step is never read: "
            "the CI allows for the least and the most power there; change the step's length or the sensor's period"
        )


def find_unread_phase(run: RunReader, source: PowerSource) -> UnreadPhase | None:
    """Return what the readings of a gauge leave out of the step; None where that may be chance, or nothing is."""
    steps = steps_after_warmup(run)
    if source.kind != "gauge" or steps.is_empty() or source.window_ns >= _AVERAGED * source.growth.period_ns:
        return None
    begin, end = steps["t0_ns"].to_numpy(), steps["t1_ns"].to_numpy()
    step = np.clip(np.searchsorted(begin, source.read_ns, side="right") - 1, 0, None)
    inside = (source.read_ns >= begin[step]) & (source.read_ns < end[step])
    phase = ((source.read_ns - begin[step]) / (end[step] - begin[step]))[inside]
    watts, count = source.read_w[inside], int(inside.sum())
    if count < _FEWEST:
        return None
    ordered = np.sort(phase)
    longest = float(np.diff(np.append(ordered, ordered[0] + 1)).max())
    if count * np.exp(-count * longest) >= BY_CHANCE:
        return None
    bins = int(np.clip(count // _OF_A_BIN, *_BINS))
    place = np.minimum((phase * bins).astype(np.int64), bins - 1)
    read = np.bincount(place, minlength=bins)
    mean = np.bincount(place, weights=watts, minlength=bins)[read > 0] / read[read > 0]
    share = float((read == 0).mean())
    read_watts = float(mean.sum()) / bins
    return UnreadPhase(share, read_watts + share * float(watts.min()), read_watts + share * float(watts.max()))
