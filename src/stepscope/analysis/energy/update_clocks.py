"""The clocks of power sources: of updates, of late stamps, and of a meter beside the machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Flags, Floats

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

    def update_times(self, number: Floats) -> Floats:
        """Return the time of each update, s."""
        at, turns = self._knots
        when: Floats = np.interp(number, turns, at)
        return when

    def last_update_times(self, t: Floats) -> Floats:
        """Return when the value that is read at each instant was made, s."""
        return self.update_times(self.number(t))

    def change_times(self, before: Floats, after: Floats) -> Floats:
        """Return when a value was made that was absent at `before` and there at `after`: the update between, or the
        nearest.

        Updates are not quite punctual: where none lies between, the one that is less far outside is it.
        """
        last = self.number(after)
        early, late = before - self.update_times(last), self.update_times(last + 1) - after
        return self.update_times(np.maximum.accumulate(np.where((early > 0) & (late < early), last + 1, last)))

    def is_near_update(self, t: Floats) -> Flags:
        """Instants so near an update that it may have come or not."""
        turns = np.interp(t, *self._knots)
        return np.asarray(np.abs(turns - np.rint(turns)) < _PUNCTUAL)


def fit_clock_to_changes(stamp: Floats, moved: Flags, nominal: float | None) -> UpdateClock | None:
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
    period, turn = strongest_period(middle, np.ones(len(middle)), stated)
    if abs(turn) >= _COMB:
        return UpdateClock.even(float(middle[0] + np.angle(turn) / (2 * np.pi) * period), period)
    return _drifting_clock(middle, stated)


def _drifting_clock(middle: Floats, period: float) -> UpdateClock | None:
    """A clock without a memory of where it should be, followed from change to change."""
    spin = np.exp(2j * np.pi / period * (middle - middle[0]))
    near = _moving_mean(spin.real, _LOCAL) + 1j * _moving_mean(spin.imag, _LOCAL)
    if float(np.abs(near).mean()) < _STEADY:
        return None
    late = np.unwrap(np.angle(near)) / (2 * np.pi)
    turns = (middle - middle[0]) / period - late
    rising = np.append(True, np.diff(turns) > 0) & (turns >= np.maximum.accumulate(turns))
    return UpdateClock(middle[rising], turns[rising], period)


def fit_clock_to_residuals(t: Floats, surprise: Floats, speed: Floats, nominal: float) -> UpdateClock | None:
    """The clock behind what a value that is read more slowly than it moves lacks at each reading.

    surprise: (M,) growth since the reading before, less that of the fit; speed: (M,) of its growth, per second (power
    for a counter). At each reading it lacks speed times the time since the update, a sawtooth, and gives it back at the
    next: the sawtooth's first harmonic is looked for by a matched filter.
    """
    if len(t) < _FEWEST:
        return None
    wave = (surprise - np.append(surprise[1:], 0.0)) * speed
    period, turn = strongest_period(t, wave, nominal)
    expected = float((speed**2).mean()) * period / np.pi  # what is lacked and given back: twice half the harmonic
    looked_at = 2 * NEAR * float(t[-1] - t[0]) / nominal + 1  # independent periods
    by_chance = float(wave.std()) * np.sqrt(np.log(looked_at / _BY_CHANCE) / len(wave))
    if abs(turn) < max(_SAWTOOTH * expected, by_chance):
        return None
    return UpdateClock.even(float(t[0] + (np.angle(turn) / (2 * np.pi) - 0.25) * period), period)


def strongest_period(t: Floats, weight: Floats, nominal: float) -> tuple[float, complex]:
    """The period near `nominal` at which the weights turn together, s, and their mean turn about the first instant."""
    since = t - t[0]
    period, near, count = nominal, NEAR, _FIRST
    while True:
        part, share = since[:count], weight[:count]
        fine = _FINE * period**2 / max(float(part[-1]), period)
        tried = period + np.arange(-near * period, near * period + fine, fine)
        strength = [abs(share @ np.exp(2j * np.pi / length * part)) for length in tried]
        period = float(tried[int(np.argmax(strength))])
        if count >= len(since):
            break
        count, near = 2 * count, 2 * fine / period
    return period, complex(weight @ np.exp(2j * np.pi / period * since)) / len(since)


# A clock is searched for on few readings first, then on twice as many about the best so far: the more, the finer.

NEAR_STATED = 0.09  # drivers state a period in whole milliseconds, and a chip's own clock is off by some percent more
_OF_A_PERIOD = 2
_FIRST_SEEN, _SURVIVORS, _PHASES = 200, 16, 24  # readings that the search begins with; candidates that go on; phases
_FINE_SHIFT = 0.12  # of a period that a step of the search moves the last update
_CLEAR = 6.0  # standard deviations that the best must stand out from clocks at random
_AT_RANDOM = 300
ClockError = Callable[[float, Floats, int], Floats]  # of a period, s, phases (F,), s, and the first readings: (F,)


def search_clock(error: ClockError, since: Floats, nominal: float, near: float) -> tuple[float, float, float]:
    """Period, phase, s, and mean error of the best clock; since: (M,) stamps from the first on, s."""
    count = min(_FIRST_SEEN, len(since))
    fine = _FINE_SHIFT * nominal**2 / max(float(since[count - 1]), nominal)
    reach = np.arange(-near * nominal, near * nominal + fine, fine) if near else np.zeros(1)
    phases = np.arange(_PHASES) / _PHASES * nominal
    clocks = _best_clocks(error, [(nominal + more, phases) for more in reach], count)
    while count < len(since):
        count = min(2 * count, len(since))
        finer = _FINE_SHIFT * nominal**2 / float(since[count - 1])
        steps = np.arange(-2, 3) * finer if near else np.zeros(1)
        shifts = np.arange(-3, 4) * nominal / (2 * _PHASES)
        clocks = _best_clocks(
            error, [(period + more, phase + shifts) for _, period, phase in clocks for more in steps], count
        )
    least, period, phase = clocks[0]
    return period, phase, least


def is_best_clock_clear(error: ClockError, count: int, nominal: float, least: float) -> bool:
    """Is the best clock's error far below that of clocks at random?"""
    random = np.random.default_rng(0)
    others = [
        float(error(nominal * (1 + NEAR_STATED * random.uniform(-1, 1)), random.uniform(0, nominal, 1), count)[0])
        for _ in range(_AT_RANDOM)
    ]
    return bool(least <= np.mean(others) - _CLEAR * np.std(others))


