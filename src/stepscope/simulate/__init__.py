"""Simulated boards whose energy is known: real sysfs files below a root of their own, driven by what really trains."""

from __future__ import annotations

from stepscope.simulate.boards import BOARDS as _BOARDS
from stepscope.simulate.simulation import Simulation, start

BOARDS = tuple(sorted(_BOARDS))

__all__ = ["BOARDS", "Simulation", "start"]
