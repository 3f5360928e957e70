"""Tell whether a process is still there; standard library alone: the training and the sampling process ask too."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
_CLOCK_STEP_S = 3600  # a board without a battery sets its clock once it is on a network


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


def process_identity(pid: int) -> dict[str, Any]:
    """Return what tells a process from every other: its number, its start, the boot, and where the number counts."""
    return {"pid": pid, "pid_started": start_time(pid), "boot_id": boot_id(), "pid_namespace": _pid_namespace()}


def is_process_of_run_alive(header: Mapping[str, Any], run: Path | None = None) -> bool:
    """Return whether the process of a run.json is there: a number alone would be another process's one day.

    Of a process in another container, or on a machine that shares the folder, `run` tells: its files grow. Of a run
    that an earlier version wrote, the clocks tell whether this boot is that of the run.
    """
    boot, pid, namespace = header.get("boot_id"), header.get("pid"), header.get("pid_namespace")
    same_boot = not isinstance(boot, str) or boot_id() in (None, boot)
    if not same_boot or (isinstance(namespace, int) and _pid_namespace() not in (None, namespace)):
        return run is not None and _grows(run)
    clock = header.get("clock")
    begun_ns = clock.get("unix_ns") if isinstance(clock, Mapping) else None
    if boot is None and isinstance(begun_ns, int) and begun_ns / 1e9 < _boot_time_s() - _CLOCK_STEP_S:
        return False
    started = header.get("pid_started")
    return is_running(pid, started if isinstance(started, int) else None)


_GROWS_S = 30.0  # the sampling process writes four times a second


def _grows(run: Path) -> bool:
    """Return whether something was written to a run folder just now."""
    try:
        places = [entry for folder in (run, run / "samples") if folder.is_dir() for entry in os.scandir(folder)]
        return any(abs(time.time() - entry.stat().st_mtime) < _GROWS_S for entry in places)
    except OSError:
        return False


def _pid_namespace() -> int | None:
    """Return what tells whether two processes number processes alike: a container has numbers of its own."""
    try:
        return (_PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return None


def boot_id() -> str | None:
    """Return what tells whether two processes share a clock: the same on one machine, from one start to the next."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None


def _boot_time_s() -> float:
    """Return when this machine was started, unix seconds; the beginning of time where nothing says."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0.0
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def start_time(pid: int, proc: Path = _PROC) -> int | None:
    """Return when a process began, in ticks since the boot; None where there is none, or it has ended."""
    try:
        fields = (proc / f"{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
