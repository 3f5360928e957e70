"""Limits of a profiling window: the events it holds, the memory it takes, and the parts of a step that is too large.

The profiler does not say how many events a window holds. `EventCount` estimates it from autograd nodes, module calls
and parameters, scaled by what earlier windows held. A loop of plain operators without gradients makes neither nodes nor
module calls; there `RamAlarm` ends the window before it takes all memory. A step that is too large for one window is
profiled in `StepParts`, one window a phase: forward begins with the first call of a model, backward with the first
backward pass, and the optimizer's part with the end of a pass that an update follows (of a closure's the first, else
the last one of the step).
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

from stepscope.record import torch_private
from stepscope.record.fault_boundary import is_ours
from stepscope.record.ops.module_calls import ModuleCallLog
from stepscope.record.torch_private import Scope, remove_optimizer_hook

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
        """Allow more memory after a false alarm: the training itself had grown, by a larger batch for one."""
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
            _thread.start_new_thread(self._watch_memory, (clear, self._usual_bytes + self._most_bytes))

    def clear(self) -> None:
        """The window is closed, and not read yet: what it had grown by was the training's, unless it was full."""
        clear, self._clear = self._clear, None
        if clear is not None:
            clear.release()
            with contextlib.suppress(OSError):
                peak_bytes = _peak_bytes()
                if not self._full and peak_bytes > self._peak_bytes:
                    self._usual_bytes = max(self._usual_bytes or 0, peak_bytes)

    def _watch_memory(self, clear: _thread.LockType, limit_bytes: int) -> None:
        with contextlib.suppress(Exception):  # no procfs, for one: nothing is watched
            while not clear.acquire(timeout=_EVERY_S):
                if _resident_bytes() > limit_bytes:
                    self._full = True
                    self._pending.schedule()


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

    def schedule(self) -> None:
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
            if handles and act():
                remove_optimizer_hook(handles.pop())
        except BaseException as error:
            if not is_ours(error):
                raise

    handles.append(register_optimizer_step_post_hook(stepped))


MOST_EVENTS = 32_000  # of several steps in one window: a window's events wait in RAM
MOST_EVENTS_PER_STEP = 48_000  # of one step: a larger one is profiled in parts
MOST_EVENTS_PER_PART = 16_000
EVENT_BYTES = 2_000  # that an event takes in RAM until it is written
TO_THE_END_OF_A_PASS = 1.5  # times as many events may it take to see layers in backward, too
_EVENTS_PER_NODE = 4, 5  # of an autograd node: its op and what that calls, and the same in backward
_EVENTS_PER_UPDATE = 20  # of a parameter
_EVENTS_PER_CALL = 2  # of a module's call, beside those of its nodes
_DEARER = 3  # with shapes or allocations an event takes so many times the memory


def max_step_events(dear: bool) -> int:
    """Return the most events of a step that is profiled whole; dear: with shapes or allocations."""
    return MOST_EVENTS_PER_STEP // (_DEARER if dear else 1)


