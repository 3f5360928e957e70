"""Mean length and samples of a timed step, and the energy of a step and of a sample at a mean power."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stepscope.analysis.energy.rails import Energy
from stepscope.analysis.estimate import mean_interval
from stepscope.analysis.time.steps import FEW, timed_steps
from stepscope.arrays import Floats
from stepscope.runfolder import RunReader

Row = tuple[float | None, float | None, float | None]
_NOTHING: Row = (None, None, None)


@dataclass(frozen=True)
class MeanStep:
    """Mean length of a timed step, s, and mean samples in it; None where these were not counted.

    length_error, sample_error: half width of the 95 % CI of the mean length and of the time of a sample, as a share of
    them; None of fewer than 6 steps.
    """

    length_s: float
    samples: float | None
    length_error: float | None
    sample_error: float | None

    @classmethod
    def of(cls, run: RunReader) -> MeanStep:
        """Return those of the steps that the step time is taken from."""
        steps = timed_steps(run)[0]
        lengths = steps["length_ns"].to_numpy().astype(np.float64) / 1e9
        length_s, samples = float(lengths.mean()), samples_per_step(run)
        apart = None if samples is None else lengths - steps["samples"].to_numpy() * (length_s / samples)
        error = _ci_half_width(lengths) / length_s if len(lengths) >= FEW else None
        of_sample = _ci_half_width(apart) / length_s if apart is not None and len(apart) >= FEW else None
        return cls(length_s, samples, error, of_sample)

    def energy(self, power: Energy) -> Row:
        """Return the energy of a step, J, and the ends of its 95 % CI: of the power and of the mean length."""
        return _energy_of_time(power, self.length_s, self.length_error)

    def energy_of_sample(self, power: Energy) -> Row:
        """Return the energy of a training sample, J, and the ends of its 95 % CI; of nothing where none was counted."""
        return (
            _NOTHING
            if self.samples is None
            else _energy_of_time(power, self.length_s / self.samples, self.sample_error)
        )


def _ci_half_width(values: Floats) -> float:
    mean, _, high = mean_interval(values)
    return high - mean


def samples_per_step(run: RunReader) -> float | None:
    """Mean samples of a timed step; None where they were not counted in all of them."""
    samples = timed_steps(run)[0]["samples"]
    mean = samples.mean() if len(samples) and samples.null_count() == 0 else None
    return mean if isinstance(mean, float) and mean > 0 else None


def _energy_of_time(power: Energy, seconds: float, error: float | None) -> Row:
    """Energy of a time with its CI; error: half width of that of the time, as a share, independent of the power's."""
    if power.watts is None:
        return _NOTHING
    joules = power.watts * seconds
    if power.low_w is None or power.high_w is None or error is None:
        return joules, None, None
    below, above = ((end - power.watts) * seconds for end in (power.low_w, power.high_w))
    low, high = joules - math.hypot(below, error * joules), joules + math.hypot(above, error * joules)
    return joules, max(low, 0.0) if power.low_w >= 0 else low, high
