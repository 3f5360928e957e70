"""Ends of a window that no step and no module brings: memory runs full, or its thread trains on after the run.

How many events a window holds is told by nobody. Modules and autograd nodes tell most of it (`OpRecorder.look`); a loop
of plain operators without gradients makes neither, and a window that nothing ends would take all memory there is.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from torch.optim.optimizer import register_optimizer_step_post_hook

from stepscope.record.boundary import is_ours

MOST_BYTES = 32_000_000  # beyond what was resident at most before: 60,000 events, which take 15 times as much when read
_MORE = 4  # times as much after a false alarm
_OF_AVAILABLE = 1 / 40  # of what the machine has left at most: read, the events take half of that
_EVERY_S = 0.03
_STATM, _STATUS, _MEMINFO = Path("/proc/self/statm"), Path("/proc/self/status"), Path("/proc/meminfo")


class RamAlarm:
    """While it is set, `act` is called in the main thread, between two bytecodes, once memory has grown too far.

    A thread of its own looks 30 times a second at what is resident; many windows have ended before it looks at all. It
    is no thread of `threading`, whose list belongs to the training. What `act` raises, a signal handler's exception for
    one, goes on in the training as if raised there: the interpreter's pending calls hand it over.
    """

    def __init__(self, act: Callable[[], object], most_bytes: int = MOST_BYTES) -> None:
        self._pending = _PendingCall(act)
        self._most_bytes = most_bytes
        self._usual_bytes: int | None = None  # resident at most, as far as the training took it: reading takes more
        self._peak_bytes = 0  # resident at most, when the window was opened
        self._full = False
        self._clear: _thread.LockType | None = None

    def allow_more(self) -> None:
        """It was a false alarm: the training itself had grown, by a larger batch for one."""
        from stepscope.record.sensors.number_files import available_and_swap  # 5 ms, for a few trainings

        available, _ = available_and_swap(_MEMINFO.read_bytes())
        self._most_bytes = max(self._most_bytes, min(_MORE * self._most_bytes, int(available * _OF_AVAILABLE)))
        self._usual_bytes = max(self._usual_bytes or 0, _resident_bytes())
        if self._clear is not None:
            self.set()

    def set(self) -> None:
        """A window opens: what the training has had resident at most until now is what it may grow from."""
        self.clear()
        self._full = False
        try:
            self._peak_bytes = _peak_bytes()
            if self._usual_bytes is None:  # no window was read before
                self._usual_bytes = self._peak_bytes
            self._usual_bytes = max(self._usual_bytes, _resident_bytes())
        except (OSError, StopIteration):  # no procfs: nothing is watched
            return
        self._clear = clear = _thread.allocate_lock()
        clear.acquire()
        with contextlib.suppress(RuntimeError):  # no thread to be had, or the interpreter ends
            _thread.start_new_thread(self._watch, (clear, self._usual_bytes + self._most_bytes))

    def clear(self) -> None:
        """The window is closed, and not read yet: what it had grown by was the training's, unless it was full."""
        clear, self._clear = self._clear, None
        if clear is not None:
            clear.release()
            with contextlib.suppress(OSError):
                peak_bytes = _peak_bytes()
                if not self._full and peak_bytes > self._peak_bytes:
                    self._usual_bytes = max(self._usual_bytes or 0, peak_bytes)

    def _watch(self, clear: _thread.LockType, limit_bytes: int) -> None:
        with contextlib.suppress(Exception):  # no procfs, for one: nothing is watched
            while not clear.acquire(timeout=_EVERY_S):
                if _resident_bytes() > limit_bytes:
                    self._full = True
                    self._pending.ask()


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _peak_bytes() -> int:
    """Return what was resident at most (proc(5)); getrusage has the peak of the process that started this one, too."""
    line = next(line for line in _STATUS.read_bytes().splitlines() if line.startswith(b"VmHWM:"))
    return int(line.split()[1]) * 1024


def _resident_bytes() -> int:
    return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES


class _PendingCall:
    """A function that the main thread calls as soon as it runs Python again.

    The interpreter is handed `PyObject_IsTrue` with this object: the one function of its own that calls into Python and
    hands on what that raises. A function of ctypes would swallow it.
    """

    _waiting: ClassVar[list[_PendingCall]] = []  # the interpreter holds no reference to what it is to call

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act

    def ask(self) -> None:
        self._waiting.append(self)
        if ctypes.pythonapi.Py_AddPendingCall(ctypes.pythonapi.PyObject_IsTrue, ctypes.py_object(self)):
            self._waiting.remove(self)  # too many calls are waiting

    def __bool__(self) -> bool:
        try:
            self._act()
        finally:
            self._waiting.remove(self)
        return False  # 0 is success


def when_an_optimizer_steps(act: Callable[[], bool]) -> None:
    """Call `act` after each step of any optimizer, in its thread, until it answers True."""
    handles: list[Any] = []

    def stepped(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        try:
            if act():
                handles.pop().remove()
        except BaseException as error:
            if not is_ours(error):
                raise

    handles.append(register_optimizer_step_post_hook(stepped))
