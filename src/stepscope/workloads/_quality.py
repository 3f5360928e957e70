"""The quality gate: does a workload still learn as it did when its band was recorded?"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.workloads._bands import Band

if TYPE_CHECKING:
    from stepscope.workloads.contract import Workload


@dataclass(frozen=True)
class Checked:
    """The loss of the first step and the mean of the last fifth, against the band; `holds` is the verdict."""

    band: Band
    first: float
    end: float
    holds: bool


def losses(workload: Workload, batch: int, steps: int, data: str, seed: int = 0) -> list[float]:
    """The loss of each of so many seeded steps with the default optimizer."""
    training = workload.prepare(batch=batch, seed=seed, data=data)
    return [float(training.step(batch)) for batch in itertools.islice(training.batches(), steps)]


def check(workload: Workload) -> Checked | None:
    """Train as the band was recorded and compare; null without a band. DataUnavailable where its data is not here."""
    band = workload.band
    if band is None:
        return None
    found = losses(workload, band.batch, band.steps, band.data)
    return Checked(band, found[0], band.end(found), band.holds(found))
