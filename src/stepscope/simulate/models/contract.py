"""What a sensor model offers to the simulating process."""

from __future__ import annotations

from typing import Protocol

from stepscope.simulate.plant import Stretch


class SensorModel(Protocol):
    """Sees every stretch of time once, in order, and writes its files."""

    @property
    def next_ns(self) -> float:
        """When a reader could next see something new; infinite where that need not be punctual."""

    def advance(self, stretch: Stretch) -> None:
        """Bring the files to the end of the stretch."""

    def fault(self, kind: str, on: bool) -> None:
        """A fault of the sensor itself begins or ends: "reset" or "plugged"."""
