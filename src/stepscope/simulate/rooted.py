"""Whose sensors are read: those of this machine, or of a simulated board for as long as something is measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.simulate.simulation import start


@dataclass(frozen=True)
class Rooted:
    """The top of the file system whose sensors are read; `runs`: run folders that a board's truth is to be kept in."""

    root: str | None
    runs: list[Path] = field(default_factory=list)


@contextmanager
def rooted(board: str | None, root: str | None = None) -> Iterator[Rooted]:
    """`root` without a board; else the root of a board of this name, which ends with the block."""
    if board is None:
        yield Rooted(root)
        return
    with start(board) as simulation:
        chosen = Rooted(str(simulation.root))
        yield chosen
    for run in chosen.runs:
        simulation.truth().save(run)
