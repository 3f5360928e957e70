"""Threads that compute gradients: while several do, the gradients of one must not be looked at from another.

Autograd adds to a gradient without the interpreter's lock. A look at `parameter.grad` from another thread can meet a
tensor that is being replaced, and ends the process.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable

import torch


class GradientThreads:
    """The threads of this process that have computed gradients; told, and asked, behind the boundary's lock."""

    def __init__(self) -> None:
        self._threads: set[int] = set()

    def note_this_thread(self) -> None:
        """The thread that calls this is about to compute gradients."""
        here = threading.get_ident()
        if here not in self._threads and torch._C._current_graph_task_id() == -1:  # else a pass within another one
            self._threads.add(here)

    def is_helper(self) -> bool:
        """Return whether the calling thread is not the main one and has computed no gradient: it works for others."""
        return threading.get_ident() not in self._threads | {threading.main_thread().ident}

    def others(self) -> bool:
        """Return whether another thread, which still lives, has computed gradients.

        A number of a thread that has ended counts again once another thread has it: one that repeats the steps of the
        former is only looked at, and tells nobody.
        """
        if self._threads <= {threading.get_ident()}:
            return False
        return not self._threads & sys._current_frames().keys() <= {threading.get_ident()}  # `_thread`'s among them


class _AtEndOfThread:
    """Kept by a thread, which lets go of it as it ends."""

    def __init__(self, action: Callable[[], None]) -> None:
        self.action = action

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.action()


_of_this_thread = threading.local()


def run_at_end_of_thread(action: Callable[[], None]) -> None:
    """Run a function once at the end of the calling thread, or when the thread is given another one.

    Never for the main thread, which ends with the interpreter.
    """
    last = getattr(_of_this_thread, "ends", None)
    if threading.get_ident() != threading.main_thread().ident and (last is None or last.action != action):
        _of_this_thread.ends = _AtEndOfThread(action)
