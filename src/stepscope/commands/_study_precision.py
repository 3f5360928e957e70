"""`stepscope study precision`: float32 or bfloat16, for throughput, energy, or reaching a loss."""

from __future__ import annotations

from typing import Annotated

import typer

from stepscope.commands._trainings_asked import (
    Batch,
    Device,
    Json,
    Optimizer,
    Out,
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


def precision(
    workload: WorkloadName,
    values: Annotated[str, typer.Option("--precisions", help="Kinds of arithmetic: fp32,bf16.")] = "fp32,bf16",
    batch: Batch = None,
    optimizer: Optimizer = None,
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
    """Train in several kinds of arithmetic: which is best for throughput, energy a sample, and energy to a loss.

    Interrupt it as you like: the same command with the same --out goes on where it stopped.
    """
    from stepscope.commands._trainings_asked import rules, setting, sweet_spot
    from stepscope.record.precision import PRECISIONS
    from stepscope.studies.suite.grid import words

    base = setting(workload, batch, optimizer, "fp32", threads, device)
    ruled = rules(repeats, steps, seconds, target, quick, simulate, seed)
    sweet_spot("precision", words("--precisions", values, PRECISIONS), base, ruled, out, json, quiet)
