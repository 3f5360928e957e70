"""Parts that add up to what the source measured in total: one more observation, with an error of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.analysis.attribution.readings import Readings
from stepscope.analysis.intervals import Floats

FULL_TIME = 0.9  # share of the time seen from which the total is taken as exact
_TOTAL_ERROR = 5e-4  # of the total: rounding, ends of the run


@dataclass(frozen=True)
class Total:
    """Energy over the steps, J, its standard deviation, and the share of the time that the source looked at."""

    joules: float
    sd: float
    seen: float


def measured_total(readings: Readings, width: Floats, weight: Floats, seconds: float) -> Total:
    """Mean power times the length of the steps; a source that looks at a part of the time has not seen all of it.

    width: (M,) of each reading's window, weight: (M,) of each reading.
    """
    mean = float(np.average(readings.watts, weights=weight))
    distance = np.diff(readings.at)
    period = float(np.median(distance)) if len(distance) else seconds
    own = float(np.median(width))
    seen = min(1.0, own / period) if period > 0 else 1.0
    lost = float(np.maximum(distance - 3 * period, 0).sum()) / seconds if len(distance) else 0.0
    seen *= max(1.0 - lost, 0.0)
    spread = float(np.std(readings.watts)) / np.sqrt(max(readings.count, 1)) * seconds
    variance = spread**2 * (1 - seen) + (_TOTAL_ERROR * mean * seconds) ** 2
    return Total(mean * seconds, float(np.sqrt(variance)), seen)


def closed(joules: Floats, covariance: Floats, total: Total) -> tuple[Floats, Floats]:
    """Energies (P,) and covariance after the total was observed (a Kalman update); below 0 becomes 0.

    What a source that looks all the time still leaves open, under 0.1 %, is handed out in proportion.
    """
    along = covariance.sum(axis=1)
    gain = along / (along.sum() + total.sd**2)
    updated = np.maximum(joules + gain * (total.joules - joules.sum()), 0.0)
    if total.seen > FULL_TIME and updated.sum() > 0:
        updated = updated * (total.joules / updated.sum())
    return updated, covariance - np.outer(gain, along)
