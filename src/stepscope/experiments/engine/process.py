"""A measurement in a child process: its start, its end, and the outcome."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stepscope.clock import monotonic_ns
from stepscope.errors import RunError
from stepscope.runfolder import RunReader

STATUS_FILE = "ended.json"  # the child's last act: status, reason and result
LOG_FILE = "log.txt"  # what it printed
NO_FIT = {"oom": "ran out of memory", "killed": "was killed", "timeout": "did not end within the time limit"}
_TICK_S = 1.0
_STARVED = ("can't allocate memory", "Cannot allocate memory", "std::bad_alloc", "MemoryError", "memory allocation of")
_DISK_FULL = "No space left on device"
_FINISHED = ("ok", "oom", "failed")
Tick = Callable[[], None]  # called each second of a wait


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run; `run` is its run folder, null where none was begun; `result` is what its task returned.

    status: ok, oom, killed (by a SIGKILL that was not ours), crashed, timeout, failed (an exception), not installed,
    no data, refused.
    """

    status: str
    reason: str | None
    run: Path | None
    wall_s: float | None
    result: Mapping[str, Any] = field(default_factory=dict)


def run_child(
    command: Sequence[str],
    spec: Mapping[str, Any],
    folder: Path,
    time_limit_s: float,
    tick: Tick = lambda: None,
    writing: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
) -> Outcome:
    """Start the child with its orders as JSON, wait, and return its outcome. What an earlier try left is removed.

    writing: makes the context in which this process writes to the folder, for errors that say how to go on.
    """
    with writing():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        output = (folder / LOG_FILE).open("wb")
    orders = {**spec, "out": str(folder), "ended": str(folder / STATUS_FILE), "parent": os.getpid()}
    began_ns = monotonic_ns()
    with output as log:
        child = subprocess.Popen(
            [*command, json.dumps(orders)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the sweep, which ends the child itself
        )
        try:
            in_time = _wait(child, began_ns + round(time_limit_s * 1e9), tick)
        finally:
            _kill_child(child)
    wall_s = (monotonic_ns() - began_ns) / 1e9
    if not in_time:
        return Outcome(*_timeout_status(folder, time_limit_s), run_folder_in(folder), wall_s)
    ended = _reported_end(folder)
    if ended is None:
        return Outcome(*_status_from_exit(child.returncode, folder), run_folder_in(folder), wall_s)
    return replace(ended, wall_s=wall_s)


Work = Callable[[Tick], dict[str, Any]]  # waits for a child and calls the tick, which ends it by an exception


class UntimedWork:
    """Work in which nothing is timed, done side by side before its turn comes: so many child processes at once."""

    def __init__(self, places: int) -> None:
        self.places = places
        self._pool = ThreadPoolExecutor(places)
        self._stopped = threading.Event()
        self._begun: dict[str, Future[dict[str, Any]]] = {}

    def begin(self, name: str, work: Work) -> None:
        """Have this done as soon as a core is free; once, however often it is said."""
        if name not in self._begun:
            self._begun[name] = self._pool.submit(work, self._tick)

    def result(self, name: str, tick: Tick) -> dict[str, Any]:
        """Wait for what has begun, and return what it returned, or raise what it raised."""
        while not wait([self._begun[name]], timeout=_TICK_S).done:
            tick()
        return self._begun[name].result()

    def wait_for_all(self, tick: Tick) -> None:
        """Wait until nothing of what has begun is still running."""
        while wait(self._begun.values(), timeout=_TICK_S).not_done:
            tick()

    def close(self) -> None:
        """End the processes of what is not yet done, and wait for their end."""
        self._stopped.set()
        self._pool.shutdown(cancel_futures=True)

    def _tick(self) -> None:
        if self._stopped.is_set():
            raise InterruptedError("the study was interrupted")


def finished_outcome(folder: Path) -> Outcome | None:
    """A run that ended although the sweep was no longer there to write it down; None where there is none."""
    ended, run = _reported_end(folder), run_folder_in(folder)
    if ended is None and run is not None and RunReader(run).status in _FINISHED:
        meta = RunReader(run).meta
        return Outcome(str(meta["status"]), meta.get("reason"), run, None)
    return ended


def run_folder_in(folder: Path) -> Path | None:
    """The run folder that a child has made; None where it made none."""
    for header in sorted(folder.glob("*/run.json")):
        with contextlib.suppress(RunError):
            return RunReader(header.parent).path
    return None


def disk_was_full(folder: Path) -> bool:
    """Return whether the child met a full disk: training goes on without its record then, which is no result."""
    texts = [folder / LOG_FILE, *folder.glob("*/events.jsonl")]
    return any(_DISK_FULL in path.read_text(encoding="utf-8", errors="replace") for path in texts if path.exists())


def _wait(child: subprocess.Popen[bytes], until_ns: int, tick: Tick) -> bool:
    """Return whether it ended in time. The kernel wakes us: a parent that polls would disturb what is measured."""
    try:
        handle: int | None = os.pidfd_open(child.pid)
    except (AttributeError, OSError):  # before Linux 5.3
        handle = None
    try:
        while child.poll() is None:
            tick()
            left_s = min(_TICK_S, (until_ns - monotonic_ns()) / 1e9)
            if left_s <= 0:
                return False
            if handle is not None:
                select.select([handle], [], [], left_s)
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(left_s)
        return True
    finally:
        if handle is not None:
            os.close(handle)


def _kill_child(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _reported_end(folder: Path) -> Outcome | None:
    try:
        ended = json.loads((folder / STATUS_FILE).read_text(encoding="utf-8"))
        return Outcome(
            str(ended["status"]), ended["reason"], run_folder_in(folder), None, dict(ended.get("result") or {})
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _timeout_status(folder: Path, time_limit_s: float) -> tuple[str, str]:
    """A library that is refused memory may stand still instead of ending."""
    late = f"did not end within {time_limit_s:g} s"
    printed = (folder / LOG_FILE).read_text(encoding="utf-8", errors="replace")
    starved = memory_refusal_line(printed)
    return ("timeout", late) if starved is None else ("oom", f"{starved}, and then {late}")


def last_line(folder: Path) -> str:
    """Return the end of what a child has printed so far, which is the exception where one ended it."""
    printed = (folder / LOG_FILE).read_text(encoding="utf-8", errors="replace").strip()
    return printed.splitlines()[-1][-300:] if printed else "it printed nothing"


def memory_refusal_line(printed: str) -> str | None:
    """Return the line in which a process said that memory was refused; None where it said nothing of that."""
    return next((line for line in printed.splitlines() if any(word in line for word in _STARVED)), None)


def _status_from_exit(code: int, folder: Path) -> tuple[str, str]:
    """Return the status of a child that wrote no outcome, from its exit code and last output."""
    last = last_line(folder)
    starved = memory_refusal_line((folder / LOG_FILE).read_text(encoding="utf-8", errors="replace"))
    if starved is not None:
        return "oom", starved[-300:]
    if code == -signal.SIGKILL:
        return "killed", "SIGKILL from outside: the kernel does so when memory runs out (see `dmesg`)"
    if code < 0:
        return "crashed", f"{signal.Signals(-code).name}: {last}"
    return "crashed", f"exit code {code}: {last}"
