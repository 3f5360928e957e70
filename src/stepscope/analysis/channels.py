"""Sampled channels over time: windows, busy time of cores, growth of counters, and gaps in which nothing is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.result_cache import cached_per_run
from stepscope.arrays import Flags, Floats, Ints
from stepscope.quantities import find_quantity
from stepscope.runfolder import RunReader

_CORES_ALONE = "raspberry-pi-5"  # simulated boards that compute without a GPU
_TO_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_LONG_PERIODS, _LONG_NS = 20, 500_000_000  # a longer silence than both is a gap even where no row says so


@dataclass(frozen=True)
class Series:
    """Readings of one channel: times (middle of the read) and values (n,), and the gaps between, ns (m, 2)."""

    scope: str
    source: str
    refresh_ns: int
    t_ns: Floats
    values: Floats
    gaps_ns: Floats

    @property
    def period_ns(self) -> float:
        """Typical distance of two readings."""
        return float(np.median(np.diff(self.t_ns))) if len(self.t_ns) > 1 else 0.0


@dataclass(frozen=True)
class Windows:
    """Growth of a counter per ns of each window, NaN where a gap touches it; `edges_ns` has one entry more."""

    edges_ns: Floats
    rates: Floats

    @property
    def uncovered_ns(self) -> float:
        """Time of the windows that could not be measured."""
        return float(np.diff(self.edges_ns)[np.isnan(self.rates)].sum())


def board_computes(run: RunReader) -> bool:
    """Return whether the processors that were read are a simulated board's, and not this machine's."""
    return board_has_gpu(run) or str(run.meta.get("simulated") or "").startswith(_CORES_ALONE)


_BOARD_GROUPS = ("Power", "Temperature")  # of quantities that every simulated board gives
_COMPUTING_GROUPS = ("Utilisation", "Frequency")  # and one that computes
_MACHINE_MEMORY = ("memory_total", "memory_available", "memory_used", "nvmap_used")


def is_of_simulated_board(run: RunReader, quantity: str) -> bool:
    """Return whether the readings of a quantity are a simulated board's, and not of the machine that trained."""
    if run.meta.get("simulated") is None or quantity == "process_cpu_time":
        return False
    group = find_quantity(quantity).group
    computed = group in _COMPUTING_GROUPS or quantity in _MACHINE_MEMORY
    return group in _BOARD_GROUPS or (computed and board_computes(run))


def board_has_gpu(run: RunReader) -> bool:
    """Return whether a simulated board's GPU was read."""
    own = any(channel["id"] == "gpu.0.utilisation" for channel in run.channels)
    return own and run.meta.get("simulated") is not None


@cached_per_run
def series_of(run: RunReader, quantity: str) -> list[Series]:
    """Every channel of a quantity that was read at least twice; times in ns whatever unit the channel has."""
    series = []
    for channel in run.channels:
        frame = run.sensor(str(channel["sensor"])) if channel.get("quantity") == quantity else None
        if frame is None or channel["id"] not in frame.columns:
            continue
        # A channel at a time: all of a quantity at once, with their names in each row, are gigabytes of a long run.
        read = frame.select("t0_ns", "t1_ns", value=pl.col(str(channel["id"])))
        if read["value"].count() > 1:
            series.append(_read_series(channel, read))
    return series


def _read_series(channel: dict[str, Any], frame: pl.DataFrame) -> Series:
    t_ns = ((frame["t0_ns"] + frame["t1_ns"]) / 2).to_numpy()
    values = frame["value"].to_numpy() * _TO_NS.get(channel.get("unit", ""), 1.0)
    read = np.flatnonzero(~np.isnan(values))
    step = np.diff(t_ns[read])
    silent = step > max(_LONG_PERIODS * float(np.median(step)), _LONG_NS)
    broken = (np.diff(read) > 1) | silent
    if channel.get("kind") == "counter":
        broken |= np.diff(values[read]) < 0  # it was set back: what it counted in between is unknown
    gaps = np.column_stack([t_ns[read[:-1]], t_ns[read[1:]]])[broken]
    refresh = int(channel.get("refresh_ns") or channel.get("step_size") or 0)
    source = str(channel.get("source") or channel.get("sensor"))
    return Series(str(channel.get("scope")), source, refresh, t_ns[read], values[read], gaps)


