"""Thermal zones that warm with the energy spent: first order, in whole half degrees."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from stepscope.simulate.plant import Stretch
from stepscope.simulate.tree import LiveFile

REFRESH_NS = 250_000_000
_AMBIENT_C = 30.0
_DEGREES_PER_W = 3.5
_TAU_S = 25.0


class ThermalZones:
    """Zones that follow one rail's power, each a little cooler than the one before."""

    def __init__(self, rail: int, files: Sequence[LiveFile], t0_ns: int) -> None:
        self._rail, self._files = rail, files
        self._seen_ns, self._seen_j = t0_ns, 0.0
        self._celsius = _AMBIENT_C
        self._write()

    @property
    def next_ns(self) -> float:
        """Whenever somebody comes by: heat is slow."""
        return math.inf

    def advance(self, stretch: Stretch) -> None:
        """Warm up or cool down by the mean power since the last refresh."""
        elapsed_s = (stretch.end_ns - self._seen_ns) * 1e-9
        if elapsed_s * 1e9 < REFRESH_NS:
            return
        now_j = float(stretch.at(np.array([stretch.end_ns]))[0][self._rail])
        settled_c = _AMBIENT_C + _DEGREES_PER_W * (now_j - self._seen_j) / elapsed_s
        self._celsius += (settled_c - self._celsius) * (1 - math.exp(-elapsed_s / _TAU_S))
        self._seen_ns, self._seen_j = stretch.end_ns, now_j
        self._write()

    def fault(self, kind: str, on: bool) -> None:
        """A zone has no fault of its own."""

    def _write(self) -> None:
        for place, file in enumerate(self._files):
            file.write(str(round(2 * (self._celsius - 1.5 * place)) * 500))
