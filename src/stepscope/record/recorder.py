"""Opens and closes recording windows around steps, and turns each into a part of the run folder.

Nothing of it may break the training: every failure ends the recording of ops, is noted, and the loop goes on.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable
from typing import Any

import torch

from stepscope.clock import monotonic_ns, unix_minus_monotonic_ns
from stepscope.record import torch_private
from stepscope.record.plan import Plan
from stepscope.record.recorders.allocation_events import read_tree
from stepscope.record.recorders.events import Names
from stepscope.record.recorders.memory import MemoryWatch, Watched
from stepscope.record.recorders.memory_rows import MemoryBook, memory_rows
from stepscope.record.recorders.modules import ModuleScopes
from stepscope.record.recorders.ops import Labelled, rows_of
from stepscope.record.recorders.optimizers import OptimizerCalls
from stepscope.record.recorders.shapes import ShapeBook
from stepscope.record.recorders.window import StepSpan, Window
from stepscope.record.steps import watch_optimizers
from stepscope.runfolder import RunWriter

MOST_EVENTS = 32_000  # a window's events wait in RAM, 1.5 kB each
MOST_EVENTS_PER_STEP = 300_000
_CLOCK_JUMP_NS = 1_000_000

Note = Callable[..., None]


class OpRecorder:
    """Records the ops of the steps that the plan picks."""

    def __init__(self, writer: RunWriter, plan: Plan, scopes: ModuleScopes, note: Note) -> None:
        self.plan = plan
        self.scopes = scopes
        self.paused_ns = 0
        self.windows = 0
        self.rows = 0
        self.bytes_written = 0
        self.lost_windows = 0
        self._writer = writer
        self._note = note
        self._names = Names()
        self._book = ShapeBook()
        self._cuda = torch.cuda.is_available()
        self._window: torch_private.KinetoWindow | None = None
        self._spans: list[StepSpan] = []
        self._calls = OptimizerCalls()
        self._owners: dict[int, int] = {}
        self._memory = MemoryWatch(scopes.book)
        self.memory_book = MemoryBook()
        self._updated: dict[int, list[int]] = {}  # by optimizer, the modules of the parameters that it updates
        self._offset_ns = 0
        self._rows_per_step = MOST_EVENTS // 4
        self._stopped = False

    @property
    def recording(self) -> bool:
        """Are ops recorded, here in this thread?"""
        return self._window is not None and self._window.is_of_this_thread()

    def before_step(self, step: int, elapsed_ns: int) -> bool:
        """Open, keep or close the window as the plan says; True where this step is recorded."""
        if self.plan.reckons(step):
            self.close_window()
        wanted = not self._stopped and self.plan.records(step, elapsed_ns)
        memory = wanted and self.plan.wants_memory(step, elapsed_ns, self._rows_per_step)
        full = (len(self._spans) + 1) * self._rows_per_step > MOST_EVENTS
        open_now = self._window
        if open_now is not None and (
            not wanted or full or open_now.memory != memory or open_now.shapes != self._shapes(step, elapsed_ns)
        ):
            self.close_window()
        shapes = wanted and self._shapes(step, elapsed_ns)
        if wanted and self._window is None:
            self._timed(lambda: self._open(shapes, memory))
        return self.recording

    def _shapes(self, step: int, elapsed_ns: int) -> bool:
        again = self._book.missed and not self.recording
        return self.plan.wants_shapes(step) or (again and self.plan.affords_shapes(elapsed_ns))

    def after_step(self, span: StepSpan) -> None:
        """A recorded step has ended."""
        if self.recording:
            self._spans.append(span)
            self._watched(self._memory.after_step)

    def optimizer_steps(self, optimizer: Any) -> None:
        """An optimizer is about to step: note whose parameters come in which order."""
        self._memory.saw(optimizer)
        if not self.recording:
            return
        self._watched(self._memory.before_optimizer)
        known = self._updated.get(id(optimizer))
        if known is None:  # once a window: it costs a percent of a dispatch-bound step
            parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            if any(id(p) not in self._owners for p in parameters):
                self._owners = self.scopes.book.parameter_modules()
            known = self._updated[id(optimizer)] = [self._owners.get(id(p), -1) for p in parameters]
        self._calls.parameter_modules.append(known)

    def close_window(self) -> None:
        """Stop recording and write what was caught; RAM is free again afterwards."""
        if self.recording:
            self._timed(self._flush)
        elif self._window is not None and not self._stopped:
            self._stop_for_good("a step ended in another thread than it began in")

    def close(self) -> None:
        """The run ends. A profile of another thread is stopped, unwritten, when that thread next steps an optimizer."""
        self.close_window()
        if self._window is None:
            self.scopes.remove()
            return
        undo: list[Callable[[], None]] = []

        def drop(_optimizer: Any) -> None:
            if self.recording:
                self._drop()
                undo.pop()()

        undo.append(watch_optimizers(lambda _: None, drop))

    def give_way(self) -> None:
        """Somebody else wants the profiler: it is theirs from now on."""
        if not self._stopped:
            self._stop_for_good("the training started a torch profiler of its own")
            self.close_window()

    def _timed(self, action: Callable[[], None]) -> None:
        began, began_cpu = monotonic_ns(), time.thread_time_ns()
        collecting = gc.isenabled()
        gc.disable()  # thousands of short-lived events would set off collections over all of torch's objects
        try:
            action()
        except Exception as error:  # whatever it is, the training goes on
            self._lost(error)
        finally:
            if collecting:
                gc.enable()
        self.paused_ns += monotonic_ns() - began
        # Waiting for a busy machine is no reason to record less: the plan reckons in CPU time.
        self.plan.spent(time.thread_time_ns() - began_cpu)

    def _open(self, shapes: bool, memory: bool) -> None:
        if self._cuda:
            torch.cuda.synchronize()
        if memory:
            self._watched(self._memory.open)
        self._spans, self._calls, self._updated = [], OptimizerCalls(), {}
        self._offset_ns = unix_minus_monotonic_ns()
        self._window = torch_private.start_window(shapes, self._cuda, memory)
        self.scopes.open_scopes()

    def _stop_for_good(self, why: str) -> None:
        self._stopped = True
        self._note("recording-stopped", f"{why}: ops are recorded up to here")

    def _drop(self) -> list[Any]:
        """Stop the profile, whatever else fails: one that ran on would fill the RAM and slow the training."""
        window, self._window = self._window, None
        assert window is not None
        try:
            if self._cuda:
                torch.cuda.synchronize()
        finally:
            raw = window.stop(self.scopes.remove)
        return raw

    def _flush(self) -> None:
        window = self._window
        assert window is not None
        raw = self._drop()
        watched = self._memory.close()
        offset = unix_minus_monotonic_ns()
        if abs(offset - self._offset_ns) > _CLOCK_JUMP_NS:
            self._note("clock-jump", "the wall clock was set in a recorded window", jump_ns=offset - self._offset_ns)
        caught = Window(raw, self._spans, self._offset_ns, self._calls, window.shapes, self._cuda)
        self._book.missed = False
        rows = rows_of(caught, self._names, self.scopes.book.names(), self._book)
        self.windows += 1
        if rows.left_open:
            self._stop_for_good(f"{rows.left_open[0]} was still open at the end of a step, and torch could crash")
        if rows.frame.height:
            self._too_many(len(raw) // len(self._spans))
            self._rows_per_step = max(1, len(raw) // max(len(self._spans), 1))
            self.bytes_written += self._writer.ops(rows.frame)
            self.rows += rows.frame.height
            self.plan.learn(rows.profiles)
        if window.memory and rows.labelled is not None and self._spans:
            labelled = rows.labelled
            self._watched(lambda: self._write_memory(caught, window, watched, labelled))

    def _write_memory(
        self, caught: Window, window: torch_private.KinetoWindow, watched: Watched, ops: Labelled
    ) -> None:
        events = read_tree(window.tree, window.shapes)
        modules = self.scopes.book.names()
        frame = memory_rows(caught, events, watched, ops, self._names.texts(), modules, self.memory_book)
        if frame.height:
            self.bytes_written += self._writer.memory(frame)

    def _watched(self, action: Callable[[], None]) -> None:
        """What fails in looking at memory ends that, and nothing else."""
        if self.plan.memory == "off":
            return
        try:
            action()
        except Exception as error:
            self._memory.close()
            if not isinstance(error, OSError):
                self.plan.memory = "off"
            self._note("memory-lost", f"{type(error).__name__}: {error}")

    def _too_many(self, events_per_step: int) -> None:
        """A step whose events alone would fill the RAM of a small board is not recorded a second time."""
        if events_per_step > MOST_EVENTS_PER_STEP:
            self._stop_for_good(f"a step has {events_per_step} op instances, too many to record more")

    def _lost(self, error: Exception) -> None:
        """A disk that is full may have room again; a profiler that fails will fail again."""
        self.lost_windows += 1
        self.scopes.remove()
        self._memory.close()
        steps = [span.step for span in self._spans]
        if not isinstance(error, OSError):
            self._stopped = True
        if self.recording:  # it failed between start and stop
            with contextlib.suppress(Exception):
                self._drop()
        self._note("ops-lost", f"{type(error).__name__}: {error}", steps=steps)
