"""Energy of each step, of the whole board: what a forecast and a change detector work on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.intervals import Floats
from stepscope.analysis.power_sources import PowerSource
from stepscope.analysis.rails import rail_tree
from stepscope.runfolder import RunReader

_WHOLE = 0.99  # of a step: with more of it in gaps its energy is not known


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
    edges = np.stack([steps["t0_ns"].to_numpy(), steps["t1_ns"].to_numpy()]).astype(np.float64)
    joules = sum(_joules(line.best, edges) for line in lines)
    estimated = "estimated by the power model, not measured" if any(line.estimated for line in lines) else None
    return StepEnergy(np.asarray(joules), tree.covers or lines[0].name, estimated)


def _joules(source: PowerSource, edges_ns: Floats) -> Floats:
    growth = source.growth
    joules, covered = (
        growth.at(running, edges_ns[1]) - growth.at(running, edges_ns[0])
        for running in (growth.grown, growth.covered_ns)
    )
    known: Floats = np.where(covered >= _WHOLE * (edges_ns[1] - edges_ns[0]), joules, np.nan)
    return known
