"""Processes of a fleet that outlive the command that starts them: one a folder, found again and ended by its lock.

process.lock    held by the process as long as it lives, with its number: the kernel lets go however it ends
state.json      what it has to say of itself
log.txt         what it and its libraries printed
"""

from __future__ import annotations

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
from stepscope.studies.suite.state import write_durably

_LOCK, _STATE, _LOG = "process.lock", "state.json", "log.txt"
_POLL_S = 0.05
_SHOWN_LINES = 5


class NotStarted(FleetError):
    """A process of a fleet ended, or said nothing, instead of getting ready."""


@contextlib.contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Be the process of this folder; UsageError where another one is."""
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


def say(folder: Path, state: Mapping[str, Any]) -> None:
    """Let whoever started this process know how it stands."""
    write_durably(folder / _STATE, dict(state))


def running(folder: Path) -> int | None:
    """The number of the process of this folder; null where none lives."""
    with contextlib.suppress(FileNotFoundError), (folder / _LOCK).open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            text = file.read().strip()
            return int(text) if text.isdecimal() else None
    return None


def state(folder: Path) -> dict[str, Any]:
    """What the process of this folder last said; empty where it has said nothing."""
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads((folder / _STATE).read_text(encoding="utf-8")))
    return {}


def start(module: str, orders: Mapping[str, Any], folder: Path, within_s: float) -> dict[str, Any]:
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
        said = state(folder) if running(folder) == child.pid else {}
        if said and "error" not in said:
            return said
        if child.poll() is not None:
            raise NotStarted(f"it ended with exit code {child.returncode}: {_last_words(folder)}", _where(folder))
        time.sleep(_POLL_S)
    child.kill()
    child.wait()
    error = state(folder).get("error")
    raise NotStarted(f"it was not ready within {within_s:g} s: {error or _last_words(folder)}", _where(folder))


def stop(folder: Path, within_s: float = 10.0) -> bool:
    """End the process of this folder; whether there was one."""
    number = running(folder)
    if number is None:
        return False
    for ending in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, ending)
        until = time.monotonic() + within_s
        while running(folder) == number and time.monotonic() < until:
            time.sleep(_POLL_S)
        if running(folder) is None:
            break
    return True


def _last_words(folder: Path) -> str:
    lines = (folder / _LOG).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return " / ".join(lines[-_SHOWN_LINES:]) or "it printed nothing"


def _where(folder: Path) -> str:
    return f"all that it printed is in {folder / _LOG}"