def _best_clocks(error: ClockError, tried: list[tuple[float, Floats]], count: int) -> list[tuple[float, float, float]]:
    """The best clocks among periods with phases each: mean error, period, phase; no two nearly the same.

    Of a period, two at the most: few readings fit a whole range of phases alike, and the right period must not be lost.
    """
    off = np.concatenate([error(period, phases, count) for period, phases in tried])
    period = np.repeat([period for period, _ in tried], [len(phases) for _, phases in tried])
    phase = np.concatenate([phases for _, phases in tried])
    ranked = (
        (float(off[place]), float(period[place]), float(phase[place])) for place in np.lexsort((phase, period, off))
    )
    clocks: list[tuple[float, float, float]] = []
    for clock in ranked:
        like = [other for other in clocks if abs(other[1] - clock[1]) <= 1e-12]
        if len(like) < _OF_A_PERIOD and all(abs(other[2] - clock[2]) > 1e-12 for other in like):
            clocks.append(clock)
        if len(clocks) == _SURVIVORS:
            break
    return clocks


# Two reads that give the same value saw no update between them, two that differ saw one: whatever the powers are, that
# is what the clock of a register must explain. Values can be equal by chance where power hardly moves or the resolution
# is coarse: how often they would be is taken from how they move nearby.

_FEWEST_REPEATS, _WRONG = 8, 0.03  # equal neighbours; share of the pairs that a right clock may not explain
_NEARBY, _TELLING = 5, 0.7  # changes from which chance is taken; chance from which a pair tells nothing
_LEAST_CHANCE = 0.02
_EVIDENT = 22.0  # natural logarithm: gain over no clock; the best of some 100,000 clocks at random gains 12
_PERIODS = 240  # that are tried
_MOST_PERIOD = 20  # of the whole time, a period at the most is one part in so many
_POSSIBLE = 25.0  # natural logarithm: a clock so much less likely than the best is none
_BAND, _BANDS = 0.03, 9  # half of what is searched at once, of a period; such bands to either side
_SEEN_FIRST, _SEEN = 800, 12_800  # pairs from which a band is searched, and a clock
_BANDS_LEFT, _CLOSE = 5, 2e-3  # bands that go on; how far off their periods can be, as a share
_CONTRADICTED = 0.1  # of the pairs without an update between, that may differ


