"""The child process of a point: it runs one task and writes the outcome; its memory limit, and its end with its parent.

Nothing heavy is imported here.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import DataUnavailable, MissingDependency, StepscopeError, UsageError
from stepscope.files import replace_json
from stepscope.privacy import clean_and_redact

if TYPE_CHECKING:
    from stepscope.record.settings import Settings

_PR_SET_PDEATHSIG = 1  # prctl(2)
LEAST_BYTES = 300_000_000  # Python and torch alone take about this much
MEMORY_LIMIT_METHOD = "RLIMIT_DATA: private writable memory of the process, whether touched or not (setrlimit(2))"


def limit_memory(size: int) -> None:
    """No more private writable memory than this for the calling process; what exceeds it fails as out of memory.

    RLIMIT_AS would count what is only mapped: torch's libraries and reserved address space, many times what is used.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def limit_accelerator(size: int) -> None:
    """Limit the caching allocator of the CUDA device, if there is one."""
    import torch

    if torch.cuda.is_available():
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, size / total), 0)


def refuse_memory_limit(size: int) -> None:
    """Before a sweep begins: a limit that no training can keep, or that this system cannot set."""
    if size < LEAST_BYTES:
        raise UsageError(f"--memory {size / 1e6:.0f} MB is less than torch alone takes", "give 500MB or more")
    if not sys.platform.startswith("linux"):
        raise UsageError("--memory needs Linux: RLIMIT_DATA limits nothing here", "leave --memory out")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends: an orphaned run would disturb the next one."""
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):  # a C library without prctl: the sweep's lock is the fallback
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os.kill(os.getpid(), signal.SIGKILL)


# One point of an experiment in its own process: `python -m stepscope.experiments.engine.child ORDERS`, as JSON.
#
# The orders name a task, "module:function", which takes them and returns what belongs to the result: data that JSON
# can hold, with `status` and `reason` where it did not end well. The last act is to write that down, in one piece;
# what cannot be written is seen from outside.

Orders = Mapping[str, Any]
_REFUSALS = ((MissingDependency, "not installed"), (DataUnavailable, "no data"), (UsageError, "refused"))


def main(orders: Orders) -> None:
    """Run the task and write its outcome: status, reason and result."""
    die_with_parent(orders["parent"])
    result = dict(run_task(orders))
    ended = {"status": result.pop("status", "ok"), "reason": clean_and_redact(result.pop("reason", None))}
    replace_json(Path(orders["ended"]), {**ended, "result": result}, durable=True)


def run_task(orders: Orders) -> Mapping[str, Any]:
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
        from stepscope.record.run_facts import status_of

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


def run_status_and_reason(path: str | Path) -> dict[str, Any]:
    """Return the status and reason of a run folder, as a task returns them."""
    from stepscope.runfolder import RunReader

    run = RunReader(Path(path))
    return {"status": run.status, "reason": run.meta.get("reason")}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
