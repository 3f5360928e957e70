"""The scheduler of a fleet in a process of its own: Dask's, told to leave each task where it was sent."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepscope.studies.fleet import certificates
from stepscope.studies.fleet.processes import holding, say

_PLAIN = {
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.scheduler.http.routes": [],
    "distributed.comm.compression": False,
}


def schedule(orders: Mapping[str, Any]) -> None:
    """Be the scheduler until told to end (SIGTERM). orders: folder, host, port, tls (or null), forget_after_s."""
    import dask

    folder = Path(orders["folder"])
    silence = {"distributed.scheduler.worker-ttl": f"{orders['forget_after_s']} s"}
    with holding(folder), dask.config.set({**_PLAIN, **silence}):
        asyncio.run(_until_told(folder, orders))


async def _until_told(folder: Path, orders: Mapping[str, Any]) -> None:
    from distributed import Scheduler

    told = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, told.set)
    tls = orders.get("tls")
    options: dict[str, Any] = {} if tls is None else {"security": certificates.security(Path(tls))}
    async with Scheduler(
        host=orders["host"], port=orders["port"], protocol="tcp" if tls is None else "tls",
        dashboard=False, dashboard_address="127.0.0.1:0", **options,
    ) as scheduler:  # fmt: skip
        say(folder, {"address": scheduler.address})
        await told.wait()