@dataclass(frozen=True)
class _Pairs:
    """Neighbouring reads (K,): times since the first, s, are their values equal, and the chance that new ones are."""

    before: Floats
    after: Floats
    equal: Flags
    chance: Floats

    @classmethod
    def of(cls, stamp: Floats, value: Floats) -> _Pairs:
        """The pairs of reads (M,) that tell whether an update came between."""
        change = np.diff(value)
        moved = np.abs(change) > 1e-9 * np.abs(value).max(initial=0.0)
        step = float(np.abs(change[moved]).min(initial=np.inf))
        spread = np.sqrt(
            np.maximum(_mean_of_neighbours(change**2, round(_NEARBY / max(float(moved.mean()), 1e-3))), 1e-30) / 2
        )
        chance = np.clip(step / (2 * np.sqrt(np.pi) * spread), _LEAST_CHANCE, 1.0)
        telling = chance < _TELLING
        since = stamp - stamp[0]
        return cls(since[:-1][telling], since[1:][telling], ~moved[telling], chance[telling])

    def cost(self, still: Floats) -> Floats:
        """Negative logarithm of the likelihood of each, if no update came between with this probability (..., K)."""
        same = still * (1 - _WRONG) + (1 - still) * self.chance
        return np.asarray(-np.log(np.where(self.equal, same, 1 - same)))

    def without_clock(self, period: float) -> float:
        """The same of all together, for updates of this period at a phase that nobody knows."""
        apart = self.after - self.before
        return float(self.cost(np.clip(1 - apart / period, 0.0, 1.0)).sum())