class EventCount:
    """Counts what tells events; `calls` counts calls of modules, `parameters` the parameters of models."""

    def __init__(self, calls: Callable[[], int], parameters: Callable[[], int]) -> None:
        self.seen: float | None = None  # of a step, in the last window
        self.caught = self.most = 0  # by the last window, by the largest
        self._calls, self._count_parameters = calls, parameters
        self._parameters: int | None = None
        self._step_sequence = torch_private.autograd_sequence()  # when the step began
        self._step_nodes = 0, 0  # that the last steps made: of two that end at once, late, one has the nodes of both
        self._sequence = self._passed = 0  # when the step or part began; when the last backward pass ended
        self._calls_before = 0
        self._whole_steps = 0.0  # reckoned, of this window
        self._learnt = 1.0  # events caught for one that was reckoned

    # what happens

    def step_begins(self, sequence: int) -> None:
        """Note the begin of a step, by the number of autograd nodes made so far."""
        self._step_sequence = self._sequence = self._passed = sequence
        self._calls_before = self._calls()

    def step_ends(self) -> None:
        """Note the end of a step, profiled or not."""
        sequence = torch_private.autograd_sequence()
        self._step_nodes = self._step_nodes[1], sequence - self._step_sequence
        self._step_sequence = sequence

    def part_begins(self, with_forward: bool) -> None:
        """Note that a window opens within a step."""
        self._sequence, self._calls_before = torch_private.autograd_sequence(), self._calls()
        if with_forward:
            self._passed = self._sequence

    def pass_ends(self) -> None:
        """A backward pass is done, with all the nodes that were made."""
        self._passed = torch_private.autograd_sequence()

    def window_begins(self) -> None:
        """No event is caught yet."""
        self._whole_steps = 0.0

    def step_of_window_ends(self) -> None:
        """A step ends that is profiled whole."""
        self._whole_steps += self.events_so_far()

    def window_ends(self, caught: int) -> None:
        """Note how many events the window has caught."""
        self.caught, self.most = caught, max(self.most, caught)

    # what it tells

    def events_so_far(self) -> float:
        """Events of the step or part that is under way."""
        return self._estimate_events(
            torch_private.autograd_sequence() - self._sequence, self._calls() - self._calls_before
        )

    def events_to_come(self) -> float:
        """Events of a backward pass through what was made since the last one."""
        nodes = torch_private.autograd_sequence() - self._passed
        return self._learnt * _EVENTS_PER_NODE[1] * max(nodes, 0)

    def of_graph(self) -> float:
        """Events of a step, by what the last two made: those of its nodes."""
        return self._estimate_events(sum(self._step_nodes) // 2, 0)

    def expected(self) -> float:
        """Events of a whole step: as many as one had, else reckoned."""
        if self.seen is not None:
            return self.seen
        if self._parameters is None:
            self._parameters = self._count_parameters()
        return self.of_graph() + _EVENTS_PER_UPDATE * self._parameters

    def too_many_updates(self) -> bool:
        """Return whether the update alone is too large for a window."""
        return _EVENTS_PER_UPDATE * self._count_parameters() > MOST_EVENTS_PER_STEP

    @property
    def has_backward_ended(self) -> bool:
        """Return whether a backward pass of this step is done."""
        return self._passed > self._step_sequence

    @property
    def nodes_of_part(self) -> int:
        """Nodes of a backward pass that fill a window."""
        return int(MOST_EVENTS_PER_PART / (_EVENTS_PER_NODE[1] * self._learnt))

    @property
    def nodes_to_pass(self) -> int:
        """Nodes made since the last backward pass."""
        return torch_private.autograd_sequence() - self._passed

    # what it learns

    def learn_from_steps(self) -> None:
        """The window that has ended held whole steps."""
        self._learn(self._whole_steps)

    def learn_from_forward(self) -> None:
        """Learn from a part that began with a forward pass."""
        self._learn(self.events_so_far() - self.events_to_come())

    def _estimate_events(self, nodes: int, calls: int) -> float:
        return self._learnt * (sum(_EVENTS_PER_NODE) * max(nodes, 0) + _EVENTS_PER_CALL * max(calls, 0))

    def _learn(self, reckoned: float) -> None:
        if reckoned > 0:
            self._learnt *= min(max(self.caught / reckoned, 0.2), 5.0)


FORWARD, BACKWARD, UPDATE = "forward", "backward", "optimizer"
BEGINNING = "beginning"  # of a step whose size was not known before: what its first window held
NO_PART_OF_BACKWARD = (
    "a backward pass too large for one window is profiled where it runs on the CPU, through all its nodes, "
    "in a process without other threads, with torch 2.7 or later"
)
_NO_PROFILE_WITHIN_BACKWARD = (
    "an optimizer updates within the backward pass, so that steps begin there, where no profile may begin or end"
)


class StepParts:
    """State of a step that is profiled in parts: what is still to be profiled; False where it is profiled whole."""

    def __init__(self) -> None:
        self.step = -1
        self.remaining: set[str] = set()
        self.open: str | None = None
        self.t0_ns = 0  # of the open part
        self.rows = 0  # that were written of this step
        self.places: ModuleCallLog | None = None
        self.scope: Scope | None = None  # stands for the optimizer's own range, within a closure's update
        self.undo: Callable[[], None] = _undo_nothing  # of what ends the window within a pass
        self.updating: str | None = None  # the optimizer that updates now
        self._active = self._said_within = False
        self._passes = 0
        self._passes_before = 0  # of the step before

    def __bool__(self) -> bool:
        return self._active

    def step_within_backward(self, step: int, note: Callable[..., None]) -> None:
        """A step begins within a backward pass: neither it nor a part of it is profiled, which is said once."""
        if not self._said_within:
            self._said_within = True
            note("steps-end-in-backward", _NO_PROFILE_WITHIN_BACKWARD, step=step)

    def begin_step(self, step: int, parts: set[str]) -> None:
        """Begin a step that is profiled in these parts."""
        self._active, self.step, self.remaining, self.open, self.rows = True, step, set(parts), None, 0

    def note_part_open(self, part: str, t0_ns: int) -> None:
        """Note that the window of a part is open."""
        self.remaining.discard(part)
        self.open, self.t0_ns = part, t0_ns

    def note_part_closed(self) -> None:
        """Note that the window of the part is closed."""
        self.open = None
        undo, self.undo = self.undo, _undo_nothing
        undo()

    def end_scope(self) -> None:
        """The range that stands for the optimizer's ends, before its window does."""
        scope, self.scope = self.scope, None
        if scope is not None:
            scope.__exit__(None, None, None)

    def note_backward_end(self) -> None:
        """A backward pass of the step is done."""
        self._passes += 1

    def update_follows(self) -> bool:
        """Return whether an update is about to follow the pass that is done now, as far as the step before tells."""
        return self.updating is not None or self._passes >= self._passes_before

    def step_ended(self) -> None:
        """The next step begins."""
        self._passes_before, self._passes = self._passes, 0

    def drop(self) -> None:
        """No part of this step is profiled any more."""
        self._active, self.places, self.scope = False, None, None
        self.remaining.clear()
        self.note_part_closed()


def _undo_nothing() -> None:
    """Do nothing: there is nothing to undo."""
