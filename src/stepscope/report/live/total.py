"""Which of the measured rails add up to the power of the whole board, by the board's own file."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from stepscope.analysis.boards import canonical, identify, matches, rail_of

_OUTSIDE = ("system", "board", "wall:*", "meter:*", "battery:*", "rapl:psys")  # hold everything; the best first


def total_scopes(rails: Collection[tuple[str, str]], device: dict[str, Any], simulated: str | None) -> tuple[str, ...]:
    """Scopes to add up, of rails as (name, scope); empty where no rail is known to hold the others."""
    board = identify(device, {name for name, _ in rails}, simulated)
    entries = {scope: rail_of(board, canonical(board, name), scope) for name, scope in rails}
    for rule in board.totals:
        of = [[scope for scope, entry in entries.items() if entry and entry.name == name] for name in rule.of]
        if all(of):
            also = [scope for scope, entry in entries.items() if entry and entry.name in rule.also]
            return tuple(dict.fromkeys([*(scope for scopes in of for scope in scopes), *also]))
    return next(((scope,) for pattern in _OUTSIDE for _, scope in rails if matches(pattern, scope)), ())
