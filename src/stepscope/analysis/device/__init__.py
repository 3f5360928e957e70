"""The boards: `BOARDS` of the files here; the folder is its own registry. docs/boards.md says how to add one."""

from __future__ import annotations

import sys
from collections.abc import Collection
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from stepscope.analysis.device.contract import OUTSIDE_RAILS as OUTSIDE
from stepscope.analysis.device.contract import Board, Cluster, Identity, Rail
from stepscope.plugins import Discovery, discover

ENTRY_POINTS = "stepscope.boards"
OTHER_MACHINE = "other_machine"  # the board of a machine that no file describes
_NOT_BOARDS = frozenset({"contract"})
_CERTAIN = 2  # a match by device tree or name of the board; below that the rails may know better
_FEW_RAILS = 2


@cache
def discover_boards() -> Discovery:
    """Every board file of this folder and of plug-ins, and a sentence for each that could not be imported."""
    return discover(sys.modules[__name__], ENTRY_POINTS, skip=_NOT_BOARDS)


def all_boards() -> list[Board]:
    """Return all boards by name: the `BOARDS` of the files here, and the `BOARDS` or `BOARD` of plug-ins."""
    modules = discover_boards().modules
    boards = [board for module in modules for board in (*getattr(module, "BOARDS", ()), getattr(module, "BOARD", None))]
    return sorted((board for board in boards if isinstance(board, Board)), key=lambda board: board.name)


def identify(device: dict[str, Any], rails: Collection[str] = (), simulated: str | None = None) -> Board:
    """The board of a device.json; where that says little (in a container), the one whose rails were measured.

    `simulated` is the name of the board that a simulated run stood for.
    """
    boards = {board.name: board for board in all_boards()}
    if simulated is not None and _file_name(simulated) in boards:
        return boards[_file_name(simulated)]
    strengths = {name: _match_strength(board.identity, device) for name, board in boards.items()}
    best = max(boards.values(), key=lambda board: (strengths[board.name], board.name == OTHER_MACHINE))
    if strengths[best.name][0] >= _CERTAIN:
        return best
    alike = {name: _rails_in_common(board, rails) for name, board in boards.items()}
    by_rails = max(boards.values(), key=lambda board: alike[board.name])
    return by_rails if alike[by_rails.name] >= _FEW_RAILS else best


def canonical_rail_name(board: Board, rail: str) -> str:
    """The name that the board's file has for a rail, whatever release or kernel named it."""
    return dict(board.aliases).get(rail, rail)


def rail_of(board: Board, *names: str | None) -> Rail | None:
    """The entry for a rail by any of its names (of the rail, of its scope), the board's own first; None without one."""
    for name in names:
        for rail in (*board.rails, *OUTSIDE):
            if name is not None and matches_pattern(rail.name, name):
                return rail
    return None


def matches_pattern(pattern: str, name: str) -> bool:
    """Return whether a rail's name is the one, or of the kind, that a board file states."""
    return fnmatchcase(name.lower(), pattern.lower())


def core_clusters(device: dict[str, Any], board: Board) -> dict[str, list[int]]:
    """The cores of each cluster: by the board's own names where their MIDR tells, else big and little by capacity."""
    cores = [core for core in device.get("cores") or [] if isinstance(core, dict)]
    kinds = {(cluster.implementer, cluster.part): cluster for cluster in board.clusters}
    named: dict[str, list[int]] = {}
    for core in cores:
        cluster = kinds.get(_implementer_and_part(core.get("midr")))
        named.setdefault(cluster.name if cluster else _cluster_by_capacity(core, cores, board.clusters), []).append(
            int(core.get("core", -1))
        )
    return named


def _cluster_by_capacity(core: dict[str, Any], cores: list[dict[str, Any]], clusters: tuple[Cluster, ...]) -> str:
    if len(clusters) == 1:
        return clusters[0].name
    strengths = sorted({_core_capacity(other) for other in cores})
    if len(strengths) < 2:
        return "cores"
    place = strengths.index(_core_capacity(core))
    return "little" if place == 0 else "big" if place == len(strengths) - 1 else "middle"


def _core_capacity(core: dict[str, Any]) -> tuple[int, int]:
    return int(core.get("capacity") or 0), int(core.get("max_frequency_hz") or 0)


def _implementer_and_part(midr: object) -> tuple[int, int]:
    """Implementer and part of a MIDR_EL1 as sysfs prints it; (-1, -1) where there is none."""
    try:
        value = int(str(midr), 16)
    except ValueError:
        return -1, -1
    return value >> 24 & 0xFF, value >> 4 & 0xFFF


def _file_name(name: str) -> str:
    return name.lower().replace("-", "_").replace(" ", "_")


def _match_strength(identity: Identity, device: dict[str, Any]) -> tuple[int, int]:
    """Return how surely a device is this board: which field says so, and by how long a word."""
    name = device.get("board")
    texts = (
        (device.get("cpu"), identity.cpu, 1),
        (_vendors(device), identity.accelerator, 1),
        (name.get("name") if isinstance(name, dict) else name, identity.board, 2),
        (device.get("compatible"), identity.compatible, 3),
    )
    strengths = [(0, 0)]
    for text, words, strength in texts:
        strengths += [(strength, len(word)) for word in words if word.lower() in str(text or "").lower()]
    return max(strengths)


def _vendors(device: dict[str, Any]) -> str:
    accelerators = device.get("accelerators") or []
    return " ".join(f"accelerator:{a.get('vendor')}" for a in accelerators if isinstance(a, dict))


def _rails_in_common(board: Board, rails: Collection[str]) -> int:
    """Return how many of the measured rails this board names itself, patterns not counted; 0 unless it has all."""
    own = {rail.name for rail in board.rails if "*" not in rail.name}
    named = [canonical_rail_name(board, rail) for rail in rails]
    common = [rail for rail in named if rail in own]
    return len(common) if common and len(common) == len(named) else 0
