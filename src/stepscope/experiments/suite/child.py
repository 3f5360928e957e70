"""One run of a sweep in its own process: `python -m stepscope.experiments.suite.child ORDERS`, orders in JSON.

Its last act is to write down how the run ended, in one piece; what it cannot write, the sweep sees from outside.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from stepscope.errors import DataUnavailable, MissingDependency, StepscopeError, UsageError
from stepscope.experiments.engine.limits import die_with, limit_accelerator, limit_memory
from stepscope.experiments.suite.rules import MOST, Rules, StopCondition, steady_start
from stepscope.files import replace_json

_REFUSALS: tuple[tuple[type[StepscopeError], str], ...] = (
    (MissingDependency, "not installed"),
    (DataUnavailable, "no data"),
    (UsageError, "refused"),
)


def main(orders: dict[str, Any]) -> None:
    """Train as ordered, and say how it ended."""
    die_with(orders["parent"])
    rules = Rules(**orders["rules"])
    if rules.memory_bytes is not None:
        _start_libraries()
        limit_memory(rules.memory_bytes)
    status, reason = _train(orders, rules)
    replace_json(Path(orders["said"]), {"status": status, "reason": reason}, durable=True)


def _start_libraries() -> None:
    """Polars and torch start threads and take memory when first used; refused that, Polars stands still.

    What they have taken counts in the limit all the same, so this changes where memory runs out, not when.
    """
    import io

    import polars as pl
    import torch

    pl.DataFrame({"a": [1, 2]}).group_by("a").len().write_parquet(io.BytesIO())
    torch.ones(8, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]


def _train(orders: dict[str, Any], rules: Rules) -> tuple[str, str | None]:
    """(status, reason); what a workload raises is a result too, and its traceback is in the log."""
    import traceback

    try:
        return _train_workload(orders, rules)
    except StepscopeError as error:
        status = next((name for kind, name in _REFUSALS if isinstance(error, kind)), "failed")
        return status, f"{error} ({error.hint})" if error.hint else str(error)
    except Exception as error:
        traceback.print_exc()
        from stepscope.record.session import status_of

        status, reason = status_of(error)
        # What oneDNN says when an allocation of its own was refused: under a limit on memory that is the limit.
        refused = rules.memory_bytes is not None and "could not create a primitive" in str(error)
        return "oom" if refused else status, reason


def _train_workload(orders: dict[str, Any], rules: Rules) -> tuple[str, str | None]:
    import torch

    from stepscope import workloads
    from stepscope.record.settings import Settings
    from stepscope.record.train import train_workload

    if rules.memory_bytes is not None and orders["device"] != "cpu":
        limit_accelerator(rules.memory_bytes)
    if orders["threads"] is not None:
        torch.set_num_threads(orders["threads"])
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
    return _mark_steady_start(path)


def _mark_steady_start(path: Path) -> tuple[str, str | None]:
    """Status and reason of the run; its run.json is told where the steady state began."""
    from stepscope.arrays import Floats
    from stepscope.runfolder import RunReader, RunWriter

    run = RunReader(path)
    steps = run.steps
    lengths: Floats = (steps["t1_ns"] - steps["t0_ns"]).to_numpy().astype("float64")
    if len(lengths) > run.warmup_steps:
        RunWriter(path, run.meta).update(warmup_steps=steady_start(lengths, run.warmup_steps))
    return run.status, run.meta.get("reason")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
