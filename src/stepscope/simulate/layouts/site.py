"""What a board's files are built from, and what comes out: the sensor models that drive them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.simulate.boards import Board
from stepscope.simulate.models.contract import SensorModel
from stepscope.simulate.options import Options
from stepscope.simulate.plant import Floats
from stepscope.simulate.proc import ProcFolder
from stepscope.simulate.tree import Tree


@dataclass(frozen=True)
class Site:
    """The board that is built, its tree, and the moment it starts."""

    board: Board
    tree: Tree
    options: Options
    idle_w: Floats  # by rail
    rng: np.random.Generator
    t0_ns: int

    def column(self, rail: str) -> int:
        """Column of a rail in the power table."""
        return list(self.board.rails).index(rail)


@dataclass(frozen=True)
class Built:
    """The sensors of a board, and its /proc where that is not simply the real one."""

    sensors: Sequence[SensorModel]
    proc: ProcFolder | None = None


Build = Callable[[Site], Built]


def link_real_machine(tree: Tree) -> None:
    """CPU, memory and operating system are those of the machine that really trains."""
    for path in ("sys/devices/system/cpu", "sys/devices/system/node", "sys/fs/cgroup", "etc/os-release"):
        tree.link_real(path)
