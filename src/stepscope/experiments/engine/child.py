"""One point of an experiment in its own process: `python -m stepscope.experiments.engine.child ORDERS`, as JSON.

The orders name a task, "module:function", which takes them and returns what belongs to the result: data that JSON can
hold, with `status` and `reason` where it did not end well. The last act is to write that down, in one piece; what
cannot be written is seen from outside.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import DataUnavailable, MissingDependency, StepscopeError, UsageError
from stepscope.experiments.engine.limits import die_with
from stepscope.files import replace_json

if TYPE_CHECKING:
    from stepscope.record.settings import Settings

Orders = Mapping[str, Any]
_REFUSALS = ((MissingDependency, "not installed"), (DataUnavailable, "no data"), (UsageError, "refused"))


def main(orders: Orders) -> None:
    """Do the task, and write down how it ended: status, reason and result."""
    die_with(orders["parent"])
    result = dict(perform(orders))
    ended = {"status": result.pop("status", "ok"), "reason": result.pop("reason", None)}
    replace_json(Path(orders["ended"]), {**ended, "result": result}, durable=True)


def perform(orders: Orders) -> Mapping[str, Any]:
    """Return the result of the task; an error is a result with its status, and its traceback is printed."""
    import traceback

    try:
        if orders.get("threads") is not None:
            import torch

            torch.set_num_threads(orders["threads"])
        module, _, function = str(orders["task"]).partition(":")
        result: Mapping[str, Any] = getattr(importlib.import_module(module), function)(orders)
    except StepscopeError as error:
        status = next((name for kind, name in _REFUSALS if isinstance(error, kind)), "failed")
        return {"status": status, "reason": f"{error} ({error.hint})" if error.hint else str(error)}
    except Exception as error:  # what a workload raises is a result
        traceback.print_exc()
        from stepscope.record.facts import status_of

        status, reason = status_of(error)[:2]
        return {"status": status, "reason": reason}
    return result


@contextlib.contextmanager
def session_settings(orders: Orders) -> Iterator[Settings]:
    """Yield the settings of a session in the folder of the orders, with the sensors of their simulated board."""
    from stepscope.record.settings import Settings

    settings = Settings(out=orders["out"])
    board = orders.get("simulate")
    if board is None:
        yield settings
        return
    from stepscope import simulate

    with simulate.start(board) as simulation:
        metering = replace(settings.metering, simulated=board, characterise=False)
        yield replace(settings, root=str(simulation.root), metering=metering)


def ended_run(path: str | Path) -> dict[str, Any]:
    """Return the status and reason of a run folder, as a task returns them."""
    from stepscope.runfolder import RunReader

    run = RunReader(Path(path))
    return {"status": run.status, "reason": run.meta.get("reason")}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
