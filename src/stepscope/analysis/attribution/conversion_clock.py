"""The clock of a power register that is read more slowly than it converts, from how well each conversion would fit.

A register that averages nothing shows one conversion until the next: a reading is as old as the time since then, and
where that is not known it blurs like a window of a whole period. Under a right clock each reading is explained by the
power at its own conversion, under a wrong one by nothing: the period and phase that leave least are the clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.analysis.attribution.design import predicted
from stepscope.analysis.attribution.readings import Readings
from stepscope.analysis.attribution.sensor_model import SensorModel
from stepscope.analysis.attribution.timeline import Timeline
from stepscope.analysis.attribution.update_clock import UpdateClock
from stepscope.analysis.intervals import Floats

NEAR = 0.09  # drivers state the period in whole milliseconds, the chip's own clock is off by some percent more
CONVERSION = 1 / 6  # of the period: about what one conversion of a chip with several channels looks at
_AGES, _REACH, _PHASES = 45, 2.5, 24  # grid of ages, over so many periods, and of phases
_YOUNGEST = 0.5  # periods from the begin of that grid to the youngest reading, as the first fit has it
_FIRST, _KEPT = 200, 16  # readings that the search begins with; candidates that go on to twice as many
_FINE = 0.12  # of a period that a step of the search moves the last conversion
_CLIP = 6.0  # times the median: a reading further off tells nothing (it came late, or the op did)
_CLEAR = 6.0  # standard deviations that the best must stand out from clocks at random
_AT_RANDOM = 300
_FEWEST = 60


Found = tuple[float, float, float]  # mean error W^2, period s, phase s


@dataclass(frozen=True)
class _Misfits:
    """Squared error of each reading (ages, M), W^2, were it so old; `since`: stamps from the first on, s."""

    since: Floats
    error: Floats
    step: float

    def of(self, period: float, phase: Floats, count: int, youngest: float) -> Floats:
        """Mean error of the first readings under clocks of one period and several phases (F,).

        youngest: age of what is read right after it came, s from the begin of the grid.
        """
        age = youngest + np.mod(self.since[:count] - phase[:, None], period)
        row = np.minimum((age / self.step).astype(np.int64), len(self.error) - 1)
        mean: Floats = self.error[row, np.arange(count)].mean(axis=1)
        return mean


def clock_of_conversions(
    timeline: Timeline, readings: Readings, model: SensorModel, watts: Floats, nominal: float, near: float = NEAR
) -> UpdateClock | None:
    """The clock, if one stands out. watts: (P,) of a first fit; model: as then found, a blur of about a period;
    nominal: period, s, and `near` how far it may be off, as a share."""
    if readings.count < _FEWEST:
        return None
    misfits = _misfits(timeline, readings, model, watts, nominal)
    period, phase, least = _search(misfits, nominal, near)
    random = np.random.default_rng(0)
    count, usual = len(misfits.since), _YOUNGEST * nominal
    others = [
        float(misfits.of(nominal * (1 + NEAR * random.uniform(-1, 1)), random.uniform(0, nominal, 1), count, usual)[0])
        for _ in range(_AT_RANDOM)
    ]
    phase += _later(misfits, period, phase, usual)
    if least > np.mean(others) - _CLEAR * np.std(others):
        return None
    return UpdateClock.even(float(readings.stamp[0]) + phase, period)


def _later(misfits: _Misfits, period: float, phase: float, usual: float) -> float:
    """By how much later than found the values come, s, with the conversions where they are.

    The first fit knows the mean age only roughly: what came a little before or after a wrong instant would be taken
    for the conversion next to it.
    """
    shifts = np.arange(-_PHASES // 2, _PHASES + 1) * period / _PHASES
    shifts = shifts[usual + shifts >= 0]
    count = len(misfits.since)
    errors = [float(misfits.of(period, np.array([phase + by]), count, usual + by)[0]) for by in shifts]
    return float(shifts[int(np.argmin(errors))])


def _misfits(timeline: Timeline, readings: Readings, model: SensorModel, watts: Floats, nominal: float) -> _Misfits:
    """Of ages about the mean one, which the first fit has found: a period to either side and some more."""
    assert model.width is not None, "a gauge has one width"
    centre = model.lag + model.width / 2 + model.rc
    begin = centre - (0.5 + _YOUNGEST) * nominal
    step = _REACH * nominal / _AGES
    window = CONVERSION * nominal
    sharp = [SensorModel(begin + (row + 0.5) * step - window / 2, window) for row in range(_AGES)]
    error = np.array([(readings.watts - predicted(timeline, readings, one, watts)) ** 2 for one in sharp])
    usual = float(np.median(error[round((0.5 + _YOUNGEST) / _REACH * _AGES)]))
    return _Misfits(readings.stamp - readings.stamp[0], np.minimum(error, _CLIP * usual), step)


def _search(misfits: _Misfits, nominal: float, near: float) -> tuple[float, float, float]:
    """Period, phase and mean error of the best clock: few readings first, then twice as many about the best so far."""
    since, count = misfits.since, min(_FIRST, len(misfits.since))
    fine = _FINE * nominal**2 / max(float(since[count - 1]), nominal)
    reach = np.arange(-near * nominal, near * nominal + fine, fine) if near else np.zeros(1)
    phases = np.arange(_PHASES) / _PHASES * nominal
    found = _best(misfits, [(nominal + more, phases) for more in reach], count, _YOUNGEST * nominal)
    while count < len(since):
        count = min(2 * count, len(since))
        finer = _FINE * nominal**2 / float(since[count - 1])
        steps = np.arange(-2, 3) * finer if near else np.zeros(1)
        shifts = np.arange(-3, 4) * nominal / (2 * _PHASES)
        tried = [(period + more, phase + shifts) for _, period, phase in found for more in steps]
        found = _best(misfits, tried, count, _YOUNGEST * nominal)
    least, period, phase = found[0]
    return period, phase, least


def _best(
    misfits: _Misfits, tried: list[tuple[float, Floats]], count: int, usual: float
) -> list[tuple[float, float, float]]:
    """The best clocks among periods with phases each: mean error, period, phase; no two nearly the same."""
    all_found = sorted(
        (float(error), period, float(phase))
        for period, phases in tried
        for error, phase in zip(misfits.of(period, phases, count, usual), phases, strict=True)
    )
    kept: list[Found] = []
    for one in all_found:
        if all(abs(one[1] - other[1]) > 1e-12 or abs(one[2] - other[2]) > 1e-12 for other in kept):
            kept.append(one)
        if len(kept) == _KEPT:
            break
    return kept
