"""The tasks of the study of the observations: a run, and memory on a dry run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from stepscope.experiments.engine.child import Orders, ended_run, session_settings

_MOST_STEPS = 100_000


def train_run(orders: Orders) -> dict[str, Any]:
    """Train a workload for so many steps, and so long; returns how the run ended."""
    from stepscope import workloads
    from stepscope.record.train import train_workload

    with session_settings(orders) as settings:
        path, _ = train_workload(
            workloads.find(orders["workload"]),
            _MOST_STEPS,
            settings,
            batch=orders["batch"],
            device=orders["device"],
            seed=orders["seed"],
            evaluate=False,
            stop=_stop_condition(orders["steps"], orders["seconds"]),
        )
    return ended_run(path)


def _stop_condition(steps: int, seconds: float) -> Callable[[], bool]:
    """Return what is called after each step: whether so many were made, and they took so long."""
    ends: list[float] = []

    def enough() -> bool:
        ends.append(time.monotonic())
        return len(ends) >= steps and ends[-1] - ends[0] >= seconds

    return enough


def count_memory(orders: Orders) -> dict[str, Any]:
    """Return the bytes of each part of memory by batch, as `rows`."""
    from stepscope import workloads
    from stepscope.experiments.observations._evidence import memory_by_batch
    from stepscope.footprint.jobs import workload_job
    from stepscope.record.dry.dry_run import DryRunStopped

    try:
        return {"rows": list(memory_by_batch(workload_job(workloads.find(orders["workload"])), orders["batches"]))}
    except DryRunStopped as stopped:
        return {"status": "refused", "reason": f"fake tensors stopped at {stopped}"}