MOST_WINDOWS = 1_000_000  # a sensor has fewer rows; times of a damaged run span years


def equal_window_edges(t0_ns: float, t1_ns: float, length_ns: float) -> Floats:
    """Divide a span into windows of the same length, at least this one: their edges (n + 1,)."""
    count = int(min(max((t1_ns - t0_ns) // max(length_ns, 1), 0), MOST_WINDOWS))
    return np.linspace(t0_ns, t1_ns, count + 1)


def growth_windows(series: Series, t0_ns: float, t1_ns: float, length_ns: float) -> Windows:
    """Divide a span into windows of at least this length; growth is interpolated between readings.

    It is unknown, NaN, where nothing was read: a training of a few ms may lie between two readings.
    """
    edges = equal_window_edges(t0_ns, t1_ns, length_ns)
    if len(edges) < 2 or not len(series.t_ns):
        return Windows(np.array([t0_ns, t1_ns], dtype=np.float64), np.array([np.nan]))
    rates = np.diff(np.interp(edges, series.t_ns, series.values)) / np.diff(edges)
    slack = 2 * series.period_ns  # the first and the last reading need not fall on the span's ends
    dark = (edges[:-1] < series.t_ns[0] - slack) | (edges[1:] > series.t_ns[-1] + slack)
    dark |= touches_gap(series.gaps_ns, edges[:-1], edges[1:])
    return Windows(edges, np.where(dark, np.nan, rates))


def touches_gap(gaps_ns: Floats, t0_ns: Floats, t1_ns: Floats) -> Flags:
    """Return which stretches, (n,), overlap a gap, (m, 2): more of these have begun by its end than ended before it."""
    begins, ends = np.sort(gaps_ns, axis=0).T
    return np.asarray(np.searchsorted(begins, t1_ns) > np.searchsorted(ends, t0_ns, side="right"))


def shortest_window_ns(series: Series) -> float:
    """The shortest honest window: two ticks of the counter and two readings, ns."""
    return max(2.0 * series.refresh_ns, 2 * series.period_ns, 1.0)


_CORE_SCHEMA = {"scope": pl.String, "t0_ns": pl.Int64, "t1_ns": pl.Int64, "utilisation": pl.Float64}


@cached_per_run
def core_busy_time(run: RunReader) -> list[Series]:
    """Busy time of every core, ns, as a growing counter; in the order of the cores."""
    cores = [*series_of(run, "core_busy_time"), *(_busy_from_idle(idle) for idle in series_of(run, "core_idle_time"))]
    first = {series.scope: series for series in reversed(cores)}
    return sorted(first.values(), key=lambda series: (len(series.scope), series.scope))


def _busy_from_idle(idle: Series) -> Series:
    """Elapsed less idle time, within 0 and the elapsed time.

    The kernel books idle time when a core wakes, so one reading can book more than has elapsed since the last. What
    is too much belongs before it: busy time up to t is the least of elapsed - idle over all later readings.
    """
    apparent = np.split(idle.t_ns - idle.values, np.searchsorted(idle.t_ns, idle.gaps_ns[:, 1]))
    parts = [np.minimum.accumulate(part[::-1])[::-1] for part in apparent]
    return replace(idle, values=np.concatenate(parts))


def core_timeline(run: RunReader, t0_ns: int, t1_ns: int) -> pl.DataFrame:
    """Utilisation of each core in windows as short as its counter allows: scope, t0_ns, t1_ns, utilisation."""
    frames = list(_core_windows(run, t0_ns, t1_ns))
    return pl.concat(frames) if frames else pl.DataFrame(schema=_CORE_SCHEMA)


def _core_windows(run: RunReader, t0_ns: int, t1_ns: int) -> Iterator[pl.DataFrame]:
    for series in core_busy_time(run):
        busy = growth_windows(series, t0_ns, t1_ns, shortest_window_ns(series))
        columns = {
            "scope": [series.scope] * len(busy.rates),
            "t0_ns": busy.edges_ns[:-1].astype(np.int64),
            "t1_ns": busy.edges_ns[1:].astype(np.int64),
            "utilisation": np.clip(busy.rates, 0, 1),
        }
        yield pl.DataFrame(columns, schema=_CORE_SCHEMA, nan_to_null=True)


@dataclass(frozen=True)
class Growth:
    """Growth over each interval between two good readings; one that is a gap counts for nothing, however much it grew.

    t_ns: (n,) middles of the good readings; steps: (n - 1,), NaN where not even the two ends tell; gap: (n - 1,).
    """

    t_ns: Floats
    steps: Floats
    gap: Flags
    wraps: int = 0
    refused: int = 0  # intervals and readings that cannot be true: set back, too fast, spikes

    @cached_property
    def known_growth(self) -> Floats:
        """Growth since the first reading, gaps excluded: (n,)."""
        return _running_sum(np.where(self.gap, 0.0, self.steps))

    @cached_property
    def covered_ns(self) -> Floats:
        """Time since the first reading in which growth is known: (n,)."""
        return _running_sum(np.where(self.gap, 0.0, np.diff(self.t_ns)))

    @cached_property
    def growth_in_gaps(self) -> Floats:
        """Growth over gaps whose two ends tell it, since the first reading: (n,). Known, but no part of `grown`."""
        return _running_sum(np.where(self.gap & ~np.isnan(self.steps), self.steps, 0.0))

    @cached_property
    def unknown_ns(self) -> Floats:
        """Time in gaps of which nothing at all is known, since the first reading: (n,)."""
        return _running_sum(np.where(self.gap & np.isnan(self.steps), np.diff(self.t_ns), 0.0))

    @property
    def period_ns(self) -> float:
        """Typical distance of two readings, ns; 0 where there are fewer than two."""
        return float(np.median(np.diff(self.t_ns))) if len(self.t_ns) > 1 else 0.0

    @property
    def gaps_ns(self) -> Floats:
        """Begin and end of each gap, neighbours joined: (m, 2)."""
        edges = np.flatnonzero(np.diff(np.concatenate([[0], self.gap.astype(np.int8), [0]])))
        return np.column_stack([self.t_ns[edges[::2]], self.t_ns[edges[1::2]]]) if len(edges) else np.empty((0, 2))

    def at(self, running: Floats, t_ns: Floats) -> Floats:
        """A running sum of this source at any time; flat before the first reading and after the last."""
        return np.asarray(np.interp(t_ns, self.t_ns, running)) if len(self.t_ns) else np.zeros(len(t_ns))

    def between(self, t0_ns: Floats, t1_ns: Floats) -> Floats:
        """Growth over each of many stretches, (n,): NaN where a gap touches one or it was not read throughout."""
        grown, covered = (self.at(sums, t1_ns) - self.at(sums, t0_ns) for sums in (self.known_growth, self.covered_ns))
        return np.where(covered > (1 - _ROUNDING) * (t1_ns - t0_ns), grown, np.nan)


_ROUNDING = 1e-6


def _running_sum(steps: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(steps)])


def turn_spans_into_gaps(growth: Growth, spans_ns: Floats, is_known: bool = False) -> Growth:
    """Return the series with each interval that touches one of the spans, (m, 2) ns, turned into a gap.

    `is_known`: what the readings at both ends tell still holds; else it does not, as over a clock that jumped.
    """
    if not len(spans_ns) or len(growth.t_ns) < 2:
        return growth
    first = np.clip(np.searchsorted(growth.t_ns, spans_ns[:, 0], side="right") - 1, 0, len(growth.gap))
    last = np.clip(np.searchsorted(growth.t_ns, spans_ns[:, 1], side="left"), 0, len(growth.gap))
    change = np.zeros(len(growth.gap) + 1, dtype=np.int64)
    np.add.at(change, first, 1)
    np.add.at(change, np.maximum(last, first), -1)
    touched = np.cumsum(change)[:-1] > 0
    steps = growth.steps if is_known else np.where(touched, np.nan, growth.steps)
    return replace(growth, steps=steps, gap=growth.gap | touched)


def spans_without_growth(growth: Growth, at_least_ns: float) -> Floats:
    """Spans, (m, 2) ns, in which it did not grow for this long; each reaches to the reading that moves again."""
    moved = np.flatnonzero(growth.gap | (np.nan_to_num(growth.steps) > 0))
    if not len(moved):
        return np.empty((0, 2))
    begins = np.concatenate([[0], moved + 1])  # readings: the last one that moved
    ends = np.concatenate([moved + 1, [len(growth.t_ns) - 1]])
    still = growth.t_ns[ends] - growth.t_ns[begins] > at_least_ns
    return np.asarray(np.column_stack([growth.t_ns[begins], growth.t_ns[ends]])[still])


# A fall is a wrap only where the counter's range is known and the growth that this means is plausible; every other
# fall, growth faster than the source can deliver, a reading that failed, and a reading that later ones disprove, is a
# gap.

MOST_W = 5000.0  # where a source does not say what it can deliver: no machine that this is for draws more
_DISPROVED_WITHIN_NS = 5_000_000_000  # a garbled stretch is told from a counter that was set back by its return


@dataclass(frozen=True)
class CounterLimits:
    """Facts of a counter: where it starts again at 0, how fast it can grow, its update interval."""

    full_range: float | None = None
    most_per_s: float | None = None
    refresh_ns: float = 0.0
    step_size: float = 0.0

    @property
    def fastest(self) -> float:
        """Growth a second that is still plausible."""
        return self.most_per_s or MOST_W


def counter_growth(t_ns: Floats, values: Floats, limits: CounterLimits) -> Growth:
    """Growth of a counter between its good readings. t_ns, values: (n,), NaN where not read."""
    good = _valid_readings(t_ns, values, limits)
    garbled = _contradicted_readings(t_ns[good], values[good], limits)
    good[np.flatnonzero(good)[garbled]] = False
    read = np.flatnonzero(good)
    t, v = t_ns[read], values[read]
    if len(read) < 2:
        return Growth(t, np.empty(0), np.empty(0, dtype=np.bool_), refused=int(garbled.sum()))
    steps, wrapped = _undo_counter_wraps(np.diff(v), limits)
    plausible = _plausible_growth_flags(t, v, steps, limits)
    failed = np.diff(read) > 1
    return Growth(
        t_ns=t,
        steps=np.where(plausible, steps, np.nan),
        gap=failed | ~plausible,
        wraps=int((wrapped & plausible).sum()),
        refused=int((~plausible).sum() + garbled.sum()),
    )


def _valid_readings(t_ns: Floats, values: Floats, limits: CounterLimits) -> Flags:
    """Finite, not negative, within the range; and no 0 that is not the end of a wrap: that is a read that failed."""
    full = np.inf if limits.full_range is None else limits.full_range
    good: Flags = np.isfinite(values) & (values >= 0) & (values <= full * (1 + 1e-9))
    before = np.maximum.accumulate(np.where(good & (values > 0), np.arange(len(values)), -1))
    headroom = full - np.where(good, values, 0.0)[before]
    wraps = headroom <= limits.fastest * (t_ns - t_ns[before] + limits.refresh_ns) / 1e9
    return np.asarray(good & ~((values == 0) & (before >= 0) & ~wraps))


def _undo_counter_wraps(steps: Floats, limits: CounterLimits) -> tuple[Floats, Flags]:
    """Steps with a whole range added where the counter fell and its range is known, and where that is."""
    if limits.full_range is None:
        return steps, np.zeros(len(steps), dtype=np.bool_)
    fell = steps < 0
    return np.where(fell, steps + limits.full_range, steps), fell


def _plausible_growth_flags(t_ns: Floats, values: Floats, steps: Floats, limits: CounterLimits) -> Flags:
    """Growth that the source can deliver in the time since the counter last moved; less than a whole range of it.

    What a slow counter publishes in one reading it gathered since its last: that is the time to hold against it.
    """
    moved = np.where(np.diff(values) != 0, np.arange(1, len(values)), 0)
    last_moved = np.concatenate([[0], np.maximum.accumulate(moved)[:-1]])
    since_s = (t_ns[1:] - t_ns[last_moved] + limits.refresh_ns) / 1e9
    within: Flags = (steps >= 0) & (steps <= limits.fastest * since_s + limits.step_size)
    if limits.full_range is not None and limits.most_per_s is not None:
        within &= limits.most_per_s * np.diff(t_ns) / 1e9 < limits.full_range  # else it may have wrapped twice
    return within


def _contradicted_readings(t_ns: Floats, values: Floats, limits: CounterLimits) -> Flags:
    """Readings that later ones disprove: spikes above them, and dips that the counter returned from."""
    nothing = np.zeros(len(values), dtype=np.bool_)
    if len(values) < 3 or not _implausible_fall_flags(t_ns, values, limits).any():
        return nothing
    period_ns = max(float(np.median(np.diff(t_ns))), 1.0)
    width = int(min(_DISPROVED_WITHIN_NS / 2 / period_ns, len(values) - 1)) + 1
    level = _readings_without_wraps(t_ns, values, limits)
    as_spikes = _spikes_and_dips(level, width)
    as_dips = _spikes_and_dips(-level[::-1], width)[::-1]  # a dip is a spike upside down and backwards
    few, many = sorted((as_spikes, as_dips), key=lambda drops: int(drops.sum()))
    return few if 2 * few.sum() < many.sum() else few | many


def _spikes_and_dips(level: Floats, width: int) -> Flags:
    """Readings to leave out if what is wrong are spikes, and what is still a dip without them."""
    out = _spikes(level, width)
    inliers = np.flatnonzero(~out)
    out[inliers[_spikes(-level[inliers][::-1], width)[::-1]]] = True
    return out


def _implausible_fall_flags(t_ns: Floats, values: Floats, limits: CounterLimits) -> Flags:
    """Falls that are no plausible wrap."""
    steps, _ = _undo_counter_wraps(np.diff(values), limits)
    return (np.diff(values) < 0) & ~_plausible_growth_flags(t_ns, values, steps, limits)


def _readings_without_wraps(t_ns: Floats, values: Floats, limits: CounterLimits) -> Floats:
    """The readings with every plausible wrap undone, so that a counter without faults only rises."""
    wrapped = (np.diff(values) < 0) & ~_implausible_fall_flags(t_ns, values, limits)
    return values + np.concatenate([[0.0], np.cumsum(wrapped)]) * (limits.full_range or 0.0)


def _spikes(level: Floats, width: int) -> Flags:
    """Readings above a later one that is itself not below an earlier one, each at most twice `width` readings away."""
    from scipy.ndimage import minimum_filter1d  # type: ignore[import-untyped]  # seldom needed, slow to import

    beside = np.full(width, np.inf)
    earlier = minimum_filter1d(np.concatenate([beside, level]), 2 * width + 1)[: len(level)]  # up to and with each
    later = minimum_filter1d(np.concatenate([level, beside]), 2 * width + 1)[width:]  # from each on
    return np.asarray((level > later) & (later >= earlier))


_RATE_UNITS = {"J": ("W", 1e9), "ns": ("cores", 1.0), "us": ("cores", 1e3), "s": ("cores", 1e9), "C": ("A", 1e9)}
_NO_LIMIT = 1e30  # growth a second: only of energy is it known what is too much
_NOTHING_NEWER = 2.2  # refreshes: a sensor without anything newer says so by the same null as one that failed


@dataclass(frozen=True)
class ChannelTimeline:
    """Values (n,) that hold from t_ns (n,) on, in `unit`; within `gaps_ns` (m, 2) nothing is known."""

    unit: str
    rate: bool
    t_ns: Floats
    values: Floats
    gaps_ns: Floats


def channel_timeline(channel: dict[str, Any], samples: pl.DataFrame) -> ChannelTimeline:
    """Timeline of a channel of channels.json from its samples (t0_ns, t1_ns, value), or some of them."""
    t_ns = ((samples["t0_ns"] + samples["t1_ns"]) / 2).to_numpy()
    values = samples["value"].to_numpy().astype(np.float64)
    if channel.get("kind") == "counter":
        return _growth_rate(channel, t_ns, values)
    read = np.flatnonzero(np.isfinite(values))
    gaps = _silent_spans(t_ns, read, float(channel.get("refresh_ns") or 0.0))
    return ChannelTimeline(str(channel.get("unit") or ""), False, t_ns[read], values[read], gaps)


def _silent_spans(t_ns: Floats, read: Ints, refresh_ns: float) -> Floats:
    """Stretches between good readings in which readings failed or none was taken; failed ones at the ends too."""
    if not len(read):
        return t_ns[[0, -1]].reshape(1, 2) if len(t_ns) else np.empty((0, 2))
    apart = np.diff(t_ns[read])
    silent = apart > max(_LONG_PERIODS * float(np.median(apart)), _LONG_NS) if len(apart) else apart > 0
    broken = ((np.diff(read) > 1) & (apart > _NOTHING_NEWER * refresh_ns)) | silent
    gaps = np.column_stack([t_ns[read[:-1]], t_ns[read[1:]]])[broken]
    ends = [(t_ns[0], t_ns[read[0]]), (t_ns[read[-1]], t_ns[-1])]
    failed = [(begin, end) for begin, end in ends if end - begin > _NOTHING_NEWER * refresh_ns]
    return np.concatenate([gaps, np.array(failed).reshape(-1, 2)])


def _growth_rate(channel: dict[str, Any], t_ns: Floats, values: Floats) -> ChannelTimeline:
    """Growth a second over windows of two readings and two refreshes at least: shorter ones show ticks."""
    unit, scale = _RATE_UNITS.get(str(channel.get("unit")), (f"{channel.get('unit') or ''}/s", 1e9))
    growth = counter_growth(t_ns, values, _counter_limits(channel))
    length_ns = max(2 * growth.period_ns, 2 * float(channel.get("refresh_ns") or 0), 1.0)
    edges = equal_window_edges(growth.t_ns[0], growth.t_ns[-1], length_ns) if len(growth.t_ns) > 1 else growth.t_ns
    if len(edges) < 2:
        return ChannelTimeline(unit, True, np.empty(0), np.empty(0), np.empty((0, 2)))
    rates = growth.between(edges[:-1], edges[1:]) / np.diff(edges) * scale
    is_known = np.isfinite(rates)
    return ChannelTimeline(unit, True, edges[:-1][is_known], rates[is_known], _unknown_spans(edges, is_known))


def _counter_limits(channel: dict[str, Any]) -> CounterLimits:
    most = channel.get("most_per_s")
    return CounterLimits(
        full_range=channel.get("counter_range"),
        most_per_s=_NO_LIMIT if most is None and channel.get("unit") != "J" else most,
        refresh_ns=float(channel.get("refresh_ns") or 0),
        step_size=float(channel.get("step_size") or 0),
    )


def _unknown_spans(edges: Floats, is_known: Flags) -> Floats:
    """Begin and end of each run of windows that are not known, (m, 2)."""
    turns = np.flatnonzero(np.diff(np.concatenate([[0], (~is_known).astype(np.int8), [0]])))
    return np.column_stack([edges[turns[::2]], edges[turns[1::2]]])
