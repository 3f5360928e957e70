"""The rails of a run in the tree of the board, and which of them add up to its total."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.analysis.device import canonical_rail_name, identify, matches_pattern, rail_of
from stepscope.analysis.device.contract import Board, Rail, Total
from stepscope.analysis.energy.power_model import modelled_sources
from stepscope.analysis.energy.power_sources import PowerSource, power_sources
from stepscope.analysis.time.steps import span_ns
from stepscope.analysis.unused_cards import card_of, unused_cards
from stepscope.runfolder import RunReader

# Shown, and never added to anything: what a rail feeds where no board file says, and a card of somebody else's work.
UNKNOWN, UNUSED = "unknown", "unused"
WHOLE_DEVICE = ("total", "device")  # components that stand for all that is drawn
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
