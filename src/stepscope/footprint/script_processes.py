"""Processes that a script starts while it is followed: their memory is not known, and none outlives the answer."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from typing import Any

from stepscope.footprint.patience import OutOfPatience
from stepscope.footprint.script_progress import Progress, instead


class Processes:
    """Processes of one script; those that would run it anew, unfollowed, are not started: it is left there."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._started: list[Any] = []
        self._process = os.getpid()

    def look(self) -> None:
        """Say where some run beside the training."""
        if os.getpid() == self._process and any(map(_runs, self._started)):
            self._progress.miss("what processes take that it starts")

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Know what it starts, and end it at last."""
        plain, program = BaseProcess.start, subprocess.Popen.__init__

        def start(process: Any) -> None:
            how = getattr(process, "_start_method", None) or multiprocessing.get_start_method()
            if how != "fork":
                raise OutOfPatience(f"it starts a process by '{how}', which runs the script anew", None)
            plain(process)
            self._started.append(process)

        def run(opened: Any, *given: Any, **options: Any) -> None:
            program(opened, *given, **options)
            self._started.append(opened)

        try:
            with instead(BaseProcess, "start", start), instead(subprocess.Popen, "__init__", run):
                yield
        finally:
            for process in self._started:
                with contextlib.suppress(Exception):
                    process.terminate()


def _runs(started: Any) -> bool:
    if isinstance(started, BaseProcess):
        with contextlib.suppress(ValueError):  # it is closed
            return started.is_alive()
        return False
    return started.poll() is None
