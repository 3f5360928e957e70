"""Estimates with a 95 % CI: medians, means and shares, over repeats and as ratios; and changes of level of a series.

Changes of level: two-sided CUSUM.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special  # type: ignore[import-untyped]  # scipy.stats takes half a second to import

from stepscope.arrays import Floats

CONFIDENCE = 0.95


@lru_cache(maxsize=4096)
def _median_ranks(count: int, confidence: float) -> tuple[int, int] | None:
    """Positions (from 0) of the order statistics that enclose the median; None where the sample is too small."""
    below = special.bdtr(np.arange((count + 1) // 2), count, 0.5)  # chance that the median lies under rank k + 1
    rank = int((below <= (1 - confidence) / 2).sum())
    return (rank - 1, count - rank) if rank else None


def median_interval(values: Floats, confidence: float = CONFIDENCE) -> tuple[Floats, Floats, Floats]:
    """Median of each column and its order-statistic interval: (median, low, high); assumes no distribution.

    values: (n,) or (n, k) without NaN. Below 6 values no pair of them encloses the median so surely: NaN.
    """
    count, numbers = len(values), np.asarray(values, dtype=np.float64)
    nothing = np.full(numbers.shape[1:], np.nan)
    if count == 0:
        return nothing, nothing, nothing
    middle, ranks = ((count - 1) // 2, count // 2), _median_ranks(count, confidence)
    ordered = np.partition(numbers, sorted({*middle, *(ranks or ())}), axis=0)  # where they are asked for
    median = (ordered[middle[0]] + ordered[middle[1]]) / 2
    return (median, nothing, nothing) if ranks is None else (median, ordered[ranks[0]], ordered[ranks[1]])


def mean_interval(values: Floats, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Mean and its Student interval: (mean, low, high). values: (n,); NaN are excluded; below 2 values NaN."""
    mean, low, high = (float(end) for end in mean_intervals(values[~np.isnan(values)], confidence))
    return mean, low, high


def mean_intervals(values: Floats, confidence: float = CONFIDENCE) -> tuple[Floats, Floats, Floats]:
    """Mean and Student interval of values (n,) or (n, k) without NaN: (mean, low, high) of each column, if any."""
    mean = values.mean(axis=0) if len(values) else np.full(values.shape[1:], np.nan)
    if len(values) < 2:
        nothing = np.full(mean.shape, np.nan)
        return mean, nothing, nothing
    factor = float(special.stdtrit(len(values) - 1, (1 + confidence) / 2)) / np.sqrt(len(values))
    half = factor * values.std(axis=0, ddof=1)
    return mean, mean - half, mean + half


@lru_cache(maxsize=4096)
def interval_factor(runs: int, count: int, confidence: float = CONFIDENCE) -> float:
    """Return the factor by which the half width of a CI grows for `count` of them to hold jointly (Bonferroni).

    runs: of which it is the Student interval; of one run, whose steps are many, the normal one.
    """
    tails = np.array([1 - (1 - confidence) / (2 * max(count, 1)), (1 + confidence) / 2])
    wide, narrow = special.ndtri(tails) if runs < 2 else special.stdtrit(runs - 1, tails)
    return float(wide / narrow)


