"""The long-lived processes of a fleet: started, found again and ended by the lock of their folder.

process.lock    held by the process as long as it lives, with its number: the kernel lets go however it ends; a
                process whose lock is gone, or another's, ends
state.json      what it has to say of itself
log.txt         what it and its libraries printed
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stepscope.errors import FleetError, UsageError
from stepscope.files import read_json_object, replace_json
from stepscope.liveness import is_process_of_run_alive

AGENT = "stepscope.experiments.fleet.agent"  # the module that takes orders
_LOCK, _STATE, _LOG = "process.lock", "state.json", "log.txt"
_POLL_S = 0.05
_WATCH_S = 1.0
_LOG_LINES = 5


class NotStarted(FleetError):
    """A process of a fleet ended, or said nothing, instead of getting ready."""


@contextlib.contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Claim this folder for this process; UsageError where another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"a process runs in '{folder}' already", "stepscope fleet down ends it") from None
        (folder / _STATE).unlink(missing_ok=True)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


async def set_event_when_unneeded(folder: Path, lives_with: Mapping[str, Any] | None, end: asyncio.Event) -> None:
    """Set `end` once nobody has a use for the process of this folder any more.

    That is: the folder has been removed, or the process that it `lives_with` (`liveness.identity`) has ended.
    """
    lock = (folder / _LOCK).stat().st_ino
    while not end.is_set():
        await asyncio.sleep(_WATCH_S)
        try:
            mine = (folder / _LOCK).stat().st_ino == lock
        except OSError:
            mine = False
        if not mine or (lives_with is not None and not is_process_of_run_alive(lives_with)):
            end.set()


def publish_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Let whoever started this process know how it stands."""
    replace_json(folder / _STATE, dict(state), durable=True)


def running_pid(folder: Path) -> int | None:
    """The number of the process of this folder; null where none lives."""
    with contextlib.suppress(FileNotFoundError), (folder / _LOCK).open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            text = file.read().strip()
            return int(text) if text.isdecimal() else None
    return None


def read_state(folder: Path) -> dict[str, Any]:
    """Return the last state that the process of this folder wrote; empty where there is none."""
    return read_json_object(folder / _STATE)


def start_process(module: str, orders: Mapping[str, Any], folder: Path, within_s: float) -> dict[str, Any]:
    """Start `python -m module` with its orders on stdin, apart from this process; what it says when it is ready.

    It is ready when its state has no `error`; NotStarted with its error or last words where it does not get there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOG).open("wb") as log:
        environment = {**os.environ, **orders.get("environment", {})}
        child = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=environment,
        )  # fmt: skip
    threading.Thread(target=child.wait, daemon=True).start()  # reaped when it ends, if we are still there
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError), child.stdin as pipe:
        pipe.write(json.dumps(orders).encode())
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        state = read_state(folder) if running_pid(folder) == child.pid else {}
        if state and "error" not in state:
            return state
        if child.poll() is not None:
            raise NotStarted(
                f"it ended with exit code {child.returncode}: {_last_log_lines(folder)}", _log_hint(folder)
            )
        time.sleep(_POLL_S)
    child.kill()
    child.wait()
    error = read_state(folder).get("error")
    raise NotStarted(f"it was not ready within {within_s:g} s: {error or _last_log_lines(folder)}", _log_hint(folder))


def stop_process(folder: Path, within_s: float = 10.0) -> bool:
    """End the process of this folder; whether there was one."""
    number = running_pid(folder)
    if number is None:
        return False
    for ending in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, ending)
        until = time.monotonic() + within_s
        while running_pid(folder) == number and time.monotonic() < until:
            time.sleep(_POLL_S)
        if running_pid(folder) is None:
            break
    return True


def _last_log_lines(folder: Path) -> str:
    lines = (folder / _LOG).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return " / ".join(lines[-_LOG_LINES:]) or "it printed nothing"


def _log_hint(folder: Path) -> str:
    return f"all that it printed is in {folder / _LOG}"
