"""Energy counters: they move at the ticks of a clock of their own, in whole units, and wrap.

RAPL: 1 ms, units of 2^-14 J (Intel SDM vol. 3B, 16.10). A GPU's: steps of 100 ms, whole microjoules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.simulate.options import Options
from stepscope.simulate.plant import Floats, Stretch
from stepscope.simulate.tree import LiveFile

RAPL_UNIT_J = 2.0**-14


@dataclass(frozen=True)
class CounterKind:
    """Refresh, unit and range of a counter."""

    refresh_ns: int
    unit_j: float
    range_uj: int


class EnergyCounters:
    """Several rails that are counted by the same clock; `rails` are their columns in the power table."""

    def __init__(
        self,
        kind: CounterKind,
        rails: Sequence[int],
        files: Sequence[LiveFile],
        options: Options,
        rng: np.random.Generator,
        t0_ns: int,
    ) -> None:
        self._kind, self._rails, self._files = kind, list(rails), files
        self._every_ns = kind.refresh_ns * (1 + options.clock_error * rng.uniform(-1, 1))
        self._first_ns = t0_ns + rng.uniform(0, self._every_ns)
        self._ticks = -1
        # It has counted since the boot; below 2^40 uJ a float holds every unit.
        self._start_uj: Floats = rng.uniform(0, min(kind.range_uj, 2**40), len(self._rails))
        self._joules: Floats = np.zeros(len(self._rails))
        self._write()

    @property
    def next_ns(self) -> float:
        """The next tick of its clock."""
        return float(self._first_ns + (self._ticks + 1) * self._every_ns)

    def advance(self, stretch: Stretch) -> None:
        """Show the energy up to the last tick in this stretch."""
        ticks = int((stretch.end_ns - self._first_ns) // self._every_ns)
        if ticks <= self._ticks:
            return
        self._ticks = ticks
        self._joules = stretch.at(np.array([self._first_ns + ticks * self._every_ns]))[0][self._rails]
        self._write()

    def fault(self, kind: str, on: bool) -> None:
        """reset: count from 0 again."""
        if kind == "reset" and on:
            self._start_uj = -self._joules * 1e6
            self._write()

    def _write(self) -> None:
        units = np.floor((self._joules + self._start_uj * 1e-6) / self._kind.unit_j)
        for file, value in zip(self._files, (units * self._kind.unit_j * 1e6).tolist(), strict=True):
            file.write(str(int(value) % self._kind.range_uj))
