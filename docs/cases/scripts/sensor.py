"""A SIMULATED board whose power sensor lies: it shows the mean of the last half second, and a step is a tenth of that.

Prints what the six most expensive operators take a step: as the nearest reading has it, as Stepscope fits it with its
95 % CI, and in truth, which only a simulation knows. Joules a step.
"""

import argparse
import json
import sys
import tempfile

import polars as pl
import torch
from benchmarks.accuracy_score import true_energy

import stepscope
from stepscope import simulate, workloads

parser = argparse.ArgumentParser()
parser.add_argument("--workload", default="resnet8-c32")
parser.add_argument("--steps", type=int, default=300)
options = parser.parse_args()
torch.set_num_threads(1)
training = workloads.find(options.workload).prepare(batch=8, seed=0)
batches = iter(training.batches())
with tempfile.TemporaryDirectory() as out:
    board = simulate.start("jetson-tx2", training.model, seed=0)
    with board, stepscope.profile(training.model, out=out, record="all", simulation=board) as scope:
        for _ in range(options.steps):
            training.step(next(batches))
            scope.step()
    run, rail = stepscope.Run(scope.path), "VDD_IN"
    truth = true_energy(run, board.truth(), rail).group_by("name").agg(pl.col("joules").sum())
    name = next(line.name for line in run.rails.lines if rail in (line.name, line.best.rail))
    fit, nearest = (run.energy(by="kind", method=method).filter(rail=name) for method in ("fit", "nearest"))
    top = fit.filter(fit["name"].str.starts_with("aten::")).sort("joules_per_step", descending=True).head(6)
    known = top.join(nearest.select("name", nearest="joules_per_step"), on="name").join(truth, on="name")
sys.stdout.write(json.dumps([
    {
        "operator": row["name"].removeprefix("aten::"),
        "fit": [row["joules_per_step"], row["low"], row["high"]],
        "nearest": row["nearest"],
        "truth": row["joules"],
    }
    for row in known.iter_rows(named=True)
]) + "\n")  # fmt: skip
