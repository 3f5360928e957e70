"""Do intervals of layers hold the truth? `python -m benchmarks.planted_delays [--seeds 16]`.

Layers that compute for a known CPU time, 0.1 to 10 ms, stand among others in networks of four kinds, drawn from the
seed. Each stamps its own calls; the truth is their median over the unprofiled steps. On a shared machine give it a
real-time priority (`chrt -r 1`): what other work takes is in the clock of the stamps and of Stepscope alike, but not in
the same steps.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.profiled import run as profiled
from stepscope.analysis.run import Run
from stepscope.analysis.time.steps import timed_steps

_STEPS = 250


def train(seed: int) -> None:
    """Train the network of a seed and print what each planted layer took in each step, ns."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    draw = random.Random(seed)
    took: dict[int, list[int]] = {}

    class Busy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ns = int(10 ** draw.uniform(5, 7))
            took[id(self)] = []

        def forward(self, x: Any) -> Any:
            begin, spent = time.perf_counter_ns(), time.thread_time_ns()
            while time.thread_time_ns() - spent < self.ns:
                pass
            took[id(self)].append(time.perf_counter_ns() - begin)
            return x

    class Mean(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.mean(1)

    a, b, c, d = (Busy() for _ in range(4))
    if seed % 4 == 0:
        shape: tuple[int, ...] = (32, 64)
        parts = [nn.Linear(64, 256), a, nn.ReLU(), nn.Linear(256, 256), b, nn.ReLU(), c, nn.Linear(256, 64), d]
        parts.append(nn.Linear(64, 10))
    elif seed % 4 == 1:
        shape = (16, 3, 32, 32)
        parts = [nn.Conv2d(3, 16, 3, padding=1), a, nn.BatchNorm2d(16), nn.ReLU(), b, nn.Conv2d(16, 16, 3, padding=1)]
        parts += [c, nn.AdaptiveAvgPool2d(1), nn.Flatten(), d, nn.Linear(16, 10)]
    elif seed % 4 == 2:
        shape = (8, 32)
        parts = []
        for planted in (a, b, c, d):
            parts += [part for _ in range(6) for part in (nn.Linear(32, 32), nn.ReLU())]
            parts.append(planted)
        parts.append(nn.Linear(32, 10))
    else:
        shape = (8, 16, 64)
        parts = [a, nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), b]
        parts += [nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), c, Mean(), d, nn.Linear(64, 10)]
    net = nn.Sequential(*parts)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(shape), torch.randint(0, 10, (shape[0],))
    for _ in range(_STEPS):
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    print(json.dumps({name: took[id(part)] for name, part in net.named_modules() if id(part) in took}))


def judge(run: Run, took: dict[str, list[int]]) -> list[tuple[float, float, bool]]:
    """Return error and half width of the CI, relative, of each planted layer that has one, and whether it holds."""
    steps, found = timed_steps(run)[0]["step"].to_list(), []
    for layer, times in took.items():
        truth = float(np.median(np.array(times)[steps]))
        row = run.modules().row(by_predicate=pl.col("module") == layer, named=True)
        held = row["low_ns"] is not None and row["low_ns"] <= truth <= row["high_ns"]
        if row["low_ns"] is None:
            print(f"  layer {layer}: no interval")
            continue
        found.append((row["total_ns"] / truth - 1, (row["high_ns"] - row["low_ns"]) / 2 / truth, held))
        said = f"{truth / 1e6:.3f} ms, {100 * found[-1][0]:+.2f} % +-{100 * found[-1][1]:.2f}"
        print(f"  layer {layer}: {said}{'' if held else ' OUTSIDE'}")
    return found


def main() -> None:
    """Run the networks and print how many layers lie inside their intervals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--train", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train is not None:
        train(given.train)
        return
    found: list[tuple[float, float, bool]] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, given.seeds + 1):
            print(f"network {seed}", flush=True)
            arguments = ["--train", str(seed)]
            path, printed = profiled(Path(__file__), arguments, Path(folder) / str(seed), STEPSCOPE_CEILINGS="off")
            found += judge(Run(path), json.loads(printed.splitlines()[-1]))
    errors, widths = (np.abs([row[place] for row in found]) * 100 for place in (0, 1))
    print(
        f"{sum(row[2] for row in found)} of {len(found)} inside; error {np.median(errors):.2f} % (median), "
        f"{errors.max():.2f} % at most; half width {np.median(widths):.2f} % (median)"
    )


if __name__ == "__main__":
    main()
