"""What does a step cost that is not profiled? `python -m benchmarks.unprofiled_step [--rounds 5] [--steps 600]`.

A LeNet-like training on one thread runs bare and under `stepscope run -q`, in processes that take turns, in another
order each round. The heap of glibc is fixed (MALLOC_TOP_PAD_, MALLOC_TRIM_THRESHOLD_): else a bare step takes 3.3
to 5.2 ms by the luck of where the top of the heap lies, and Stepscope's own objects, which pin it, make runs under it
*faster* than bare. The median of the later half of the steps counts, in which hardly any is profiled. A busy machine
gives nothing to go by: the ratios of single rounds, lowest and highest, say how far they agree.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

HEAP = {"MALLOC_TOP_PAD_": "67108864", "MALLOC_TRIM_THRESHOLD_": "268435456"}
TRAINING = """
import statistics, sys, time, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))
optimizer, criterion = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), nn.CrossEntropyLoss()
x, y, took = torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,)), []
for _ in range(int(sys.argv[1])):
    began = time.perf_counter_ns()
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
    took.append(time.perf_counter_ns() - began)
print(statistics.median(took[len(took) // 2:]))
"""


def measured(rounds: int, steps: int) -> dict[str, list[float]]:
    """Median step of each process, ns, bare and under Stepscope."""
    found: dict[str, list[float]] = {"bare": [], "stepscope": []}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "training.py"
        script.write_text(TRAINING, encoding="utf-8")
        run = ["-m", "stepscope", "run", "-q", "--no-ceilings", "--out", folder, str(script), "--", str(steps)]
        commands = {"bare": [str(script), str(steps)], "stepscope": run}
        for number in range(rounds):
            for name in list(commands)[:: 1 if number % 2 else -1]:
                command = [sys.executable, *commands[name]]
                environment = {**os.environ, **HEAP, "OMP_NUM_THREADS": "1"}
                ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                found[name].append(float(ended.stdout))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="processes of each kind")
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    found = measured(options.rounds, options.steps)
    ratios = sorted(ours / bare for ours, bare in zip(found["stepscope"], found["bare"], strict=True))
    bare = median(found["bare"])
    added_us = (median(ratios) - 1) * bare / 1e3
    sys.stdout.write(
        f"unprofiled step: {median(ratios):.4f} x bare [{ratios[0]:.4f} to {ratios[-1]:.4f}], {added_us:.0f} us more "
        f"than {bare / 1e6:.3f} ms (bar: 1.01)\n"
    )


if __name__ == "__main__":
    main()
