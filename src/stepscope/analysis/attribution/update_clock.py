"""The clock by which a register or a counter is renewed, from readings that come at other times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.analysis.attribution.timeline import Flags
from stepscope.analysis.intervals import Floats

NEAR = 0.05  # a stated period may be so far off
_FIRST = 1_500  # instants that find the period at first; more refine it
_FEWEST = 20
_FINE = 0.15  # of a turn over the whole span: step of the search
_COMB = 0.35  # length of the mean turn from which a comb is one
_LOCAL, _STEADY = 21, 0.5  # changes over which a clock that walks is followed, and how well they must agree
_SAWTOOTH, _BY_CHANCE = 0.3, 1e-3  # share of the harmonic that must show; chance of a false one
_BEYOND = 1e8  # periods to either side that a clock is good for
_PUNCTUAL = 0.06  # of a period: an update may come so much before or after its time


@dataclass(frozen=True)
class UpdateClock:
    """Counts updates: `turns` (K,) of them at the instants `at` (K,), evenly between."""

    at: Floats
    turns: Floats
    period: float

    @classmethod
    def even(cls, begin: float, period: float) -> UpdateClock:
        """Updates at `begin` + n `period`, s."""
        return cls(np.array([begin]), np.array([0.0]), period)

    @property
    def _knots(self) -> tuple[Floats, Floats]:
        far = _BEYOND
        at = np.concatenate([[self.at[0] - far * self.period], self.at, [self.at[-1] + far * self.period]])
        return at, np.concatenate([[self.turns[0] - far], self.turns, [self.turns[-1] + far]])

    def number(self, t: Floats) -> Floats:
        """Number of the last update before each instant."""
        count: Floats = np.floor(np.interp(t, *self._knots))
        return count

    def made(self, number: Floats) -> Floats:
        """When each update happened, s."""
        at, turns = self._knots
        when: Floats = np.interp(number, turns, at)
        return when

    def latched(self, t: Floats) -> Floats:
        """When the value that is read at each instant was made, s."""
        return self.made(self.number(t))

    def of_change(self, before: Floats, after: Floats) -> Floats:
        """When a value was made that was not there at `before` and was at `after`: the update between, or the nearest.

        Updates are not quite punctual: where none lies between, the one that is less far outside is it.
        """
        last = self.number(after)
        early, late = before - self.made(last), self.made(last + 1) - after
        return self.made(np.maximum.accumulate(np.where((early > 0) & (late < early), last + 1, last)))

    def unsure(self, t: Floats) -> Flags:
        """Instants so near an update that it may have come or not."""
        turns = np.interp(t, *self._knots)
        return np.asarray(np.abs(turns - np.rint(turns)) < _PUNCTUAL)


def clock_of_changes(stamp: Floats, moved: Flags, nominal: float | None) -> UpdateClock | None:
    """The clock behind the changes of a value that is read faster than it moves; None where they keep to none.

    stamp: (M,) of the readings, moved: (M,) does a reading differ from the one before; nominal: period, s, if stated.
    """
    place = np.flatnonzero(moved[1:]) + 1
    if len(place) < _FEWEST:
        return None
    stated = nominal if nominal is not None else float(np.median(np.diff(stamp[place])))
    gap = stamp[place] - stamp[place - 1]
    sharp = gap < 0.8 * stated
    if sharp.sum() < _FEWEST or (nominal is None and float(np.median(gap)) > 0.5 * stated):
        return None
    middle = ((stamp[place] + stamp[place - 1]) / 2)[sharp]
    period, turn = comb(middle, np.ones(len(middle)), stated)
    if abs(turn) >= _COMB:
        return UpdateClock.even(float(middle[0] + np.angle(turn) / (2 * np.pi) * period), period)
    return _walking(middle, stated)


def _walking(middle: Floats, period: float) -> UpdateClock | None:
    """A clock without a memory of where it should be, followed from change to change."""
    spin = np.exp(2j * np.pi / period * (middle - middle[0]))
    near = _smoothed(spin.real, _LOCAL) + 1j * _smoothed(spin.imag, _LOCAL)
    if float(np.abs(near).mean()) < _STEADY:
        return None
    late = np.unwrap(np.angle(near)) / (2 * np.pi)
    turns = (middle - middle[0]) / period - late
    rising = np.append(True, np.diff(turns) > 0) & (turns >= np.maximum.accumulate(turns))
    return UpdateClock(middle[rising], turns[rising], period)


def clock_of_residuals(t: Floats, surprise: Floats, speed: Floats, nominal: float) -> UpdateClock | None:
    """The clock behind what a value that is read more slowly than it moves lacks at each reading.

    surprise: (M,) growth since the reading before, less that of the fit; speed: (M,) of its growth, per second (power
    for a counter). At each reading it lacks speed times the time since the update, a sawtooth, and gives it back at the
    next: the sawtooth's first harmonic is looked for by a matched filter.
    """
    if len(t) < _FEWEST:
        return None
    wave = (surprise - np.append(surprise[1:], 0.0)) * speed
    period, turn = comb(t, wave, nominal)
    expected = float((speed**2).mean()) * period / np.pi  # what is lacked and given back: twice half the harmonic
    looked_at = 2 * NEAR * float(t[-1] - t[0]) / nominal + 1  # independent periods
    by_chance = float(wave.std()) * np.sqrt(np.log(looked_at / _BY_CHANCE) / len(wave))
    if abs(turn) < max(_SAWTOOTH * expected, by_chance):
        return None
    return UpdateClock.even(float(t[0] + (np.angle(turn) / (2 * np.pi) - 0.25) * period), period)


def comb(t: Floats, weight: Floats, nominal: float) -> tuple[float, complex]:
    """The period near `nominal` at which the weights turn together, s, and their mean turn about the first instant."""
    since = t - t[0]
    period, near, count = nominal, NEAR, _FIRST
    while True:
        part, share = since[:count], weight[:count]
        fine = _FINE * period**2 / max(float(part[-1]), period)
        tried = period + np.arange(-near * period, near * period + fine, fine)
        strength = [abs(share @ np.exp(2j * np.pi / one * part)) for one in tried]
        period = float(tried[int(np.argmax(strength))])
        if count >= len(since):
            break
        count, near = 2 * count, 2 * fine / period
    return period, complex(weight @ np.exp(2j * np.pi / period * since)) / len(since)


def _smoothed(values: Floats, span: int = 21) -> Floats:
    """Moving mean; shorter at the ends."""
    total = np.append(0.0, np.cumsum(values))
    place = np.arange(len(values))
    low, high = np.maximum(place - span // 2, 0), np.minimum(place + span // 2 + 1, len(values))
    mean: Floats = (total[high] - total[low]) / (high - low)
    return mean
