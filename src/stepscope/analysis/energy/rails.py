"""The rails of a run in the tree of the board, and the energy of each over stretches of time."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.analysis.channels import Growth, equal_window_edges, series_of
from stepscope.analysis.device import canonical_rail_name, identify, matches_pattern, rail_of
from stepscope.analysis.device.contract import Board, Rail, Total
from stepscope.analysis.energy.power_model import modelled_sources
from stepscope.analysis.energy.power_sources import PowerSource, power_sources
from stepscope.analysis.estimate import mean_interval
from stepscope.analysis.process_scopes import WATCHED, cpu_of_all, has_several_processes
from stepscope.analysis.time.steps import span_ns, steps_after_warmup
from stepscope.analysis.unused_cards import card_of, unused_cards
from stepscope.arrays import Flags, Floats
from stepscope.runfolder import RunReader

# Shown, and never added to anything: what a rail feeds where no board file says, and a card of somebody else's work.
UNKNOWN, UNUSED = "unknown", "unused"
_AS_GOOD = 0.9  # of the best coverage: below, a finer source that was mostly dark is no better
_FEW_STEPS = 100  # of a counter in a run: below, it knows the energy to a percent or worse
_OF_KIND = {"counter": 0, "gauge": 1, "estimate": 2}


@dataclass(frozen=True)
class MeasuredRail:
    """A rail as this run measured it; `sources` best first, the others are its cross-check."""

    key: str
    name: str
    scope: str
    component: str
    entry: Rail | None  # of the board's file
    sources: tuple[PowerSource, ...]
    parent: str | None = None  # key of the measured line that contains it

    @property
    def best(self) -> PowerSource:
        return self.sources[0]

    @property
    def estimated(self) -> bool:
        return self.best.kind == "estimate"


@dataclass(frozen=True)
class RailTree:
    """Everything that was measured of a board's supply; `total` is None where its rails do not add up to one."""

    board: Board
    lines: tuple[MeasuredRail, ...]
    total: tuple[MeasuredRail, ...] | None = None
    covers: str = ""
    notes: tuple[str, ...] = ()

    def children(self, parent: MeasuredRail) -> list[MeasuredRail]:
        """The lines that this one feeds directly."""
        return [line for line in self.lines if line.parent == parent.key]

    def components(self) -> list[tuple[str, tuple[MeasuredRail, ...]]]:
        """The lines that add up to each component, none inside another of the same; the total first, estimates last.

        A meter beside the board is no component where it is the total; of several kinds the best stands for all.
        """
        components = [("total", self.total)] if self.total else []
        for estimated in (False, True):
            lines = [line for line in self.lines if line.estimated == estimated]
            for name in dict.fromkeys(line.component for line in lines):
                chosen = outermost([line for line in lines if line.component == name], self.lines)
                if name == "device":
                    chosen = _best_whole_device_meter(chosen)
                is_total = name == "total" or (name == "device" and tuple(chosen) == self.total)
                if name not in (UNKNOWN, UNUSED) and not is_total:
                    components.append((name, tuple(chosen)))
        return components


def rail_tree(run: RunReader) -> RailTree:
    """The supply lines of a run, measured ones only."""
    sources = [*power_sources(run), *modelled_sources(run)]
    names = {_rail_name(source) for source in sources}
    board = identify(run.device, names, run.meta.get("simulated"))
    span = span_ns(run)
    built = [_build_line(key, group, board, span) for key, group in _group_sources_by_rail(sources, board).items()]
    supplies, wired = _without_several_wired_chips(built)
    supplies, unused, beside = _without_unused_cards(supplies, run)
    lines = _nest_lines(supplies, board)
    total, covers, notes = _total_lines(lines, board, unused)
    return RailTree(board, tuple(lines), total, covers, (*notes, *wired, *beside))


def outermost(chosen: Sequence[MeasuredRail], lines: Iterable[MeasuredRail]) -> list[MeasuredRail]:
    """Those of the lines that lie inside no other of them."""
    parents = {line.key: line.parent for line in lines}
    keys = {line.key for line in chosen}
    return [line for line in chosen if not keys & set(_ancestors(line.key, parents))]


def _ancestors(key: str, parents: dict[str, str | None]) -> Iterator[str]:
    visited = {key}
    while (above := parents.get(key)) is not None and above not in visited:
        visited.add(above)
        yield above
        key = above


def _rail_name(source: PowerSource) -> str:
    """The rail as the hardware names it: by its scope, since graphics cards state their model there."""
    return source.rail if source.rail and source.scope.startswith(("rail:", "rapl:")) else source.scope


def _group_sources_by_rail(sources: Sequence[PowerSource], board: Board) -> dict[str, list[PowerSource]]:
    """Sources of the same rail together, estimates apart, under the scope that they share."""
    groups: dict[str, list[PowerSource]] = {}
    for source in sources:
        kind, _, name = source.scope.partition(":")
        scope = f"rail:{canonical_rail_name(board, name)}" if kind == "rail" else source.scope
        groups.setdefault(f"{scope} (estimated)" if source.kind == "estimate" else scope, []).append(source)
    return groups


def _build_line(key: str, sources: list[PowerSource], board: Board, span: tuple[int, int] | None) -> MeasuredRail:
    first = sources[0]
    name = canonical_rail_name(board, _rail_name(first))
    entry = rail_of(board, name, key, first.scope)
    covered = {source.id: source.covered_share(*span) if span else 1.0 for source in sources}
    good = _AS_GOOD * max(covered.values())
    ranked = sorted(
        sources,
        key=lambda other: (covered[other.id] < good, _is_coarse(other), _OF_KIND[other.kind], other.shortest_window_ns),
    )
    component = entry.component if entry else UNKNOWN
    return MeasuredRail(key, name, first.scope, component, entry, tuple(ranked))


