"""Limits of the time for which a script is followed: an end to its processor time and its waiting, wherever it is then.

A timer interrupts loops, sleeps and waits of the main thread. A script that catches everything and goes on is stopped
at the head of its next loop. What it waits for by `time.sleep` is not waited for.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from stepscope.footprint.real_steps import EndOfSteps

MOST_BEFORE_S = 110.0  # of processor time until the first update: without one there is no answer
MOST_S = 45.0  # of it from there on
_MOST_WALL_S = 300.0
_IDLE_S, _IDLE_CPU_S = 20.0, 0.2  # so long with so little processor time: it waits for something
_TICK_S = 1.0


class TimeLimitReached(EndOfSteps):
    """The script was followed for long enough: `why`, and at which line it was."""

    def __init__(self, why: str, line: int | None) -> None:
        self.why, self.line = why, line
        super().__init__(why)

    def __str__(self) -> str:
        return self.why if self.line is None else f"{self.why}, at line {self.line}"


class TimeLimit:
    """The time of one script; `check` is called by its loops, and by a timer while it is `kept`."""

    def __init__(self, target: str, most_s: float | None = None, packages: Sequence[str] = ()) -> None:
        self._files = (target, *packages)  # of which one is below all that the script does
        self._target, self.most_s, self._whole = target, MOST_BEFORE_S if most_s is None else most_s, most_s is None
        self._began = self._busy_at = time.monotonic()
        self._began_cpu = self._busy_cpu = time.process_time()
        self._process = os.getpid()

    @property
    def used(self) -> float:
        """Processor time so far, s."""
        return time.process_time() - self._began_cpu

    def note_first_update(self) -> None:
        """The first update was made: from now on there is less time."""
        if self._whole:
            self.most_s = self.used + MOST_S

    def check(self, frame: Any = None) -> bool:
        """Return True; raise TimeLimitReached at the end of it, but not in a child, which may wait for long."""
        if os.getpid() != self._process:
            return True
        now, cpu = time.monotonic(), time.process_time()
        if cpu - self._busy_cpu > _IDLE_CPU_S:
            self._busy_at, self._busy_cpu = now, cpu
        why = None
        if cpu - self._began_cpu > self.most_s:
            why = f"{self.most_s:.0f} s of processor time are over"
        elif now - self._began > _MOST_WALL_S:
            why = f"{_MOST_WALL_S:.0f} s are over"
        elif now - self._busy_at > _IDLE_S:
            why = "it waits for something"
        if why is not None:
            raise TimeLimitReached(why, self._script_line(frame or sys._getframe(1)))
        return True

    def _tick(self, _number: int, frame: Any) -> None:
        if self._is_in_script(frame) and not _is_in_finalizer(frame):  # not on its way out, which is ours
            self.check(frame)

    def _is_in_script(self, frame: Any) -> bool:
        while frame is not None and frame.f_code.co_filename not in self._files:
            frame = frame.f_back
        return frame is not None

    def _script_line(self, frame: Any) -> int | None:
        while frame is not None and frame.f_code.co_filename != self._target:
            frame = frame.f_back
        return None if frame is None else frame.f_lineno

    @contextlib.contextmanager
    def interrupt_at_limit(self) -> Iterator[None]:
        """Interrupt the main thread when the time is over; threads that the script leaves behind hold up no exit."""
        start, sleep = threading.Thread.start, time.sleep

        def started(thread: threading.Thread) -> None:
            thread._daemonic = True  # type: ignore[attr-defined]
            start(thread)

        threading.Thread.start = started  # type: ignore[method-assign,assignment]
        time.sleep = lambda seconds: sleep(0)
        try:
            with self._interval_timer():
                yield
        finally:
            threading.Thread.start, time.sleep = start, sleep  # type: ignore[method-assign]

    @contextlib.contextmanager
    def _interval_timer(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
            yield
            return
        handler = signal.signal(signal.SIGALRM, self._tick)
        remaining_s, every = signal.setitimer(signal.ITIMER_REAL, _TICK_S, _TICK_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            if remaining_s:
                signal.setitimer(signal.ITIMER_REAL, max(0.01, remaining_s - (time.monotonic() - self._began)), every)


_FINALIZERS = ("__del__", "_note_end")  # the second of the log of storages: Python prints and drops what they raise


def _is_in_finalizer(frame: Any) -> bool:
    while frame is not None and frame.f_code.co_name not in _FINALIZERS:
        frame = frame.f_back
    return frame is not None


def time_limit_cause(error: BaseException | None) -> TimeLimitReached | None:
    """Return the end of its time that an error came of: it may interrupt a context that cannot be left then."""
    while error is not None and not isinstance(error, TimeLimitReached):
        error = error.__context__
    return error
