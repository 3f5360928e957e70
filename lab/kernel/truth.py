"""The truth of a scene, and the run that has to agree with it: what the registers said from when to when."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.analysis.channels import Growth
from stepscope.arrays import Flags, Floats, Ints
from stepscope.runfolder import RunReader

STEP_W = {  # the least change of a power register, W; of the INA3221 at 5 V
    "ina3221": 0.004 * 5.0,
    "ina226": 0.00625,
    "ina238": 0.0004,
    "sbs": 0.012,
    "test_power": 0.004,
}
ENERGY_WITHIN = 0.005


@dataclass(frozen=True)
class Registers:
    """Power that the registers of a rail said: from `t_ns` (between begin and end of a write) on, W."""

    begin_ns: Floats
    end_ns: Floats
    watts: Floats

    @property
    def t_ns(self) -> Floats:
        """Middle of each write."""
        return (self.begin_ns + self.end_ns) / 2

    def joules(self, begin_ns: float, end_ns: float) -> float:
        """Energy between two times."""
        edges = np.clip(np.append(self.t_ns, np.inf), begin_ns, end_ns)
        return float((np.diff(edges) * self.watts).sum() / 1e9)

    def torn(self, t0_ns: Ints, t1_ns: Ints) -> Flags:
        """Return which reads, (n,), lay over a write."""
        first = np.searchsorted(self.end_ns, t0_ns, side="left")
        last = np.searchsorted(self.begin_ns, t1_ns, side="right")
        return np.asarray(last > first)

    def said(self, t_ns: Floats) -> Floats:
        """Power at times, (n,); NaN before the first write."""
        place = np.searchsorted(self.t_ns, t_ns, side="right") - 1
        return np.where(place < 0, np.nan, self.watts[np.maximum(place, 0)])


def registers(scene: Path) -> dict[str, Registers]:
    """The truth of a scene, by rail."""
    rows = [line.split(",") for line in (scene / "truth.csv").read_text().splitlines() if line.count(",") == 3]
    by_rail: dict[str, list[tuple[float, float, float]]] = {}
    for begin, end, rail, watts in rows:
        by_rail.setdefault(rail, []).append((float(begin), float(end), float(watts)))
    return {
        rail: Registers(*(np.array(column) for column in zip(*told, strict=True))) for rail, told in by_rail.items()
    }


def channel_of(run: RunReader, rail: str) -> dict[str, Any] | None:
    """The channel of power that reads a rail of the truth; None where the run has none."""
    wanted = {"ina3221": f".{rail[-1]}.power", "ina226": "ina226", "ina238": "ina238"}.get(rail.partition(".")[0], rail)
    wanted = "test_battery" if rail == "test_power" else wanted
    powers = [channel for channel in run.channels if channel["quantity"] == "power" and wanted in channel["id"]]
    return powers[0] if powers else None


def run_of(scene: Path) -> RunReader:
    """The run of a scene."""
    return RunReader(next(path for path in scene.iterdir() if (path / "run.json").exists()))


def covered_energy(growth: Growth, truth: Registers, begin_ns: float, end_ns: float) -> tuple[float, float, float]:
    """Return the energy that the readings tell, that of the registers, in joules, and the time covered, s.

    Both over the whole time from begin to end: what a gap hides counts as an error.
    """
    seen, covered = (
        float(np.diff(growth.at(sums, np.array([begin_ns, end_ns])))[0])
        for sums in (growth.known_growth, growth.covered_ns)
    )
    return seen, truth.joules(begin_ns, end_ns), covered / 1e9
