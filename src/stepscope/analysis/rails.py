"""The supply lines of a run: sources that report the same rail put together, and rails placed in the board's tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from stepscope.analysis.boards import canonical, identify, matches, rail_of
from stepscope.analysis.boards.contract import Board, Rail, Total
from stepscope.analysis.power_model import modelled_sources
from stepscope.analysis.power_sources import PowerSource, power_sources
from stepscope.analysis.steady import span_ns
from stepscope.runfolder import RunReader

UNKNOWN = "unknown"  # what a rail feeds where no board file says: shown, and never added to anything
_AS_GOOD = 0.9  # of the best coverage: below, a finer source that was mostly dark is no better
_OF_KIND = {"counter": 0, "gauge": 1, "estimate": 2}


@dataclass(frozen=True)
class Line:
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
    lines: tuple[Line, ...]
    total: tuple[Line, ...] | None = None
    covers: str = ""
    notes: tuple[str, ...] = ()

    def children(self, parent: Line) -> list[Line]:
        """The lines that this one feeds directly."""
        return [line for line in self.lines if line.parent == parent.key]

    def components(self) -> list[tuple[str, tuple[Line, ...]]]:
        """The lines that add up to each component, none inside another of the same; the total first, estimates last.

        A meter beside the board is no component besides where it is the total; of several the best stands for all.
        """
        found = [("total", self.total)] if self.total else []
        for estimated in (False, True):
            lines = [line for line in self.lines if line.estimated == estimated]
            for name in dict.fromkeys(line.component for line in lines):
                chosen = outermost([line for line in lines if line.component == name], self.lines)
                if name == "device":
                    chosen = [min(chosen, key=_outside_rank)]
                is_total = name == "total" or (name == "device" and tuple(chosen) == self.total)
                if name != UNKNOWN and not is_total:
                    found.append((name, tuple(chosen)))
        return found


def rail_tree(run: RunReader) -> RailTree:
    """The supply lines of a run, measured ones only."""
    sources = [*power_sources(run), *modelled_sources(run)]
    names = {_rail_name(source) for source in sources}
    board = identify(run.device, names, run.meta.get("simulated"))
    span = span_ns(run)
    lines = _placed([_line(key, group, board, span) for key, group in _by_rail(sources, board).items()], board)
    total, covers, notes = _total(lines, board)
    return RailTree(board, tuple(lines), total, covers, tuple(notes))


def outermost(chosen: Sequence[Line], lines: Iterable[Line]) -> list[Line]:
    """Those of the lines that lie inside no other of them."""
    parents = {line.key: line.parent for line in lines}
    keys = {line.key for line in chosen}
    return [line for line in chosen if not keys & set(_above(line.key, parents))]


def _above(key: str, parents: dict[str, str | None]) -> Iterator[str]:
    seen = {key}
    while (above := parents.get(key)) is not None and above not in seen:
        seen.add(above)
        yield above
        key = above


def _rail_name(source: PowerSource) -> str:
    """The rail as the hardware names it: by its scope, since graphics cards state their model there."""
    return source.rail if source.rail and source.scope.startswith(("rail:", "rapl:")) else source.scope


def _by_rail(sources: Sequence[PowerSource], board: Board) -> dict[str, list[PowerSource]]:
    """Sources of the same rail together, estimates apart, under the scope that they share."""
    groups: dict[str, list[PowerSource]] = {}
    for source in sources:
        kind, _, name = source.scope.partition(":")
        scope = f"rail:{canonical(board, name)}" if kind == "rail" else source.scope
        groups.setdefault(f"{scope} (estimated)" if source.kind == "estimate" else scope, []).append(source)
    return groups


def _line(key: str, sources: list[PowerSource], board: Board, span: tuple[int, int] | None) -> Line:
    first = sources[0]
    name = canonical(board, _rail_name(first))
    entry = rail_of(board, name, key, first.scope)
    covered = {source.id: source.covered_share(*span) if span else 1.0 for source in sources}
    good = _AS_GOOD * max(covered.values())
    ranked = sorted(sources, key=lambda one: (covered[one.id] < good, _OF_KIND[one.kind], one.resolved_ns))
    component = entry.component if entry else UNKNOWN
    return Line(key, name, first.scope, component, entry, tuple(ranked))


def _placed(lines: list[Line], board: Board) -> list[Line]:
    """The lines with what contains them: by the board's file, and by the sensor where that says nothing."""
    return [
        Line(line.key, line.name, line.scope, line.component, line.entry, line.sources, _parent(line, lines, board))
        for line in lines
    ]


def _parent(line: Line, lines: Sequence[Line], board: Board) -> str | None:
    entry = line.entry
    while entry is not None and entry.inside is not None:
        inside = entry.inside
        found = [other for other in lines if other is not line and other.entry and other.entry.name == inside]
        if len(found) == 1:
            return found[0].key
        stated = [other for other in found if other.scope == line.best.parent_scope]
        if stated:
            return stated[0].key
        entry = next((rail for rail in board.rails if rail.name == inside), None)
    stated_by_sensor = [other for other in lines if other is not line and other.scope == line.best.parent_scope]
    if line.entry is not None and line.entry.inside is not None:  # then the sensor is heard on twins alone
        stated_by_sensor = [other for other in stated_by_sensor if other.entry == line.entry]
    return stated_by_sensor[0].key if stated_by_sensor else None


def _total(lines: Sequence[Line], board: Board) -> tuple[tuple[Line, ...] | None, str, list[str]]:
    """The lines that add up to a total by the first rule of the board whose rails were measured; else a meter's."""
    measured = [line for line in lines if not line.estimated]
    for rule in board.totals:
        of = _lines_of_rule(rule, measured)
        if of:
            return tuple(of), rule.covers, []
    outside = [line for line in measured if line.component == "device"]
    if outside:
        best = min(outside, key=_outside_rank)
        return (best,), best.entry.meaning if best.entry else best.name, []
    if not measured:
        return None, "", []
    lacking = [name for rule in board.totals[:1] for name in rule.of if not _matching(name, measured)]
    why = f"the total needs {', '.join(lacking)}, not measured" if lacking else "no rail is known to hold the others"
    return None, "", [f"no total of {board.title}: {why}"]


def _lines_of_rule(rule: Total, lines: Sequence[Line]) -> list[Line]:
    named = [_matching(name, lines) for name in rule.of]
    if not all(named):
        return []
    everything = [line for group in (*named, *(_matching(name, lines) for name in rule.also)) for line in group]
    return outermost(list({line.key: line for line in everything}.values()), lines)


def _matching(pattern: str, lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line.entry and line.entry.name == pattern]


def _outside_rank(line: Line) -> int:
    order = ("system", "board", "wall:*", "meter:*", "rail:ina2*", "battery:*")
    return next((place for place, pattern in enumerate(order) if matches(pattern, line.scope)), len(order))
