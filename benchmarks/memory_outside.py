"""Predicted against measured live peak of models outside the suite: `python -m benchmarks.memory_outside`.

Each is trained in a clean process of its own under the profiler, which sees every allocation and free of torch's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.memory_truth import live_peak
from benchmarks.outside_models import JOBS
from stepscope.record.dry.dry_run import DryRunStopped, dry_run
from stepscope.record.dry.workspaces import Workspaces, this_platform


@dataclass(frozen=True)
class Row:
    """A model at a batch, B."""

    model: str
    batch: int
    said: int
    took: int

    @property
    def error(self) -> float:
        """Of the prediction."""
        return self.said / self.took - 1


def compare(model: str, batch: int) -> Row | str:
    """Prediction and measurement, or what went wrong."""
    rules = Workspaces(this_platform())
    try:
        said = dry_run(JOBS[model](), batch, rules).peak_bytes
    except DryRunStopped as stop:
        return f"not predicted: {stop}"
    command = [sys.executable, "-m", "benchmarks.memory_outside", "--child", json.dumps([model, batch])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["failed"])[-1]
    return Row(model, batch, said, int(done.stdout.split()[-1]))


def _measure(model: str, batch: int) -> None:
    torch.manual_seed(0)
    job = JOBS[model]()
    module, optimizers = job.build()
    inputs = job.batch(batch)
    print(live_peak(lambda: job.step(module, optimizers, inputs), module, inputs))


def table(rows: list[Row]) -> str:
    """Markdown, with the mean and the worst error."""
    errors = [abs(row.error) for row in rows]
    lines = ["| model | batch | said, MB | took, MB | error |", "| --- |" + " --- |" * 4]
    lines += [f"| {r.model} | {r.batch} | {r.said / 1e6:.1f} | {r.took / 1e6:.1f} | {r.error:+.2%} |" for r in rows]
    return "\n".join(
        [*lines, "", f"{len(rows)} cells: mean {statistics.mean(errors):.2%}, worst {max(errors):.2%}", ""]
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--child", help=argparse.SUPPRESS)
    arguments.add_argument("--only", default=",".join(JOBS), help="models, with commas")
    arguments.add_argument("--batches", default="4,16,64")
    arguments.add_argument("--write", type=Path)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    if options.child:
        _measure(*json.loads(options.child))
        return
    rows = []
    for model in options.only.split(","):
        for batch in map(int, options.batches.split(",")):
            found = compare(model, batch)
            print(found if isinstance(found, Row) else f"{model} {batch}: {found}", flush=True)
            rows += [found] if isinstance(found, Row) else []
    if rows:
        print(table(rows))
    if options.write and rows:
        options.write.write_text(f"# Models outside the suite\n\n{table(rows)}")


if __name__ == "__main__":
    main()
