"""Tell whether a process is still there; standard library alone: the training and the sampling process ask too."""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")


def is_running(pid: object, started: int | None = None) -> bool:
    """Return whether a process is there and has not ended; `started` tells it from a later one of its number."""
    if not isinstance(pid, int):
        return False
    now = start_time(pid)
    if now is not None or (_PROC / str(pid)).exists():
        return now is not None and started in (None, now)
    try:
        os.kill(pid, 0)  # no /proc, or one that hides other users' processes
    except (OSError, OverflowError) as error:
        return isinstance(error, PermissionError)
    return True


def start_time(pid: int, proc: Path = _PROC) -> int | None:
    """Return when a process began, in ticks since the boot; None where there is none, or it has ended."""
    try:
        fields = (proc / f"{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
