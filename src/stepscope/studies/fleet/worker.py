"""The worker of a device: one thread, one run at a time, and as little else as can be while a run is measured."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepscope.errors import StepscopeError
from stepscope.studies.fleet import certificates
from stepscope.studies.fleet.address import refuse_no_answer
from stepscope.studies.fleet.on_device import FOLDER
from stepscope.studies.fleet.processes import holding, say

_AGAIN_S = 0.5  # grows to
_AGAIN_MOST_S = 10.0
# Dask's own watching of a worker, which would run beside what is measured.
_QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.interval": "30s",
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.admin.tick.interval": "2s",
    "distributed.admin.tick.limit": "60s",
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.target": False,
    "distributed.worker.http.routes": [],
}


def resource(board: str) -> str:
    """The resource of which a device of this board has one: each task takes it, so none is beside another."""
    return f"board:{board}"


def work(orders: Mapping[str, Any]) -> None:
    """Be a worker until told to end (SIGTERM). A scheduler that goes away is waited for; a run goes on meanwhile.

    orders: folder, scheduler (url), name, board, tls (null, or a folder).
    """
    import dask

    folder = Path(orders["folder"])
    os.environ[FOLDER] = str(folder)
    with holding(folder), dask.config.set(_QUIET):
        asyncio.run(_until_told(folder, orders))
    os._exit(0)  # a run in its thread would be waited for; its child ends with this process


async def _until_told(folder: Path, orders: Mapping[str, Any]) -> None:
    told = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, told.set)
    wait_s = _AGAIN_S
    while not told.is_set():
        try:
            await _work(folder, orders, told)
            wait_s = _AGAIN_S
        except (StepscopeError, OSError, ValueError, RuntimeError) as error:
            say(folder, {"error": str(error)})
            wait_s = min(2 * wait_s, _AGAIN_MOST_S)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(told.wait(), wait_s)


async def _work(folder: Path, orders: Mapping[str, Any], told: asyncio.Event) -> None:
    """One connection, from its beginning to its end; ValueError where another device has this name."""
    from distributed import Worker

    tls = orders.get("tls")
    options: dict[str, Any] = {} if tls is None else {"security": certificates.security(Path(tls))}
    arguments = options["security"].get_connection_args("worker") if options else {}
    await refuse_no_answer(orders["scheduler"], arguments)
    async with Worker(
        orders["scheduler"], nthreads=1, name=orders["name"], resources={resource(orders["board"]): 1},
        memory_limit=0, local_directory=str(folder / "dask"), dashboard=False, dashboard_address="127.0.0.1:0",
        validate=False, **options,
    ) as worker:  # fmt: skip
        say(folder, {"address": worker.address, **{key: orders[key] for key in ("scheduler", "name", "board")}})
        ends = {asyncio.ensure_future(each) for each in (worker.finished(), told.wait())}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for each in ends:
            each.cancel()
        await worker.close(timeout=1, executor_wait=False)
