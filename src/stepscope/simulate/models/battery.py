"""A laptop battery's gauge: the mean power since its last refresh, and what is left, in one uevent file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.simulate.options import Options
from stepscope.simulate.plant import Stretch
from stepscope.simulate.tree import LiveFile

REFRESH_NS = 1_400_000_000
FULL_UWH = 42_650_000
UEVENT_BYTES = 768
_POWER_STEP_UW = 1_000
_ENERGY_STEP_UWH = 10_000
_UWH_PER_J = 1e6 / 3600


@dataclass(frozen=True)
class BatteryFiles:
    """What the gauge writes: the snapshot, the state alone, and whether the mains adapter is there."""

    uevent: LiveFile
    status: LiveFile
    online: LiveFile


class BatteryGauge:
    """Discharges by the power of one rail."""

    def __init__(
        self,
        rail: int,
        files: BatteryFiles,
        power_w: float,
        options: Options,
        rng: np.random.Generator,
        t0_ns: int,
    ) -> None:
        """`power_w`: what it has given until now."""
        refresh_ns = options.refresh_ns or REFRESH_NS
        self._rail, self._files, self._power_w = rail, files, power_w
        self._every_ns = refresh_ns * (1 + options.clock_error * rng.uniform(-1, 1))
        self._next_ns = t0_ns + rng.uniform(0, self._every_ns)
        self._energy_j: float | None = None
        self._left_uwh = FULL_UWH * rng.uniform(0.6, 0.9)
        self._plugged = False
        self._write()

    @property
    def next_ns(self) -> float:
        """The next refresh."""
        return float(self._next_ns)

    def advance(self, stretch: Stretch) -> None:
        """Refresh at each moment of the gauge's own grid."""
        while self._next_ns <= stretch.end_ns:
            now_j = float(stretch.at(np.array([self._next_ns]))[0][self._rail])
            self._next_ns += self._every_ns
            if self._energy_j is not None:
                used_j = now_j - self._energy_j
                self._power_w = used_j / (self._every_ns * 1e-9)
                self._left_uwh += used_j * _UWH_PER_J * (1 if self._plugged else -1)
                self._write()
            self._energy_j = now_j

    def fault(self, kind: str, on: bool) -> None:
        """plugged: the battery is charged, so its power says nothing of what the machine uses."""
        if kind == "plugged":
            self._plugged = on
            self._write()

    def _write(self) -> None:
        left_uwh = min(FULL_UWH, max(0.0, self._left_uwh))
        status = "Charging" if self._plugged else "Discharging"
        power_uw = round(self._power_w * 1e6 / _POWER_STEP_UW) * _POWER_STEP_UW
        self._files.status.write(status)
        self._files.online.write(str(int(self._plugged)))
        self._files.uevent.write(
            "DEVTYPE=power_supply\n"
            "POWER_SUPPLY_NAME=BAT0\n"
            "POWER_SUPPLY_TYPE=Battery\n"
            f"POWER_SUPPLY_STATUS={status}\n"
            "POWER_SUPPLY_PRESENT=1\n"
            "POWER_SUPPLY_TECHNOLOGY=Li-poly\n"
            "POWER_SUPPLY_CYCLE_COUNT=95\n"
            "POWER_SUPPLY_VOLTAGE_MIN_DESIGN=11100000\n"
            f"POWER_SUPPLY_VOLTAGE_NOW={10_900_000 + round(1500 * left_uwh / FULL_UWH) * 1000}\n"
            f"POWER_SUPPLY_POWER_NOW={power_uw}\n"
            "POWER_SUPPLY_ENERGY_FULL_DESIGN=45280000\n"
            f"POWER_SUPPLY_ENERGY_FULL={FULL_UWH}\n"
            f"POWER_SUPPLY_ENERGY_NOW={int(left_uwh / _ENERGY_STEP_UWH) * _ENERGY_STEP_UWH}\n"
            f"POWER_SUPPLY_CAPACITY={round(100 * left_uwh / FULL_UWH)}\n"
            "POWER_SUPPLY_CAPACITY_LEVEL=Normal\n"
            "POWER_SUPPLY_MODEL_NAME=SIMULATED\n"
        )
