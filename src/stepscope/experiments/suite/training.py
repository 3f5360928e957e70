"""One run of a sweep, as a task of the engine: a workload trained by the rules of the sweep."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from stepscope.experiments.engine.child import Orders, ended_run
from stepscope.experiments.engine.limits import limit_accelerator, limit_memory
from stepscope.experiments.suite.rules import MOST, Rules, StopCondition, steady_start


def train_point(orders: Orders) -> dict[str, Any]:
    """Train as ordered; returns how the run ended."""
    rules = Rules(**orders["rules"])
    if rules.memory_bytes is not None:
        _start_libraries()
        limit_memory(rules.memory_bytes)
        if orders["device"] != "cpu":
            limit_accelerator(rules.memory_bytes)
    try:
        path = _train(orders, rules)
    except RuntimeError as error:
        # What oneDNN says when an allocation of its own was refused: under a limit on memory that is the limit.
        if rules.memory_bytes is None or "could not create a primitive" not in str(error):
            raise
        traceback.print_exc()
        return {"status": "oom", "reason": str(error)}
    _mark_steady_start(path)
    return ended_run(path)


def _start_libraries() -> None:
    """Polars and torch start threads and take memory when first used; refused that, Polars stands still.

    What they have taken counts in the limit all the same, so this changes where memory runs out, not when.
    """
    import io

    import polars as pl
    import torch

    pl.DataFrame({"a": [1, 2]}).group_by("a").len().write_parquet(io.BytesIO())
    torch.ones(8, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]


def _train(orders: Orders, rules: Rules) -> Path:
    from stepscope import workloads
    from stepscope.record.settings import Settings
    from stepscope.record.train import train_workload

    path, _ = train_workload(
        workloads.find(orders["workload"]),
        rules.steps or MOST,
        Settings(out=orders["out"]),
        batch=orders["batch"],
        optimizer=orders["optimizer"],
        device=orders["device"],
        precision=orders["precision"],
        seed=rules.seed + orders["repeat"],
        evaluate=False,
        stop=StopCondition(rules),
    )
    return path


def _mark_steady_start(path: Path) -> None:
    """Write into run.json where the steady state began."""
    from stepscope.arrays import Floats
    from stepscope.runfolder import RunReader, RunWriter

    run = RunReader(path)
    steps = run.steps
    lengths: Floats = (steps["t1_ns"] - steps["t0_ns"]).to_numpy().astype("float64")
    if len(lengths) > run.warmup_steps:
        RunWriter(path, run.meta).update(warmup_steps=steady_start(lengths, run.warmup_steps))
