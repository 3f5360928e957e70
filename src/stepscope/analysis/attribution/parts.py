"""Keys gathered into kinds, signatures, modules or places, each with an interval of 90 %."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse, special  # type: ignore[import-untyped]

from stepscope.analysis.attribution.attribute import Attribution
from stepscope.analysis.attribution.timeline import Flags, Ints
from stepscope.analysis.intervals import Floats

CONFIDENCE = 0.90
Z = float(special.ndtri((1 + CONFIDENCE) / 2))
_AS_DECIDED = 1.5  # standard deviations: the most that the coarser fit's disagreement adds
_ALWAYS = 0.005  # of a part's energy: what no term below sees


@dataclass(frozen=True)
class Parts:
    """Energies of groups over the run, J (G,): with intervals; `statistical` is the part of the sd that steps cure."""

    joules: Floats
    sd: Floats
    statistical: Floats
    seconds: Floats
    correlation: Floats

    @property
    def half_width(self) -> Floats:
        """Half of the 90 % interval, J (G,)."""
        half: Floats = Z * self.sd
        return half

    @property
    def relative(self) -> Floats:
        """Half of the interval as a share of the energy (G,); infinite for 0 J."""
        with np.errstate(invalid="ignore", divide="ignore"):
            share: Floats = np.where(self.joules > 0, self.half_width / self.joules, np.inf)
        return share

    def resolved(self, within: float = 0.10) -> Flags:
        """Groups whose interval is within so much of the energy."""
        return np.asarray(self.relative <= within)


def grouping(group: Ints, count: int) -> Any:
    """Which keys (P,) make up each of `count` groups, as a matrix (G, P); -1 leaves a key out."""
    chosen = np.flatnonzero(group >= 0)
    return sparse.csr_matrix((np.ones(len(chosen)), (group[chosen], chosen)), shape=(count, len(group)))


def parts(found: Attribution, gather: Any) -> Parts:
    """Energies of groups; gather: (G, P) sparse, the share of each key that belongs to each group."""
    joules, seconds = gather @ found.joules, gather @ found.timeline.seconds
    spread = np.asarray(gather @ (gather @ found.covariance).T)
    own = np.asarray(gather @ (gather @ found.statistical).T)
    variance = np.maximum(np.diag(spread), 0)
    # Where the readings decide a place by themselves, that it differs from its like is a finding and not an error.
    most = _AS_DECIDED * np.sqrt(variance)
    apart = np.clip(gather @ (found.coarser - found.joules), -most, most)
    blunt = gather @ (found.sharper - found.joules) / 2
    sd = np.sqrt(variance + apart**2 + blunt**2 + (_ALWAYS * joules) ** 2 + (found.floor * seconds) ** 2)
    scale = np.sqrt(np.maximum(variance, 1e-300))
    statistical = np.sqrt(np.minimum(np.maximum(np.diag(own), 0), variance))
    return Parts(joules, sd, statistical, seconds, spread / scale[:, None] / scale)
