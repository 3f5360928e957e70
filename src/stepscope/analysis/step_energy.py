"""Energy of each step, of the whole board, for sums over many steps: a forecast, a check of one.

A single value may lie below what the sensor resolves (`Run.step_energy` leaves such out); sums of them do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.intervals import Floats
from stepscope.analysis.rails import rail_tree
from stepscope.runfolder import RunReader


@dataclass(frozen=True)
class StepEnergy:
    """J of each step (n,), NaN where a gap touches it; the scope that it is the energy of, and what to know of it."""

    values: Floats
    scope: str
    note: str | None = None


def step_energy(run: RunReader, steps: pl.DataFrame) -> StepEnergy | None:
    """The energy of these steps from the lines that make the board's total; None where nothing makes one."""
    tree = rail_tree(run)
    lines = tree.total or tuple(line for line in tree.lines if line.component == "total")
    if not lines:
        return None
    t0_ns, t1_ns = (steps[name].to_numpy().astype(np.float64) for name in ("t0_ns", "t1_ns"))
    joules = np.sum([line.best.growth.between(t0_ns, t1_ns) for line in lines], axis=0)
    estimated = "estimated by the power model, not measured" if any(line.estimated for line in lines) else None
    return StepEnergy(joules, tree.covers or lines[0].name, estimated)
