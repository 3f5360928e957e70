"""Record where losses lie after some seeded steps, for workloads/_loss_bands.py: python -m benchmarks.loss_bands.

Without names: every workload that trains on real data here and has no band. Batch, steps and seeds follow from what a
sample costs, so that each takes minutes at most. A band is the range of the seeds, widened on both sides by their
spread, or by a share of the loss where that is more; it never reaches back to the loss of the first step, if the
steps left that behind.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch

from stepscope import workloads
from stepscope.record.dry.flops import count_flops
from stepscope.workloads._loss_bands import Band, losses
from stepscope.workloads.contract import Workload

_LEARNT = 0.97  # of the first loss: what the mean of the last steps must be below to count as learnt


@dataclass(frozen=True)
class Recipe:
    """How much is trained for a band, and the least by which it is widened, as a share of the loss."""

    batch: int
    steps: int
    seeds: int
    widened: float


# The most FLOPs of a sample (forward and backward) for which each recipe is affordable.
RECIPES = (
    (8e8, Recipe(16, 40, 3, 0.08)),
    (2.4e9, Recipe(16, 20, 3, 0.08)),
    (8e9, Recipe(8, 12, 2, 0.2)),
    (2e10, Recipe(4, 8, 2, 0.2)),
    (float("inf"), Recipe(2, 5, 2, 0.25)),
)


def recipe(workload: Workload) -> Recipe:
    """What is affordable for it."""
    with torch.device("meta"):
        counted = count_flops(workload.build(), workload.loss, workload.example(2))
    cost = (counted.total_forward or 0) + (counted.total_backward or 0)
    return next(each for most, each in RECIPES if cost <= most)


def recorded(workload: Workload, how: Recipe) -> tuple[Band, float]:
    """(band, mean loss of the first step)."""
    data = workload.data.name
    runs = [losses(workload, how.batch, how.steps, data, seed) for seed in range(how.seeds)]
    first = sum(run[0] for run in runs) / len(runs)
    plain = Band(data, how.batch, how.steps, 0.0, 0.0)
    return widened(plain, [plain.mean_end_loss(run) for run in runs], first, how.widened), first


def widened(band: Band, ends: list[float], first: float, share: float) -> Band:
    """The band around where the seeds ended."""
    margin = max(max(ends) - min(ends), share * sum(ends) / len(ends))
    low, high = max(0.0, min(ends) - margin), max(ends) + margin
    if max(ends) < _LEARNT * first:
        high = min(high, _LEARNT * first)
    return Band(band.data, band.batch, band.steps, low, high)


def line(name: str, band: Band, first: float) -> str:
    """The entry of the table."""
    figures = f'"{band.data}", {band.batch}, {band.steps}, {band.low:.3g}, {band.high:.3g}'
    return f'    "{name}": Band({figures}),  # from {first:.3g}'


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("names", nargs="*")
    names = arguments.parse_args().names
    torch.set_num_threads(1)
    every = [workloads.find(name) for name in names or workloads.names()]
    for workload in every:
        if names or (workload.band is None and workload.data.kind != "synthetic"):
            print(line(workload.name, *recorded(workload, recipe(workload))), flush=True)


if __name__ == "__main__":
    main()
