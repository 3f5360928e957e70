"""The exit of a script that is followed: what it left for then happens where it ends, not in the exit of this process.

Its functions of atexit run there, and its objects go, so that what they write lies where its other files do.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from stepscope.footprint.script_progress import Progress, temporary_attribute
from stepscope.record.fault_boundary import is_foreign


class ScriptExit:
    """Functions that the script, and no library, registers while they are `kept`."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._registered: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []

    @contextlib.contextmanager
    def intercept(self) -> Iterator[None]:
        """Answer for atexit, and for ends of this process that ask nobody."""
        plain, forget, process = atexit.register, atexit.unregister, os.getpid()
        ends = {name: getattr(os, name) for name in ("_exit", "abort")}

        def end(name: str, *code: int) -> None:
            if os.getpid() != process:  # a child ends as it wants to
                ends[name](*code)
            self._registered.clear()  # it does not happen then
            raise SystemExit(*code or (1,))

        def register(function: Callable[..., Any], *given: Any, **options: Any) -> Callable[..., Any]:
            if not is_foreign(sys._getframe(1).f_code.co_filename):
                return plain(function, *given, **options)
            self._registered.append((function, given, options))
            return function

        def unregister(function: Callable[..., Any]) -> None:
            self._registered = [row for row in self._registered if row[0] != function]
            forget(function)

        with contextlib.ExitStack() as stack:
            stack.enter_context(temporary_attribute(atexit, "register", register))
            stack.enter_context(temporary_attribute(atexit, "unregister", unregister))
            for name in ends:
                stack.enter_context(temporary_attribute(os, name, functools.partial(end, name)))
            yield

    def run(self) -> None:
        """Run what was registered, the last first; as in Python, one that fails does not hold up the others."""
        while self._registered:
            function, given, options = self._registered.pop()
            try:
                function(*given, **options)
            except Exception as error:
                self._progress.note_missed(f"what it left for its exit: {type(error).__name__}: {error}")
