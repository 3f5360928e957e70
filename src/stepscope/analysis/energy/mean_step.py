"""Mean length and samples of a timed step, and the energy of a step and of a sample at a mean power."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stepscope.analysis.energy.measured_energy import Energy
from stepscope.analysis.estimate import Estimate, drift_factor, mean_over_time, ratio_of_sums
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
        samples = samples_per_step(run)
        if len(lengths) < FEW:
            return cls(float(lengths.mean()), samples, None, None)
        counts = None if samples is None else steps["samples"].to_numpy().astype(np.float64)
        of_sample = None if counts is None else _relative_half_width(ratio_of_sums(lengths, counts), lengths / counts)
        of_step = _relative_half_width(mean_over_time(lengths), lengths)
        return cls(float(lengths.mean()), samples, of_step, of_sample)

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


def _relative_half_width(estimate: Estimate | None, lengths: Floats) -> float | None:
    """Half width of a CI as a share of the value: the wider side, and at least what the drift of the lengths makes it.

    Means of stretches lie apart from the value; where the machine drifts, neighbouring stretches are alike too.
    """
    if estimate is None or estimate.low is None or estimate.high is None or estimate.value <= 0:
        return None
    half = max(estimate.high - estimate.value, estimate.value - estimate.low) / estimate.value
    return max(half, (drift_factor(lengths) or 1.0) - 1)


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
