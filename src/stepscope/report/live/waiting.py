"""Waiting for a run to appear."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stepscope.report.live.folder import status_of

_LOOK_EVERY_S = 0.5


def wait_for(
    found: Callable[[], Path | None], given_up: Callable[[], bool], sleep: Callable[[float], None] = time.sleep
) -> Path | None:
    """The first run that `found` gives, looked for twice a second; None once `given_up`."""
    while True:
        gone = given_up()  # before the last look, which sees all that was there then
        run = found()
        if run is not None or gone:
            return run
        sleep(_LOOK_EVERY_S)


def newest_running(runs: Path) -> Path | None:
    """The newest run below a folder that is still going on."""
    running = (
        run for run, header in _headers(runs) if header.get("status") == "running" and status_of(header) == "running"
    )
    return next(running, None)


def run_of(runs: Path, pid: int, since_ns: int) -> Path | None:
    """The newest run below a folder that this process has begun since then, monotonic ns."""
    own = ((run, header.get("clock")) for run, header in _headers(runs) if header.get("pid") == pid)
    begun = ((run, clock.get("monotonic_ns")) for run, clock in own if isinstance(clock, dict))
    return next((run for run, t_ns in begun if isinstance(t_ns, int) and t_ns >= since_ns), None)


def _headers(runs: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every run with its run.json, the newest first: a name begins with its UTC stamp."""
    for path in sorted(runs.glob("*/run.json"), reverse=True):
        try:
            header = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # being replaced, or foreign: it is looked at again
        if isinstance(header, dict):
            yield path.parent, header
