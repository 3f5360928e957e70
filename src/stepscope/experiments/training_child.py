"""The trainings of one job of `stepscope study partial` or `daily` in a process of their own: orders as JSON.

A seed is one training; what came of it is written where the orders say, as a whole, before the next one begins.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import DataUnavailable, MissingDependency, StepscopeError, UsageError
from stepscope.experiments.engine.limits import die_with
from stepscope.files import replace_json

if TYPE_CHECKING:
    from stepscope.experiments.engine.training import Place

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
        with _sensors(orders) as place:
            for seed in orders["seeds"]:
                replace_json(
                    Path(orders["cells"][str(seed)]), _TRAININGS[orders["what"]](orders, seed, place), durable=True
                )
        return "ok", None
    except StepscopeError as error:
        status = next((name for kind, name in _REFUSALS if isinstance(error, kind)), "failed")
        return status, f"{error} ({error.hint})" if error.hint else str(error)
    except Exception as error:
        traceback.print_exc()
        from stepscope.record.session import status_of

        return status_of(error)[0], status_of(error)[1]


@contextlib.contextmanager
def _sensors(orders: dict[str, Any]) -> Iterator[Place]:
    """Return where everything goes, and whose sensors are read: a simulated board's where one is given."""
    from stepscope.experiments.engine.training import Place

    runs, weights = Path(orders["out"]), Path(orders["study"]) / "pretrained"
    if orders["simulate"] is None:
        yield Place(runs, weights)
        return
    from stepscope import simulate

    with simulate.start(orders["simulate"]) as simulation:
        yield Place(runs, weights, str(simulation.root), orders["simulate"])


def _partial(orders: dict[str, Any], seed: int, place: Place) -> dict[str, Any]:
    from stepscope import workloads
    from stepscope.experiments.partial.training import Lesson, train_lesson

    lesson = Lesson(**{**orders["lesson"], "classes": tuple(orders["lesson"]["classes"])})
    return train_lesson(workloads.find(orders["workload"]), lesson, seed, place)


def _daily(orders: dict[str, Any], seed: int, place: Place) -> dict[str, Any]:
    from stepscope import workloads
    from stepscope.experiments.daily.study import Routine
    from stepscope.experiments.daily.training import train_life

    return train_life(workloads.find(orders["workload"]), Routine(**orders["routine"]), seed, place)


_TRAININGS = {"partial": _partial, "daily": _daily}

if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