def _mean_of_neighbours(values: Floats, span: int) -> Floats:
    """Mean of the entries around each one, without it."""
    place = np.arange(len(values))
    size = np.minimum(place + span // 2 + 1, len(values)) - np.maximum(place - span // 2, 0)
    return np.asarray((_moving_mean(values, span) * size - values) / np.maximum(size - 1, 1))


def fit_clocks_to_repeats(stamp: Floats, value: Floats, nominal: float | None) -> list[UpdateClock]:
    """The clocks that explain which neighbouring reads are equal, best first; none where none stands out.

    Reads that nearly keep step with the updates fit several periods alike: what the values mean must then decide.
    stamp: (M,) of the reads, s, value: (M,); nominal: period, s, if stated.
    """
    pairs = _Pairs.of(stamp, value)
    if len(pairs.equal) < _FIRST_SEEN // 2 or pairs.equal.sum() < _FEWEST_REPEATS:
        return []
    # Cost of a pair with an update between and without one.
    moved, still = pairs.cost(np.zeros(len(pairs.equal))), pairs.cost(np.ones(len(pairs.equal)))

    def error(period: float, phase: Floats, count: int) -> Floats:
        early, late = (np.floor((at[:count] - phase[:, None]) / period) for at in (pairs.before, pairs.after))
        return np.asarray(np.where(early == late, still[:count], moved[:count]).mean(axis=1))

    first = [search_clock(error, pairs.after[:_SEEN_FIRST], guess, _BAND) for guess in _likely_periods(pairs, nominal)]
    first = sorted(first, key=lambda entry: entry[2])[:_BANDS_LEFT]
    ranked: list[tuple[float, UpdateClock]] = []
    for near, _, _ in first:
        period, phase, least = search_clock(error, pairs.after[:_SEEN], near, _CLOSE)
        count = min(len(pairs.equal), _SEEN)
        cost = least * count
        if pairs.without_clock(period) * count / len(pairs.equal) - cost > _EVIDENT:
            period, phase = _refine_period_and_phase(error, pairs.after, period, phase)
            clock = UpdateClock.even(float(stamp[0]) + phase, period)
            if explains_repeats(clock, stamp, value):
                ranked.append((cost, clock))
    ranked.sort(key=lambda entry: entry[0])
    clocks: list[UpdateClock] = []
    for cost, clock in ranked:
        if cost < ranked[0][0] + _POSSIBLE and all(
            abs(clock.period / other.period - 1) > _BAND / 2 for other in clocks
        ):
            clocks.append(clock)
    return clocks


def explains_repeats(clock: UpdateClock, stamp: Floats, value: Floats) -> bool:
    """Are reads between the same two updates equal? A multiple of the right period puts several updates in one."""
    number, unsure = clock.number(stamp), clock.is_near_update(stamp)
    within = (np.diff(number) == 0) & ~unsure[1:] & ~unsure[:-1]
    return bool(within.any() and (np.diff(value)[within] != 0).mean() < _CONTRADICTED)


def _likely_periods(pairs: _Pairs, nominal: float | None) -> list[float]:
    """Periods, s, each good for a band: the stated one, and those by which reads so far apart are equal so often.

    That share is a rough guide: reads that nearly keep step with the updates see few of their phases.
    """
    least = float((pairs.after - pairs.before).min())
    tried = np.geomspace(least, max(float(pairs.after[-1]) / _MOST_PERIOD, 2 * least), _PERIODS)
    best = float(tried[int(np.argmin([pairs.without_clock(period) for period in tried.tolist()]))])
    bands = [best * (1 + 2 * _BAND) ** step for step in range(-_BANDS, _BANDS + 1)]
    return bands if nominal is None else [nominal, *bands]


def _refine_period_and_phase(error: ClockError, since: Floats, period: float, phase: float) -> tuple[float, float]:
    """Period and phase, s, in the middle of those that explain the readings best, at ever finer steps."""
    middle, count = float(since[-1]) / 2, len(since)
    turns = round((middle - phase) / period)
    centre = phase + turns * period  # an update amid the readings: its time and the period err apart
    drift, shift = _FINE_SHIFT * period**2 / max(middle, period), period / (2 * _PHASES)
    for _ in range(_ZOOMS):
        offsets = np.arange(-_AROUND, _AROUND + 1) / _AROUND
        tried = [period + drift * offset for offset in offsets]
        cost = np.array([error(length, centre + shift * offsets - turns * length, count) for length in tried])
        best = cost <= cost.min() + 0.3 / count
        period = float(np.mean([np.mean(np.array(tried)[best.any(axis=1)])]))
        centre = float(np.mean((centre + shift * offsets)[best.any(axis=0)]))
        drift, shift = drift / _CLOSER, shift / _CLOSER
    return period, centre - turns * period


_ZOOMS, _AROUND, _CLOSER = 5, 4, 2.0


def _moving_mean(values: Floats, span: int = 21) -> Floats:
    """Moving mean; shorter at the ends."""
    total = np.append(0.0, np.cumsum(values))
    place = np.arange(len(values))
    low, high = np.maximum(place - span // 2, 0), np.minimum(place + span // 2 + 1, len(values))
    mean: Floats = (total[high] - total[low]) / (high - low)
    return mean


_ROUNDS = 12
_LATE_WEIGHT = 0.05  # a stamp above the line says little: it was late
_OFF, _OFTEN = 0.3, 0.1  # of a period off a whole number of them; a share of the distances
_LOST, _NEAR = 1.5, 9  # a distance of so many periods may mean lost readings; so many neighbours decide


def undelayed_stamps(stamp: Floats) -> Floats:
    """Stamps moved onto the source's own clock: a line under the lower envelope of (number, stamp), s.

    Where readings were lost the numbers skip. Fewer than 20 stamps are returned as they are.
    """
    if len(stamp) < 20:
        return stamp
    number = number_readings(stamp)
    design = np.column_stack([np.ones(len(number)), (number - number.mean()) / number.std()])
    weight = np.ones(len(number))
    line = stamp
    for _ in range(_ROUNDS):
        root = np.sqrt(weight)
        solution = np.linalg.lstsq(design * root[:, None], stamp * root, rcond=None)[0]
        line = design @ solution
        weight = np.where(stamp > line, _LATE_WEIGHT, 1.0)
    return np.asarray(line)


def number_readings(stamp: Floats) -> Floats:
    """Number of each reading in units of the period, from 0; lost readings leave holes.

    A late stamp is followed by punctual ones, a lost reading is not: what counts is how far the earliest of the next
    readings lies behind the earliest of those before.
    """
    count = len(stamp)
    over = max(min(50, count // 4), 1)
    period = float(np.median(stamp[over:] - stamp[:-over])) / over
    drift = stamp - period * np.arange(count)
    holes = np.zeros(count)
    since = 0
    for place in np.flatnonzero(np.diff(stamp) > _LOST * period) + 1:
        before = drift[max(since, place - _NEAR) : place].min()
        lost = round(float(drift[place : place + _NEAR].min() - before) / period)
        if lost > 0:
            holes[place], since = lost, int(place)
    numbers: Floats = np.arange(count, dtype=np.float64) + np.cumsum(holes)
    return numbers


def is_periodic(stamp: Floats) -> bool:
    """Return whether the stamps follow a clock: their lateness is bounded, not a random walk (a dithered sampler).

    Distances of a clock that is read late alternate (late, then early): their neighbours correlate at -0.5.
    A sampler that draws each distance anew has none; one that aims at a grid is a clock too. Distances of the golden
    ratio (0.62 and 1.62 of a period) are no clock's: what is longer than a period must be several.
    """
    distance = np.diff(stamp)
    if len(distance) < 20:
        return False
    periods = distance / float(np.median(distance))
    longer = periods > _LOST
    if float((longer & (np.abs(periods - np.rint(periods)) > _OFF)).mean()) > _OFTEN:
        return False
    regular = distance[~longer]
    spread = regular - regular.mean()
    varies = float(spread @ spread)
    if varies <= 0 or spread.std() < 0.002 * regular.mean():
        return True
    return float(spread[1:] @ spread[:-1]) / varies < -0.25
