"""One measurement of `stepscope study observations` in its own process: orders in JSON as the only argument.

What is found goes to a file in one piece; a run leaves its run folder beside it.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import DataUnavailable, MissingDependency, StepscopeError, UsageError
from stepscope.experiments.engine.limits import die_with
from stepscope.files import replace_json

if TYPE_CHECKING:
    from stepscope.record.settings import Settings

_MOST_STEPS = 100_000
_REFUSALS = ((MissingDependency, "not installed"), (DataUnavailable, "no data"), (UsageError, "refused"))


def main(orders: dict[str, Any]) -> None:
    """Do as ordered, and say how it ended."""
    die_with(orders["parent"])
    status, reason = _run_orders(orders)
    replace_json(Path(orders["said"]), {"status": status, "reason": reason}, durable=True)


def _run_orders(orders: dict[str, Any]) -> tuple[str, str | None]:
    import traceback

    import torch

    if orders["threads"] is not None:
        torch.set_num_threads(orders["threads"])
    try:
        return _WORK[orders["what"]](orders)
    except StepscopeError as error:
        status = next((name for kind, name in _REFUSALS if isinstance(error, kind)), "failed")
        return status, f"{error} ({error.hint})" if error.hint else str(error)
    except Exception as error:
        traceback.print_exc()
        from stepscope.record.session import status_of

        return status_of(error)[0], status_of(error)[1]


def _run(orders: dict[str, Any]) -> tuple[str, str | None]:
    from stepscope import workloads
    from stepscope.record.settings import Settings
    from stepscope.record.train import train_workload
    from stepscope.runfolder import RunReader

    with _on_board(orders["simulate"], Settings(out=orders["out"])) as settings:
        path, _ = train_workload(
            workloads.find(orders["workload"]),
            _MOST_STEPS,
            settings,
            batch=orders["batch"],
            device=orders["device"],
            seed=orders["seed"],
            evaluate=False,
            stop=_enough(orders["steps"], orders["seconds"]),
        )
    run = RunReader(path)
    return run.status, run.meta.get("reason")


@contextlib.contextmanager
def _on_board(board: str | None, settings: Settings) -> Iterator[Settings]:
    """The settings with the sensors of a simulated board, where one is asked for."""
    if board is None:
        yield settings
        return
    from stepscope import simulate

    with simulate.start(board) as simulation:
        metering = replace(settings.metering, simulated=board, characterise=False)
        yield replace(settings, root=str(simulation.root), metering=metering)


def _enough(steps: int, seconds: float) -> Callable[[], bool]:
    """Asked after each step: so many were made, and they took so long."""
    ends: list[float] = []

    def enough() -> bool:
        ends.append(time.monotonic())
        return len(ends) >= steps and ends[-1] - ends[0] >= seconds

    return enough


def _memory(orders: dict[str, Any]) -> tuple[str, str | None]:
    from stepscope import workloads
    from stepscope.experiments.observations._evidence import memory_by_batch
    from stepscope.footprint.jobs import workload_job
    from stepscope.record.dry.dry_run import DryRunStopped

    try:
        rows = list(memory_by_batch(workload_job(workloads.find(orders["workload"])), orders["batches"]))
    except DryRunStopped as stopped:
        return "refused", f"fake tensors stopped at {stopped}"
    _write_rows(orders, rows)
    return "ok", None


def _days(orders: dict[str, Any]) -> tuple[str, str | None]:
    from stepscope import workloads
    from stepscope.experiments.observations._measurements import daily_rows
    from stepscope.experiments.observations.request import DailyScenario

    asked = orders["daily"]
    scenario = DailyScenario(**{**asked, "batches": tuple(asked["batches"]), "seeds": tuple(asked["seeds"])})
    _write_rows(orders, list(daily_rows(workloads.find(scenario.workload), scenario)))
    return "ok", None


def _write_rows(orders: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    replace_json(Path(orders["out"]) / "found.json", {"rows": rows}, durable=True)


_WORK = {"run": _run, "memory": _memory, "days": _days}

if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