def share_interval(hits: int, count: int, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """A share of `count` trials and its Wilson interval: (share, low, high); NaN without trials."""
    if count == 0:
        return float("nan"), float("nan"), float("nan")
    z = float(special.ndtri((1 + confidence) / 2))
    share, spread = hits / count, 1 + z * z / count
    centre = (share + z * z / (2 * count)) / spread
    half = z / spread * float(np.sqrt(share * (1 - share) / count + z * z / (4 * count * count)))
    return share, min(max(centre - half, 0.0), share), max(min(centre + half, 1.0), share)


def null_if_nan(value: float) -> float | None:
    """NaN as null: not measured."""
    return None if np.isnan(value) else float(value)


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % CI; the bounds are null where too little was measured to tell."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def row(self) -> tuple[float, float | None, float | None]:
        """Value and bounds, for three columns of a table."""
        return self.value, self.low, self.high

    def clipped(self, most: float = 1.0) -> Estimate:
        """Return the same within 0 and `most`."""
        low, high = (None if end is None else min(max(end, 0.0), most) for end in (self.low, self.high))
        return Estimate(min(max(self.value, 0.0), most), low, high)

    def transformed(self, transform: Callable[[float], float]) -> Estimate:
        """Return the same on another scale. transform: monotonically increasing."""
        ends = (None if end is None else transform(end) for end in (self.low, self.high))
        return Estimate(transform(self.value), *ends)

    def times(self, factor: float) -> Estimate:
        """Return the same in another unit."""
        return self.transformed(lambda number: number * factor)

    def widened(self, factor: float) -> Estimate:
        """Return the same with so much more on either side."""
        ends = (None if end is None else self.value + (end - self.value) * factor for end in (self.low, self.high))
        return Estimate(self.value, *ends)

    def __sub__(self, other: Estimate) -> Estimate:
        """Return the difference; its CI is of both (Zou and Donner, Statistics in Medicine 27, 2008)."""
        value = self.value - other.value
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return Estimate(value)
        down = math.hypot(self.value - self.low, other.high - other.value)
        return Estimate(value, value - down, value + math.hypot(self.high - self.value, other.value - other.low))

    def __truediv__(self, other: Estimate) -> Estimate | None:
        """Return the ratio; its CI is of both on a logarithmic scale (MOVER). None: one of them is not above 0."""
        if self.value <= 0 or other.value <= 0:
            return None
        value = self.value / other.value
        if not self.low or not self.high or not other.low or not other.high or min(self.low, other.low) < 0:
            return Estimate(value)
        down = math.hypot(math.log(self.value / self.low), math.log(other.high / other.value))
        up = math.hypot(math.log(self.high / self.value), math.log(other.value / other.low))
        return Estimate(value, value * math.exp(-down), value * math.exp(up))


_TELLS_NOTHING = math.log(1000.0)


_STRETCHES = 20  # of readings in order of time, whose means are observations: neighbours are alike
_BLOCKS, _LEAST_IN_BLOCK = 10, 4  # the same for medians, of so many values each at least


def mean_over_time(values: Floats) -> Estimate | None:
    """Mean of readings in order of time (n,), with Student's interval between stretches of them; None without any.

    NaN are excluded. Neighbouring readings are alike where a load or a clock drifts, and no evidence of their own.
    """
    present = values[~np.isnan(values)]
    if len(present) == 0:
        return None
    stretches = np.array([part.mean() for part in np.array_split(present, min(len(present), _STRETCHES))])
    _, low, high = mean_interval(stretches)
    mean = float(present.mean())
    return Estimate(mean) if np.isnan(low) else Estimate(mean, min(low, mean), max(high, mean))


def mean_of_stretches(share: Floats) -> Estimate:
    """Mean of a share that was sampled (n,), within 0 and 1."""
    mean = mean_over_time(share)
    return Estimate(math.nan) if mean is None else mean.clipped()


def median_over_time(values: Floats) -> Estimate | None:
    """Median of values in order of time (n,) without NaN; None without any.

    The CI is the wider of that of the order statistics, which takes all values as independent, and of `drift_factor`.
    """
    median, low, high = (float(end) for end in median_interval(values))
    if math.isnan(median):
        return None
    if math.isnan(low):
        return Estimate(median)
    factor = drift_factor(values) or 1.0
    return Estimate(median, min(low, median / factor), max(high, median * factor))


def drift_factor(values: Floats) -> float | None:
    """Factor on either side by the Student interval of the medians of consecutive blocks; None: too few, or some <= 0.

    Neighbouring steps are alike where a machine drifts.
    """
    if len(values) < _BLOCKS * _LEAST_IN_BLOCK or values.min() <= 0:
        return None
    medians = np.array([np.median(block) for block in np.array_split(values, _BLOCKS)])
    mean, low, _ = mean_interval(np.log(medians))
    return math.exp(mean - low)


def ratio_of_sums(part: Floats, whole: Floats) -> Estimate:
    """Sum of one over the sum of the other, of steps in order of time (n,) each; the CI is of a ratio of means."""
    value = float(part.sum() / whole.sum())
    apart = mean_over_time((part - value * whole) / whole.mean())
    if apart is None or apart.low is None or apart.high is None:
        return Estimate(value)
    return Estimate(value, min(value + apart.low, value), max(value + apart.high, value))


def geometric_mean_of_repeats(repeats: Sequence[Estimate]) -> Estimate:
    """Geometric mean of repeats with Student's interval between them; of a single repeat, the interval within it.

    Where one of the repeats is not above 0, and so has no logarithm, the mean is arithmetic. Without bounds where they
    would be a thousand times the mean and a thousandth: two repeats that have little in common do not tell.
    """
    if len(repeats) == 1:
        return repeats[0]
    values = np.array([repeat.value for repeat in repeats], dtype=np.float64)
    if len(values) and values.min() == values.max():  # logarithms would round what was counted
        return Estimate(*[float(values[0])] * 3)
    if len(values) and values.min() > 0:
        mean, low, high = mean_interval(np.log(values))
        if high - mean > _TELLS_NOTHING:
            return Estimate(math.exp(mean))
        ends = [math.exp(end) for end in (mean, low, high)]
    else:
        ends = list(mean_interval(values))
    return Estimate(ends[0], null_if_nan(ends[1]), null_if_nan(ends[2]))


def mean_of_repeats(repeats: Sequence[Estimate]) -> Estimate:
    """Arithmetic mean of repeats of what is not below 0, so that parts add up, with Student's interval between them.

    Of a single repeat, the interval within it.
    """
    if len(repeats) == 1:
        return repeats[0]
    value, low, high = mean_interval(np.array([repeat.value for repeat in repeats], dtype=np.float64))
    return Estimate(float(value), None if math.isnan(low) else max(low, 0.0), null_if_nan(high))


def geometric_mean_of_ratios(ratios: Iterable[Estimate]) -> Estimate | None:
    """Geometric mean of ratios of several settings, with the CI that theirs give it; None without any."""
    pairs = list(ratios)
    if not pairs:
        return None
    value = math.exp(float(np.mean([math.log(pair.value) for pair in pairs])))
    if any(pair.low is None or pair.high is None for pair in pairs):
        return Estimate(value)
    down = math.hypot(*(math.log(pair.value / pair.low) for pair in pairs if pair.low)) / len(pairs)
    up = math.hypot(*(math.log(pair.high / pair.value) for pair in pairs if pair.high)) / len(pairs)
    return Estimate(value, value * math.exp(-down), value * math.exp(up))


BLOCK_STEPS = 5  # steps whose median is one observation: single stalls do not count
REFERENCE_BLOCKS = 60  # blocks that say what is normal
_FEWEST_BLOCKS = 12  # blocks from which on it is worth asking
_SLACK, _ALARM, _CLIP = 1.0, 8.0, 3.0  # standard deviations: what is tolerated, what raises, what one block can add
_SMALLEST_CHANGE = 0.005  # of the level: smaller changes are of no use to anybody


@dataclass(frozen=True)
class LevelChange:
    """A change of level: the first step of the new level, the step at which it was noticed, and the two levels."""

    step: int
    noticed: int
    before: float
    after: float

    @property
    def ratio(self) -> float:
        """New level over old."""
        return self.after / self.before if self.before else float("nan")


def change_points(values: Floats) -> list[LevelChange]:
    """Changes of the level of a per-step quantity, in order; (n,) without NaN. E. S. Page, Biometrika 41, 1954.

    A change of three standard deviations or more is noticed after some 20 steps; quiet steps raise fewer than one
    alarm in 100,000. Fewer than 60 steps are not judged.
    """
    blocks = np.median(values[: len(values) // BLOCK_STEPS * BLOCK_STEPS].reshape(-1, BLOCK_STEPS), axis=1)
    changes: list[LevelChange] = []
    start = 0
    while len(blocks) - start > _FEWEST_BLOCKS:
        change = _first_change(blocks[start:])
        if change is None:
            break
        first, noticed = start + change[0], start + change[1]
        after = float(np.median(blocks[first : noticed + _FEWEST_BLOCKS]))
        before = float(np.median(blocks[start:first]))
        changes.append(LevelChange(first * BLOCK_STEPS, (noticed + 1) * BLOCK_STEPS, before, after))
        start = first
    return changes


def _first_change(blocks: Floats) -> tuple[int, int] | None:
    """(first block of the new level, block at which the alarm was raised) of the first change."""
    reference = min(REFERENCE_BLOCKS, max(_FEWEST_BLOCKS, len(blocks) // 2))
    level, spread = _level_and_spread(blocks[:reference], reference)
    sums, since = [0.0, 0.0], [reference, reference]
    for place in range(reference, len(blocks)):
        z = float(np.clip((blocks[place] - level) / spread, -_CLIP, _CLIP))
        for side, signed in enumerate((z, -z)):
            sums[side] = max(0.0, sums[side] + signed - _SLACK)
            if sums[side] == 0.0:
                since[side] = place + 1
            elif sums[side] > _ALARM:
                return since[side], place
    return None


def _level_and_spread(blocks: Floats, count: int) -> tuple[float, float]:
    """Level and spread of quiet blocks; a spread from few of them is widened for not being known well."""
    level = float(np.median(blocks))
    spread = 1.4826 * float(np.median(np.abs(blocks - level)))
    return level, max(spread * (1 + 2.5 / np.sqrt(count)), _SMALLEST_CHANGE * abs(level), 1e-12)
