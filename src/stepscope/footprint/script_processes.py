"""Processes that a script starts while it is followed: their memory is not known, and none outlives the answer."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from typing import Any

from stepscope.footprint.script_progress import Progress, temporary_attribute
from stepscope.footprint.time_limit import TimeLimitReached

_PATIENCE_S = 5.0  # for a process that was asked to end


class Processes:
    """Processes of one script; those that would run it anew, unfollowed, are not started: it is left there."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._started: list[Any] = []
        self._process = os.getpid()

    def note_running(self) -> None:
        """Say where some run beside the training."""
        if os.getpid() == self._process and any(map(_runs, self._started)):
            self._progress.note_missed("what processes take that it starts")

    @contextlib.contextmanager
    def intercept(self) -> Iterator[None]:
        """Know what it starts, and end it at last."""
        plain, program = BaseProcess.start, subprocess.Popen.__init__

        def start(process: Any) -> None:
            how = getattr(process, "_start_method", None) or multiprocessing.get_start_method()
            if how != "fork":
                raise TimeLimitReached(f"it starts a process by '{how}', which runs the script anew", None)
            plain(process)
            self._started.append(process)

        def run(opened: Any, *given: Any, **options: Any) -> None:
            program(opened, *given, **options)
            self._started.append(opened)

        try:
            with (
                temporary_attribute(BaseProcess, "start", start),
                temporary_attribute(subprocess.Popen, "__init__", run),
            ):
                yield
        finally:
            if os.getpid() == self._process:  # a fork of the script's may come here too
                self._end()

    def _end(self) -> None:
        for process in self._started:
            with contextlib.suppress(Exception):
                process.terminate()
        for process in self._started:
            with contextlib.suppress(Exception):
                if not _wait_for_end(process, _PATIENCE_S):
                    process.kill()
                    _wait_for_end(process, _PATIENCE_S)
                for pipe in filter(None, (getattr(process, name, None) for name in ("stdin", "stdout", "stderr"))):
                    pipe.close()


def _wait_for_end(started: Any, within_s: float) -> bool:
    """Wait for its end, so that nothing is left of it: a zombie, or a warning that it still runs."""
    if isinstance(started, BaseProcess):
        started.join(within_s)
    else:
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(within_s)
    return not _runs(started)


def _runs(started: Any) -> bool:
    if isinstance(started, BaseProcess):
        with contextlib.suppress(ValueError):  # it is closed
            return started.is_alive()
        return False
    return started.poll() is None