def _is_coarse(source: PowerSource) -> bool:
    """Return whether a counter has made so few steps that a gauge of the same rail tells more of its energy."""
    return source.kind == "counter" and float(np.nansum(source.growth.steps)) < _FEW_STEPS * source.step_size


def _nest_lines(lines: list[MeasuredRail], board: Board) -> list[MeasuredRail]:
    """The lines with what contains them: by the board's file, and by the sensor where that says nothing."""
    return [
        MeasuredRail(
            line.key, line.name, line.scope, line.component, line.entry, line.sources, _parent_key(line, lines, board)
        )
        for line in lines
    ]


def _parent_key(line: MeasuredRail, lines: Sequence[MeasuredRail], board: Board) -> str | None:
    entry = line.entry
    while entry is not None and entry.inside is not None:
        inside = entry.inside
        candidates = [other for other in lines if other is not line and other.entry and other.entry.name == inside]
        if len(candidates) == 1:
            return candidates[0].key
        stated = [other for other in candidates if other.scope == line.best.parent_scope]
        if stated:
            return stated[0].key
        entry = next((rail for rail in board.rails if rail.name == inside), None)
    stated_by_sensor = [other for other in lines if other is not line and other.scope == line.best.parent_scope]
    if line.entry is not None and line.entry.inside is not None:  # then the sensor is heard on twins alone
        stated_by_sensor = [other for other in stated_by_sensor if other.entry == line.entry]
    return stated_by_sensor[0].key if stated_by_sensor else None


def _total_lines(
    lines: Sequence[MeasuredRail], board: Board, unused: Collection[str]
) -> tuple[tuple[MeasuredRail, ...] | None, str, list[str]]:
    """The lines that add up to a total by the first rule of the board whose rails were measured; else a meter's.

    unused: names of the rails of cards that the training did not use, which no rule needs.
    """
    measured = [line for line in lines if not line.estimated]
    for rule in board.totals:
        needed = tuple(name for name in rule.of if name not in unused or _lines_named(name, measured))
        of = _lines_matching_rule(replace(rule, of=needed), measured) if needed else []
        if of:
            return tuple(of), rule.covers, []
    outside = [line for line in measured if line.component == "device"]
    if outside:
        best = _best_whole_device_meter(outside)
        return tuple(best), best[0].entry.meaning if best[0].entry else best[0].name, []
    if not measured:
        return None, "", []
    lacking = [name for rule in board.totals[:1] for name in rule.of if not _lines_named(name, measured)]
    why = f"the total needs {', '.join(lacking)}, not measured" if lacking else "no rail is known to hold the others"
    return None, "", [f"no total of {board.title}: {why}"]


def _lines_matching_rule(rule: Total, lines: Sequence[MeasuredRail]) -> list[MeasuredRail]:
    named = [_lines_named(name, lines) for name in rule.of]
    if not all(named):
        return []
    everything = [line for group in (*named, *(_lines_named(name, lines) for name in rule.also)) for line in group]
    return outermost(list({line.key: line for line in everything}.values()), lines)


def _lines_named(pattern: str, lines: Sequence[MeasuredRail]) -> list[MeasuredRail]:
    return [line for line in lines if line.entry and line.entry.name == pattern]


_WIRED, _BATTERY = "rail:ina2*", "battery:*"


def _without_several_wired_chips(lines: list[MeasuredRail]) -> tuple[list[MeasuredRail], list[str]]:
    """The lines, several chips of which no board file knows the rails as unknown ones, and a sentence that says so.

    A single one is taken for the meter of the whole device; of several each has a rail of its own.
    """
    wired = [line for line in lines if line.component == "device" and matches_pattern(_WIRED, line.scope)]
    if len(wired) < 2:
        return lines, []
    names = ", ".join(line.name for line in wired)
    note = f"{names}: no board file says what these rails feed, so that none of them is taken for the whole device"
    return [replace(line, component=UNKNOWN, entry=None) if line in wired else line for line in lines], [note]


def _without_unused_cards(
    lines: list[MeasuredRail], run: RunReader
) -> tuple[list[MeasuredRail], set[str], Sequence[str]]:
    """The lines, those of cards that the training did not use as unused ones; the names of these, and a sentence."""
    scopes, unclear = unused_cards(run)
    beside = [line for line in lines if card_of(line.scope) in scopes]
    if not beside:
        cards = {card_of(line.scope) for line in lines if line.scope.startswith("gpu:")}
        return lines, set(), [unclear] if unclear and len(cards) > 1 else []
    note = f"GPUs that the training did not use, in no sum: {', '.join(line.name for line in beside)}"
    relabelled = [replace(line, component=UNUSED, entry=None) if line in beside else line for line in lines]
    return relabelled, {line.entry.name for line in beside if line.entry}, [note]


def _best_whole_device_meter(lines: Sequence[MeasuredRail]) -> list[MeasuredRail]:
    """The meter of the whole device; all batteries together, since each may feed it for a part of the time."""
    best = min(lines, key=_meter_rank)
    if not matches_pattern(_BATTERY, best.scope):
        return [best]
    # A phone that adb reads is another machine's.
    return [line for line in lines if matches_pattern(_BATTERY, line.scope) and line.best.sensor == best.best.sensor]


def _meter_rank(line: MeasuredRail) -> int:
    order = ("system", "board", "wall:*", "meter:*", _WIRED, _BATTERY)
    return next((index for index, pattern in enumerate(order) if matches_pattern(pattern, line.scope)), len(order))


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
