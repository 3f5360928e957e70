"""Counter algebra: what a cumulative counter grew by, without inventing any of it.

A fall is a wrap only where the counter's range is known and the growth that this means is plausible; every other fall,
growth faster than the source can deliver, a reading that failed, and a reading that later ones disprove, is a gap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.analysis.growth import Bools, Growth
from stepscope.analysis.intervals import Floats

MOST_W = 5000.0  # where a source does not say what it can deliver: no machine that this is for draws more
_DISPROVED_WITHIN_NS = 5_000_000_000  # a garbled stretch is told from a counter that was set back by its return


@dataclass(frozen=True)
class CounterLimits:
    """What is known of a counter: where it starts again at 0, how fast it can grow, how often it moves."""

    full_range: float | None = None
    most_per_s: float | None = None
    refresh_ns: float = 0.0
    step_size: float = 0.0

    @property
    def fastest(self) -> float:
        """Growth a second that is still plausible."""
        return self.most_per_s or MOST_W


def counted(t_ns: Floats, values: Floats, limits: CounterLimits) -> Growth:
    """Growth of a counter between its good readings. t_ns, values: (n,), NaN where not read."""
    good = _can_be_true(t_ns, values, limits)
    garbled = _disproved(t_ns[good], values[good], limits)
    good[np.flatnonzero(good)[garbled]] = False
    read = np.flatnonzero(good)
    t, v = t_ns[read], values[read]
    if len(read) < 2:
        return Growth(t, np.empty(0), np.empty(0, dtype=np.bool_), refused=int(garbled.sum()))
    steps, wrapped = _unwrapped(np.diff(v), limits)
    plausible = _plausible(t, v, steps, limits)
    failed = np.diff(read) > 1
    return Growth(
        t_ns=t,
        steps=np.where(plausible, steps, np.nan),
        gap=failed | ~plausible,
        wraps=int((wrapped & plausible).sum()),
        refused=int((~plausible).sum() + garbled.sum()),
    )


def _can_be_true(t_ns: Floats, values: Floats, limits: CounterLimits) -> Bools:
    """Finite, not negative, within the range; and no 0 that is not the end of a wrap: that is a read that failed."""
    full = np.inf if limits.full_range is None else limits.full_range
    good: Bools = np.isfinite(values) & (values >= 0) & (values <= full * (1 + 1e-9))
    before = np.maximum.accumulate(np.where(good & (values > 0), np.arange(len(values)), -1))
    left = full - values[before]
    wraps = left <= limits.fastest * (t_ns - t_ns[before] + limits.refresh_ns) / 1e9
    return np.asarray(good & ~((values == 0) & (before >= 0) & ~wraps))


def _unwrapped(steps: Floats, limits: CounterLimits) -> tuple[Floats, Bools]:
    """Steps with a whole range added where the counter fell and its range is known, and where that is."""
    if limits.full_range is None:
        return steps, np.zeros(len(steps), dtype=np.bool_)
    fell = steps < 0
    return np.where(fell, steps + limits.full_range, steps), fell


def _plausible(t_ns: Floats, values: Floats, steps: Floats, limits: CounterLimits) -> Bools:
    """Growth that the source can deliver in the time since the counter last moved; less than a whole range of it.

    What a slow counter publishes in one reading it gathered since its last: that is the time to hold against it.
    """
    moved = np.where(np.diff(values) != 0, np.arange(1, len(values)), 0)
    last_moved = np.concatenate([[0], np.maximum.accumulate(moved)[:-1]])
    since_s = (t_ns[1:] - t_ns[last_moved] + limits.refresh_ns) / 1e9
    within: Bools = (steps >= 0) & (steps <= limits.fastest * since_s + limits.step_size)
    if limits.full_range is not None and limits.most_per_s is not None:
        within &= limits.most_per_s * np.diff(t_ns) / 1e9 < limits.full_range  # else it may have wrapped twice
    return within


def _disproved(t_ns: Floats, values: Floats, limits: CounterLimits) -> Bools:
    """Readings that later ones disprove: spikes above them, and dips that the counter returned from."""
    nothing = np.zeros(len(values), dtype=np.bool_)
    if len(values) < 3 or not _falls(t_ns, values, limits).any():
        return nothing
    period_ns = max(float(np.median(np.diff(t_ns))), 1.0)
    width = int(min(_DISPROVED_WITHIN_NS / 2 / period_ns, len(values) - 1)) + 1
    level = _levels(t_ns, values, limits)
    as_spikes = _false(level, width)
    as_dips = _false(-level[::-1], width)[::-1]  # a dip is a spike upside down and backwards
    few, many = sorted((as_spikes, as_dips), key=lambda drops: int(drops.sum()))
    return few if 2 * few.sum() < many.sum() else few | many


def _false(level: Floats, width: int) -> Bools:
    """Readings to leave out if what is wrong are spikes, and what is still a dip without them."""
    out = _spikes(level, width)
    rest = np.flatnonzero(~out)
    out[rest[_spikes(-level[rest][::-1], width)[::-1]]] = True
    return out


def _falls(t_ns: Floats, values: Floats, limits: CounterLimits) -> Bools:
    """Falls that are no plausible wrap."""
    steps, _ = _unwrapped(np.diff(values), limits)
    return (np.diff(values) < 0) & ~_plausible(t_ns, values, steps, limits)


def _levels(t_ns: Floats, values: Floats, limits: CounterLimits) -> Floats:
    """The readings with every plausible wrap undone, so that a counter without faults only rises."""
    wrapped = (np.diff(values) < 0) & ~_falls(t_ns, values, limits)
    return values + np.concatenate([[0.0], np.cumsum(wrapped)]) * (limits.full_range or 0.0)


def _spikes(level: Floats, width: int) -> Bools:
    """Readings above a later one that is itself not below an earlier one, each at most twice `width` readings away."""
    from scipy.ndimage import minimum_filter1d  # type: ignore[import-untyped]  # seldom needed, slow to import

    beside = np.full(width, np.inf)
    earlier = minimum_filter1d(np.concatenate([beside, level]), 2 * width + 1)[: len(level)]  # up to and with each
    later = minimum_filter1d(np.concatenate([level, beside]), 2 * width + 1)[width:]  # from each on
    return np.asarray((level > later) & (later >= earlier))
