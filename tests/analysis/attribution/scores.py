"""How far an attribution is from the truth of a simulated run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse  # type: ignore[import-untyped]
from tests.analysis.attribution.simulated import Execution

from stepscope.analysis.energy.attribution import Attribution
from stepscope.analysis.energy.rail_fits import GroupEnergies, group_energies, part_verdicts
from stepscope.arrays import Flags, Floats, Ints

_COUNTED = 0.003  # of the energy: parts below it do not enter the coverage


@dataclass(frozen=True)
class Score:
    """error: energy-weighted; inside, counted: intervals that hold, of so many; resolved, right: shares of the energy
    that is called resolved, and that is and truly lies within 10 %."""

    error: float
    inside: int
    counted: int
    resolved: float
    right: float


def kinds(run: Execution) -> Ints:
    """Kind of each key."""
    return run.timeline.keys.kind


def modules(run: Execution) -> Ints:
    """Module and phase of each key, -1 outside of modules."""
    own = np.where(run.program.module < 0, -1, run.program.module * 2 + (run.program.phase > 0))
    return np.append(own, -1)


def grouping(group: Ints, count: int) -> Any:
    """Keys (P,) of each of `count` groups, as a matrix (G, P); a key at -1 is in none."""
    chosen = np.flatnonzero(group >= 0)
    return sparse.csr_matrix((np.ones(len(chosen)), (group[chosen], chosen)), shape=(count, len(group)))


def truth(run: Execution, group: Ints) -> Floats:
    """True energy of each group, J."""
    return np.asarray(np.bincount(group[group >= 0], run.truth[group >= 0]), dtype=np.float64)


def score(run: Execution, found: Attribution, group: Ints) -> Score:
    """Compare the parts with the truth; `group` as `kinds` or `modules`."""
    true = truth(run, group)
    whole = group_energies(found, grouping(group, len(true)))
    judged = part_verdicts(found, whole, [str(number) for number in range(len(true))])
    return scored(true, whole, np.array([verdict == "resolved" for verdict in judged.verdict]))


def scored(true: Floats, whole: GroupEnergies, resolved: Flags) -> Score:
    """Compare energies with the truth."""
    off = np.abs(whole.joules - true)
    share = true / true.sum()
    counted = share > _COUNTED
    right = resolved & (off <= 0.1 * true)
    return Score(
        float(off.sum() / true.sum()),
        int((off <= whole.half_width)[counted].sum()),
        int(counted.sum()),
        float(share[resolved].sum()),
        float(share[right].sum()),
    )


def error_of(true: Floats, joules: Floats) -> float:
    """Energy-weighted error."""
    return float(np.abs(joules - true).sum() / true.sum())
