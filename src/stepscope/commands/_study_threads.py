"""`stepscope study threads`: the number of threads that is best for throughput, energy, or reaching a loss."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from stepscope.commands._trainings_asked import (
    Batch,
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
    WorkloadName,
)  # fmt: skip


def threads(
    workload: WorkloadName,
    values: Annotated[str | None, typer.Option("--threads", help="Threads: 1 to all cores, unless said.")] = None,
    batch: Batch = None,
    optimizer: Optimizer = None,
    precision: Precision = "fp32",
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
    """Train with several numbers of threads: which is best for throughput, energy a sample, and energy to a loss.

    Interrupt it as you like: the same command with the same --out goes on where it stopped.
    """
    from stepscope.commands._trainings_asked import rules, setting, sweet_spot
    from stepscope.studies.suite.grid import numbers

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = numbers("--threads", values) or tuple(range(1, usable + 1))
    base = setting(workload, batch, optimizer, precision)
    sweet_spot("threads", wanted, base, rules(repeats, steps, seconds, target, quick, simulate, seed), out, json, quiet)
