"""`stepscope study batch`: the batch size that is best for throughput, energy, or reaching a loss."""

from __future__ import annotations

from typing import Annotated

import typer

from stepscope.commands._trainings_asked import (
    Device,
    Json,
    Optimizer,
    Out,
    Precision,
    Quick,
    Quiet,
    Repeats,
    Seconds,
    Seed,
    Simulate,
    Steps,
    Target,
    Threads,
    WorkloadName,
)  # fmt: skip

_BATCHES = "1,2,4,...,64"


def batch(
    workload: WorkloadName,
    values: Annotated[str, typer.Option("--batch", help="Batch sizes: 1,2,4,...,64, unless said.")] = _BATCHES,
    optimizer: Optimizer = None,
    precision: Precision = "fp32",
    threads: Threads = None,
    device: Device = "cpu",
    repeats: Repeats = None,
    steps: Steps = None,
    seconds: Seconds = None,
    target: Target = None,
    simulate: Simulate = None,
    quick: Quick = False,
    seed: Seed = 0,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train at several batch sizes: which is best for throughput, energy a sample, and time and energy to a loss.

    Interrupt it as you like: the same command with the same --out goes on where it stopped.
    """
    from stepscope.commands._trainings_asked import rules, setting, sweet_spot
    from stepscope.studies.suite.grid import numbers

    base = setting(workload, None, optimizer, precision, threads, device)
    ruled = rules(repeats, steps, seconds, target, quick, simulate, seed)
    sweet_spot("batch", numbers("--batch", values), base, ruled, out, json, quiet)
