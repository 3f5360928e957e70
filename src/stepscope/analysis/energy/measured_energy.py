"""Energy of a source over stretches of time, with its 95 % CI, and what readings in step with the training miss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.analysis.channels import Growth, equal_window_edges, series_of
from stepscope.analysis.energy.power_sources import PowerSource
from stepscope.analysis.energy.regression import BY_CHANCE
from stepscope.analysis.estimate import mean_interval
from stepscope.analysis.process_scopes import WATCHED, cpu_of_all, has_several_processes
from stepscope.analysis.time.steps import steps_after_warmup
from stepscope.arrays import Flags, Floats
from stepscope.runfolder import RunReader
from stepscope.units import percent

_MOST_WINDOWS = 200  # longer windows are less alike than neighbours of a few ms: their spread says more
_TOUCHING = 0.05  # of a step: what a loop does between two steps belongs to them
_LEAST_IDLE_NS, _IDLE_CORES = 500_000_000, 0.05
_WHOLE = 0.99  # a window with more of it in gaps is not used for the spread
_LEAST_COVERED = 0.9  # of the time: below, what was read does not tell the mean power of all of it


@dataclass(frozen=True)
class Energy:
    """Energy of some stretches, J and W, bounds of 95 %; None where nothing was read.

    `joules` is what was measured, in `covered_s`; nothing is added for the `gap_s` that were not, but `high_j` allows
    for it. Watts are over the covered time; their bounds hold for all of it, and are None where too little was covered.
    """

    joules: float | None
    low_j: float | None
    high_j: float | None
    watts: float | None
    low_w: float | None
    high_w: float | None
    covered_s: float
    gap_s: float
    windows: int = 0


def training_stretches(run: RunReader) -> Floats:
    """Begin and end of each unbroken stretch of steps after warm-up, ns (m, 2), without evaluations in between.

    Where steps are not there any more (`--max-disk`), the training went on: their time belongs to it.
    """
    steps = steps_after_warmup(run)
    if steps.is_empty():
        return np.empty((0, 2))
    t0, t1 = steps["t0_ns"].to_numpy(), steps["t1_ns"].to_numpy()
    apart = t0[1:] - t1[:-1] > _TOUCHING * float(steps["length_ns"].median())  # type: ignore[arg-type]  # not empty
    if run.max_disk is not None:
        apart &= np.diff(steps["step"].to_numpy()) == 1
    broken = np.flatnonzero(apart)
    ends = [t0[np.concatenate([[0], broken + 1])], t1[np.concatenate([broken, [len(t1) - 1]])]]
    return np.column_stack(ends).astype(np.float64)


def energy_over(source: PowerSource, spans_ns: Floats) -> Energy:
    """Energy of a source over stretches of time, (m, 2) ns."""
    lasted_s = float(np.diff(spans_ns).sum()) / 1e9
    covered_s = _growth_between(source.growth, source.growth.covered_ns, spans_ns) / 1e9
    if covered_s <= 0:
        return Energy(None, None, None, None, None, None, 0.0, lasted_s)
    joules = _growth_between(source.growth, source.growth.known_growth, spans_ns)
    rates_w = window_rates(source, spans_ns)
    watts = joules / covered_s
    peak_w = max(float(np.nanmax(rates_w)), watts) if np.isfinite(rates_w).any() else watts
    _, low_w, high_w = mean_interval(rates_w)
    spread_w = (high_w - low_w) / 2  # NaN below two windows
    systematic_j = _uncertainty_of_ends_j(source, spans_ns, peak_w) + _resolution_j(source, covered_s)
    sampling_j = 0.0 if source.kind == "counter" or np.isnan(spread_w) else spread_w * covered_s
    half_w = systematic_j / covered_s + (0.0 if np.isnan(spread_w) else spread_w)
    gap_s = max(lasted_s - covered_s, 0.0)
    dark = gap_s / lasted_s
    least_w = min(float(np.nanmin(rates_w)), watts) if np.isfinite(rates_w).any() else 0.0
    is_known = dark <= 1 - _LEAST_COVERED
    return Energy(
        joules=joules,
        low_j=max(joules - systematic_j - sampling_j, 0.0),
        high_j=joules + systematic_j + sampling_j + _max_gap_energy_j(source, spans_ns, gap_s, peak_w),
        watts=watts,
        low_w=max(watts - half_w - dark * (watts - least_w), 0.0) if is_known else None,
        high_w=watts + half_w + dark * (peak_w - watts) if is_known else None,
        covered_s=covered_s,
        gap_s=gap_s if gap_s > 1e-6 * lasted_s else 0.0,
        windows=int(np.isfinite(rates_w).sum()),
    )


def sum_energies(parts: Sequence[Energy]) -> Energy:
    """The sum of parallel rails over the time that all of them cover; bounds add up as if all erred the same way."""
    if any(part.joules is None for part in parts) or not parts:
        dark_s = max((part.gap_s for part in parts), default=0.0)
        return Energy(None, None, None, None, None, None, 0.0, dark_s)
    names = ("joules", "low_j", "high_j", "watts", "low_w", "high_w")
    covered_s, gap_s = min(part.covered_s for part in parts), max(part.gap_s for part in parts)
    # The high end allows for the gap already.
    parts = [replace(_scale_to_covered_time(part, covered_s), high_j=part.high_j) for part in parts]
    ends = {name: [getattr(part, name) for part in parts] for name in names}
    sums = {name: None if None in values else sum(values) for name, values in ends.items()}
    return Energy(**sums, covered_s=covered_s, gap_s=gap_s, windows=min(part.windows for part in parts))


def subtract_energies(whole: Energy, parts: Sequence[Energy]) -> Energy:
    """Return the energy of a rail beside its measured parts; below 0 where they claim more than it."""
    inner = sum_energies(parts)
    if whole.joules is None or inner.joules is None:
        return Energy(None, None, None, None, None, None, 0.0, max(whole.gap_s, inner.gap_s))
    covered_s, gap_s = min(whole.covered_s, inner.covered_s), max(whole.gap_s, inner.gap_s)
    whole, inner = (
        replace(_scale_to_covered_time(whole, covered_s), high_j=whole.high_j),
        _scale_to_covered_time(inner, covered_s),
    )
    pairs = {"joules": "joules", "low_j": "high_j", "high_j": "low_j", "watts": "watts"}
    pairs |= {"low_w": "high_w", "high_w": "low_w"}
    ends = {name: (getattr(whole, name), getattr(inner, pairs[name])) for name in pairs}
    less = {name: None if None in both else both[0] - both[1] for name, both in ends.items()}
    return Energy(**less, covered_s=covered_s, gap_s=gap_s, windows=min(whole.windows, inner.windows))


def _scale_to_covered_time(energy: Energy, covered_s: float) -> Energy:
    """The energy of so much of the time that it covers, at its mean power."""
    if energy.covered_s <= covered_s:
        return energy
    joules, low_j, high_j = (
        None if end is None else end * covered_s / energy.covered_s
        for end in (energy.joules, energy.low_j, energy.high_j)
    )
    return replace(energy, joules=joules, low_j=low_j, high_j=high_j, covered_s=covered_s)


def with_model_interval(energy: Energy, uncertainty: float | None) -> Energy:
    """Return the energy with the CI of its power model, None for none: the spread of what a model gives is no error."""
    if energy.joules is None or energy.watts is None or uncertainty is None:
        return replace(energy, low_j=None, high_j=None, low_w=None, high_w=None)

    def half(value: float, end: float | None) -> float:
        return math.hypot(uncertainty * value, (value if end is None else end) - value)

    is_known = energy.low_w is not None
    return replace(
        energy,
        low_j=max(energy.joules - half(energy.joules, energy.low_j), 0.0),
        high_j=energy.joules + half(energy.joules, energy.high_j),
        low_w=max(energy.watts - half(energy.watts, energy.low_w), 0.0) if is_known else None,
        high_w=energy.watts + half(energy.watts, energy.high_w) if is_known else None,
    )


def window_rates(source: PowerSource, spans_ns: Floats) -> Floats:
    """Mean power of windows as short as the source resolves, W, NaN where a gap lies in one; at most a few hundred."""
    laid = np.append(0.0, np.cumsum(np.diff(spans_ns)))  # end to end: most may be shorter than a window
    longest = max(source.shortest_window_ns, laid[-1] / _MOST_WINDOWS)
    edges = equal_window_edges(0.0, laid[-1], longest)
    if len(edges) < 2:
        return np.empty(0)
    place = np.clip(np.searchsorted(laid, edges, side="right") - 1, 0, len(spans_ns) - 1)
    t_ns = spans_ns[place, 0] + edges - laid[place]
    growth = source.growth

    def grown(running: Floats) -> Floats:
        """Return what it grew by within the stretches, between two edges."""
        begins, ends = (growth.at(running, spans_ns[:, side]) for side in (0, 1))
        before = np.append(0.0, np.cumsum(ends - begins))
        return np.diff(before[place] + growth.at(running, t_ns) - begins[place])

    return _mean_watts(grown(growth.known_growth), grown(growth.covered_ns), np.diff(edges))


def power_windows(source: PowerSource, t0_ns: float, t1_ns: float, length_ns: float) -> tuple[Floats, Floats]:
    """Edges, ns (n + 1,), and mean power, W (n,), of windows of at least this length; NaN where a gap lies in one."""
    edges = equal_window_edges(t0_ns, t1_ns, length_ns)
    if len(edges) < 2:
        return edges, np.empty(0)
    growth = source.growth
    joules, covered = (np.diff(growth.at(running, edges)) for running in (growth.known_growth, growth.covered_ns))
    return edges, _mean_watts(joules, covered, np.diff(edges))


def _mean_watts(joules: Floats, covered_ns: Floats, lasted_ns: Floats) -> Floats:
    """Mean power of windows, W; NaN where a gap lies in one."""
    whole = covered_ns > _WHOLE * lasted_ns
    return np.where(whole, joules / np.where(whole, covered_ns, 1.0) * 1e9, np.nan)


def idle_stretch(run: RunReader, sources: Sequence[PowerSource]) -> Floats:
    """The time before the first step in which the power was read and the training did nothing, (m, 2) ns, m 0 or 1."""
    steps = run.steps
    first = [float(source.growth.t_ns[0]) for source in sources]
    watched = next((series for series in series_of(run, "process_cpu_time") if series.scope == WATCHED), None)
    own = cpu_of_all(run) if has_several_processes(run) else watched
    if steps.is_empty() or not first or own is None:
        return np.empty((0, 2))
    begin, end = max(*first, float(own.t_ns[0])), float(steps["t0_ns"][0])
    if end - begin < _LEAST_IDLE_NS:
        return np.empty((0, 2))
    edges = equal_window_edges(begin, end, _LEAST_IDLE_NS / 2)
    busy = np.diff(np.interp(edges, own.t_ns, own.values)) / np.diff(edges)
    return _longest_idle(edges, busy < _IDLE_CORES)


def _longest_idle(edges: Floats, idle: Flags) -> Floats:
    """The longest run of idle windows, where it is long enough."""
    marks = np.flatnonzero(np.diff(np.concatenate([[0], idle.astype(np.int8), [0]])))
    spans = np.column_stack([edges[marks[::2]], edges[marks[1::2]]])
    spans = spans[np.diff(spans)[:, 0] >= _LEAST_IDLE_NS] if len(spans) else spans
    return spans[np.argsort(np.diff(spans)[:, 0])[-1:]] if len(spans) else np.empty((0, 2))


def _growth_between(growth: Growth, running: Floats, spans_ns: Floats) -> float:
    begins, ends = (growth.at(running, spans_ns[:, side]) for side in (0, 1))
    return float((ends - begins).sum())


def _uncertainty_of_ends_j(source: PowerSource, spans_ns: Floats, peak_w: float) -> float:
    """Return the uncertainty from the ends of the stretches, J.

    A reading tells the power or energy of a moment ago: by as much each stretch sees of what came before it and misses
    of its own end, always to the same side where the same follows it, and of a short pause no more than its length.
    Between two readings a counter is interpolated: the truth lies anywhere between them, so that many ends err both
    ways, like a random walk.
    """
    edges = spans_ns.ravel()
    is_counter = source.kind == "counter"
    change_w = peak_w if is_counter else source.spread_w
    read_j = _growth_around_edges_j(source.growth, edges) + source.step_size if is_counter else np.zeros(len(edges))
    late_ns = source.lag_ns + np.minimum(source.lag_ns, spans_ns[1:, 0] - spans_ns[:-1, 1]).sum()
    either_way_j = _random_walk_j(read_j + source.lag_ns / 1e9 * change_w)
    return max(either_way_j, _random_walk_j(read_j) + float(late_ns) / 1e9 * change_w)


def _random_walk_j(bounds_j: Floats) -> float:
    """Half of the 95 % CI of a sum of errors, each anywhere within its bound: sd = bound / sqrt 3."""
    return float(min(bounds_j.sum(), 2 * np.sqrt((bounds_j**2).sum() / 3)))


def _growth_around_edges_j(growth: Growth, edges: Floats) -> Floats:
    """The larger part of the growth between the two readings around each edge, J; 0 outside of all readings."""
    after = np.clip(np.searchsorted(growth.t_ns, edges), 1, len(growth.t_ns) - 1)
    inside = (edges > growth.t_ns[0]) & (edges < growth.t_ns[-1])
    low, high, here = growth.known_growth[after - 1], growth.known_growth[after], growth.at(growth.known_growth, edges)
    on_a_reading = (edges == growth.t_ns[after]) | (edges == growth.t_ns[after - 1])
    return np.where(inside & ~on_a_reading, np.maximum(here - low, high - here), 0.0)


def _resolution_j(source: PowerSource, covered_s: float) -> float:
    """Return what rounding to the sensor's resolution can add up to, J; a counter's is at its edges alone."""
    return 0.0 if source.kind == "counter" else source.step_size / 2 * covered_s


def _max_gap_energy_j(source: PowerSource, spans_ns: Floats, gap_s: float, peak_w: float) -> float:
    """The most that the gaps can have taken, J: what readings around them tell, else the highest power seen."""
    growth = source.growth
    skipped_j = _growth_between(growth, growth.growth_in_gaps, spans_ns)
    told_s = _growth_between(growth, _bridged_gap_time(growth), spans_ns) / 1e9
    return skipped_j + max(gap_s - told_s, 0.0) * peak_w


def _bridged_gap_time(growth: Growth) -> Floats:
    """Time in gaps whose two ends tell what it grew by, ns, since the first reading."""
    total = growth.t_ns - growth.t_ns[0]
    return np.asarray(total - growth.covered_ns - growth.unknown_ns)


# A gauge that converts for a moment each 100 ms, beside steps of 99.9 ms, reads the same part of every step. The mean
# of its readings is not the mean power then, however many there are.

_FEWEST_READ = 20  # readings in steps
_OF_A_BIN, _PHASE_BINS = 10, (4, 40)  # readings; bins of the step
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
    if count < _FEWEST_READ:
        return None
    ordered = np.sort(phase)
    longest = float(np.diff(np.append(ordered, ordered[0] + 1)).max())
    if count * np.exp(-count * longest) >= BY_CHANCE:
        return None
    bins = int(np.clip(count // _OF_A_BIN, *_PHASE_BINS))
    place = np.minimum((phase * bins).astype(np.int64), bins - 1)
    read = np.bincount(place, minlength=bins)
    mean = np.bincount(place, weights=watts, minlength=bins)[read > 0] / read[read > 0]
    share = float((read == 0).mean())
    read_watts = float(mean.sum()) / bins
    return UnreadPhase(share, read_watts + share * float(watts.min()), read_watts + share * float(watts.max()))
