"""Opens and closes profiling windows around steps, and turns each into a part of the run folder.

Nothing of it may break the training: every failure ends the profiling of ops, is noted, and the loop goes on. What a
window holds in RAM is bounded while it is open: a step that is too large for one is profiled in parts (`parts`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from stepscope.clock import monotonic_ns, unix_minus_monotonic_ns
from stepscope.record import kineto, op_windows, torch_private
from stepscope.record.event_cost import EventCost, measure_event_cost
from stepscope.record.fault_boundary import DeferredSignals, WithoutCollections, is_ours
from stepscope.record.gradient_threads import run_at_end_of_thread
from stepscope.record.layer_times import LayerRecorder
from stepscope.record.memory.event_tree import read_tree, write_accesses
from stepscope.record.memory.rows import RunMemoryState, memory_rows
from stepscope.record.memory.tensor_watch import MemoryWatch, WatchedStorages
from stepscope.record.op_windows import BACKWARD, BEGINNING, FORWARD, UPDATE, EventCount, RamAlarm, StepParts
from stepscope.record.ops.events import OPTIMIZER_STEP, Names
from stepscope.record.ops.module_calls import ModuleCallLog
from stepscope.record.ops.rows import OpCostsByShape, StepSpan, Window, WindowRows, rows_of
from stepscope.record.ops.source_lines import LINES_WAIT_NS, CallSites, PendingSourceLines
from stepscope.record.ops.updates import OptimizerCalls, UpdateCache
from stepscope.record.plan import Plan
from stepscope.record.torch_hooks import TorchHooks
from stepscope.runfolder import RunWriter

_STILL_USUAL = 4  # times an unprofiled step
_CLOCK_JUMP_NS = 1_000_000

Note = Callable[..., None]
Tell = Callable[[], None]
Guard = Callable[[Callable[[], None]], Callable[[], None]]


class OpRecorder:
    """Records the ops of the steps that the plan picks."""

    def __init__(
        self, writer: RunWriter, plan: Plan, watch: MemoryWatch, hooks: TorchHooks, note: Note, guard: Guard, tell: Tell
    ) -> None:
        self.plan, self.modules = plan, watch.registry
        self.paused_ns = self.once_ns = 0  # in each window; once in a run
        self.event_cost: EventCost | None = None
        self.steps_with_details: set[int] = set()  # steps profiled with shapes or allocations, which take longer for it
        self.windows = self.rows = self.bytes_written = self.lost_windows = 0
        self._writer, self._hooks, self._note = writer, hooks, note
        self._part_is_full = guard(self._end_part_within_a_pass)
        self._alarm = RamAlarm(guard(self._end_full_window))
        self._open_step = 0, 0  # its number and beginning
        self._names, self.costs = Names(), OpCostsByShape()
        self._window: kineto.KinetoWindow | None = None
        self._spans: list[StepSpan] = []
        self._calls = OptimizerCalls()
        self._memory, self.memory_state = watch, RunMemoryState()
        self.updates = UpdateCache(watch.registry.parameter_modules, watch.trainers.others)
        self._lines = PendingSourceLines(note)
        self.event_count = EventCount(lambda: hooks.modules.calls, lambda: len(self.modules.parameter_modules()))
        self._offset_ns = self._written = 0  # of the window; events that are being written
        self.stopped = self._with_memory = self._cuda = False  # the step is recorded with its allocations; with a GPU
        self._parts, self.layers = StepParts(), LayerRecorder(hooks, self.modules.index, tell)

    @property
    def recording(self) -> bool:
        """Are ops recorded, here in this thread?"""
        return self._is_open and self.layers.open is None

    @property
    def _is_open(self) -> bool:
        return self._window is not None and self._window.is_of_this_thread() and not self._window.overtaken

    @property
    def held_bytes(self) -> int:
        """The most that a window's events took in RAM beside the training, B."""
        return self.event_count.most * op_windows.EVENT_BYTES

    def before_step(self, step: int, elapsed_ns: int, again: bool = False) -> bool:
        """Open, keep or close the window as the plan says; True where this step is recorded whole.

        again: the step was to be recorded, and begins anew behind an evaluation.
        """
        self.plan.events_per_step = events = self.event_count.expected()
        self.plan.layers_possible = self.layers.may_open(events)
        self._open_step = step, monotonic_ns()
        within = torch_private.profiler_is_locked()  # an update there has ended a step
        if torch_private.in_backward() and self._window is None and self.plan.choice.name != "none":
            self._parts.step_within_backward(step, self._note)
        whole = not self.stopped and not within and (again or self.plan.records(step, elapsed_ns))
        if not again:
            self._with_memory = whole and self.plan.wants_memory(step, elapsed_ns)
        full = (len(self._spans) + 1) * self.plan.events_per_step > op_windows.MOST_EVENTS
        memory = whole and self._with_memory
        open_now = None if within else self._window
        layers = self.plan.times_layers and not (whole or within or self.stopped or self._parts)
        if open_now is not None and (
            layers != open_now.nodes_alone
            if layers or open_now.nodes_alone
            else not whole or full or open_now.memory != memory or open_now.shapes != self._shapes(step, elapsed_ns)
        ):
            self.close_window()
        events = self.event_count.of_graph()
        self.event_count.step_begins(torch_private.autograd_sequence())
        if whole and events > op_windows.max_step_events(dear=False):
            self.close_window()
            self._begin_parts(step, {FORWARD, BACKWARD, UPDATE})
            return False
        large = max(events, self.event_count.seen or 0.0) > op_windows.max_step_events(dear=True)
        shapes = whole and not large and self._shapes(step, elapsed_ns)
        if whole and self._window is None:
            if memory and not large:
                self._run_and_time(lambda: self._run_memory_watch(self._memory.find_all_tensors), once=True)
            self._run_and_time(lambda: self._open(shapes, memory and not large))
        if layers and self._window is None and self.layers.cost is None:
            self._run_and_time(self.layers.rehearse, once=True)
        if layers and self._window is None and not self.stopped:
            self._run_and_time(self._open_layers)
        return self.recording

    def _open_layers(self) -> None:
        self._offset_ns = unix_minus_monotonic_ns()
        self._window = self.layers.start()
        run_at_end_of_thread(self.thread_ends)
        self.event_count.step_begins(torch_private.autograd_sequence())  # behind nodes of ours
        self._alarm.set()

    def rehearse(self) -> None:
        """Measure once what recording costs on this device, before the first step."""
        if self.plan.choice.name != "none" and not torch_private.in_backward():
            self._run_and_time(self._measure_event_cost, once=True)

    def _measure_event_cost(self) -> None:
        with contextlib.suppress(RuntimeError, AttributeError, TypeError, ValueError):  # another profiler, or torch
            self.event_cost = cost = measure_event_cost()
            self.plan.window_ns, self.plan.event_ns = cost.window_ns, cost.written_ns

    def close_oversized_window(self, step: int, t0_ns: int, before_pass: bool = False) -> bool:
        """Close the window within a step that is too large for one; True where that was so.

        before_pass: a backward pass begins; it may take more, since without it no layer is seen in backward. Events are
        reckoned from autograd nodes and calls of modules, as learnt from the windows before (else: `RamAlarm`).
        """
        window = self._window
        if window is None or window.nodes_alone or not window.is_of_this_thread():
            return False
        events, to_come = self.event_count.events_so_far(), self.event_count.events_to_come()
        if self._parts.open is not None:
            if events - to_come >= op_windows.MOST_EVENTS_PER_PART:
                self._end_part()
            return False
        most = op_windows.max_step_events(window.shapes or window.memory)
        if (events < most * op_windows.TO_THE_END_OF_A_PASS) if before_pass else (events - to_come < most):
            return False
        self._begin_parts(step, {UPDATE} if self.event_count.has_backward_ended else {BACKWARD, UPDATE})
        self._parts.note_part_open(BEGINNING, t0_ns)
        self._end_part()
        return True

    # a step in parts

    def before_forward(self) -> None:
        """A module is called with gradients: what followed the last pass is over, and a forward pass begins."""
        parts = self._parts
        if not parts or torch_private.in_backward():
            return
        if parts.open != FORWARD:
            self._end_part()
        self._open_part(FORWARD)

    def before_pass(self, roots: Any, inputs: Any) -> None:
        """A backward pass begins: of a step in parts it is a part, as far as one window holds it."""
        parts = self._parts
        if not parts or torch_private.in_backward():
            return
        self._end_part()
        if BACKWARD not in parts.remaining:
            return
        nodes = self.event_count.nodes_of_part
        # Nodes that are passed over, or run in another thread, do not tell where the window is full.
        if inputs or not torch_private.begins_on_cpu(roots) or not kineto.stops_within_backward():
            large = self.event_count.nodes_to_pass > nodes
            undo = None if large else lambda: None
        else:
            undo = torch_private.act_within_backward(roots, nodes, self._part_is_full)
        if undo is None:
            parts.remaining.discard(BACKWARD)
            self._note("backward-not-profiled", op_windows.NO_PART_OF_BACKWARD, step=parts.step)
            return
        self._open_part(BACKWARD, in_pass=True)
        parts.undo = undo

    def after_pass(self) -> None:
        """A backward pass is done, with all the nodes that were made; an update may follow."""
        self.event_count.pass_ends()
        parts = self._parts
        if torch_private.in_backward():
            return
        parts.note_backward_end()
        if not parts:
            return
        if parts.open == BACKWARD:
            self._end_part()
        self._hooks.modules.note(None)
        if parts.update_follows():
            self._open_part(UPDATE)

    def note_updating_optimizer(self, optimizer: Any | None) -> None:
        """Note that this optimizer is about to update, or (None) that one has updated."""
        self._parts.updating = None if optimizer is None else type(optimizer).__name__

    def _begin_parts(self, step: int, part_names: set[str]) -> None:
        """The step that is under way is profiled in parts: windows of its own for what begins in it."""
        if self.event_count.too_many_updates():
            part_names = part_names - {UPDATE}
        self._parts.begin_step(step, part_names)
        if BACKWARD in part_names:
            self._parts.places = ModuleCallLog(self.modules.index, torch_private.autograd_sequence)
            self._hooks.modules.note(self._parts.places)

    def _open_part(self, part: str, in_pass: bool = False) -> None:
        parts = self._parts
        is_due = part in parts.remaining and self._window is None and not self.stopped
        if not is_due or torch_private.profiler_is_locked():
            return
        self._run_and_time(lambda: self._open(False, False, in_pass))
        if not self.recording:
            return
        self.event_count.part_begins(with_forward=part == FORWARD)
        parts.note_part_open(part, monotonic_ns())
        if part == UPDATE and parts.updating is not None:  # its own range began before this window
            parts.scope = torch_private.make_call_scope(f"{OPTIMIZER_STEP}{parts.updating}.step")
            parts.scope.__enter__()

    def _end_part(self, why: str = "is too large") -> None:
        """The window of a part is full, or the part is over."""
        parts = self._parts
        if parts.open is None:
            return
        part, until_ns = parts.open, monotonic_ns()
        if self.recording:
            self._spans.append(StepSpan(parts.step, parts.t0_ns, until_ns, None))
            self.close_window()
        parts.note_part_closed()
        self._note(
            "step-profiled-in-part",
            f"step {parts.step} {why} to be profiled whole: {(until_ns - parts.t0_ns) / 1e9:.3g} s are ({part})",
            step=parts.step,
            part=part,
            t0_ns=parts.t0_ns,
            until_ns=until_ns,
        )

    def _end_part_within_a_pass(self) -> None:
        if self._parts.open == BACKWARD and self.recording:
            self._end_part()

    def repeated(self, spans: list[StepSpan], sequence: int) -> None:
        """Steps have ended that were only looked at: unprofiled, or their layers alone were timed."""
        timed = bool(spans) and self.layers.repeated(spans)  # whichever thread tells of them
        if timed:
            self._open_step = spans[-1].step + 1, spans[-1].t1_ns
        self.plan.note_unprofiled_steps([span.t1_ns - span.t0_ns for span in spans], timed)
        self.event_count.step_begins(sequence)

    def step_ends(self, span: StepSpan) -> bool:
        """Every step's end, recorded or not; True where it was profiled in parts."""
        if self.layers.open is not None and self._is_open:
            if span.step == self._open_step[0]:
                self.plan.layers_timed = self.layers.open.append(span)
            elif not torch_private.profiler_is_locked():  # it has ended late, and the next one may do so as well
                self.close_window()
        in_parts = bool(self._parts)
        if in_parts:
            self._end_part()
            self._stop_profiling_in_parts()
        self.event_count.step_ends()
        self._parts.step_ended()
        return in_parts

    def _stop_profiling_in_parts(self) -> None:
        self._parts.drop()
        self._hooks.modules.note(None)

    def _shapes(self, step: int, elapsed_ns: int) -> bool:
        again = self.costs.missed and not self.recording
        return self.plan.wants_shapes(step, elapsed_ns) or (again and self.plan.affords_shapes_again(elapsed_ns))

    def after_step(self, span: StepSpan) -> None:
        """A profiled step has ended."""
        if self.recording:
            self.event_count.step_of_window_ends()
            self._spans.append(span)
            self._stop_noting_sites()
            self._run_memory_watch(self._memory.after_step)

    def mark(self, kind: str) -> None:
        """A backward pass begins, an optimizer updates or a batch was fetched: note which line asked for it."""
        if self._lines.sites is not None and self.recording:
            self._lines.sites.mark(kind)

    def _stop_noting_sites(self) -> None:
        noted_by = self._hooks.modules.noted_by
        if isinstance(noted_by, CallSites):
            self._hooks.modules.note(noted_by.also)

    def called(self, args: Any, kwargs: Any) -> None:
        """An outermost module is called with these."""
        if self.recording:
            self._run_memory_watch(lambda: self._memory.called(args, kwargs))

    def before_optimizer_step(self, optimizer: Any) -> None:
        """An optimizer is about to step: note whose parameters come in which order."""
        self._memory.note_optimizer(optimizer)
        if not self.recording:
            return
        self.mark("optimizer")
        self._run_memory_watch(self._memory.before_optimizer)
        self._calls.updates.append(self.updates.update_of_optimizer(optimizer))

    def close_window(self) -> None:
        """Stop recording and write what was caught; RAM is free again afterwards."""
        if self.layers.open is not None and self._is_open:
            self._run_and_time(self._write_layer_window)
        elif self.recording:
            self._run_and_time(self._flush)
            self._parts.note_part_closed()
        elif self._window is not None and self._window.overtaken:
            self._run_and_time(self._leave_overtaken_window)
        elif self._window is not None and not self.stopped:
            self._stop_for_good("a step ended in another thread than it began in")

    def leave_step(self) -> None:
        """The step that is under way is profiled no further; the steps before it are written."""
        if self._is_open:
            self.close_window()
        self._stop_profiling_in_parts()

    def abandon_window(self, why: str) -> None:
        """Stop the window that is open, without its events: an exception of the training's came in between."""
        if self._is_open:
            steps = [span.step for span in self._spans] if self.layers.open is None else []
            self._lines.drop_window()
            self._memory.close()
            with DeferredSignals(), contextlib.suppress(Exception):
                self._stop_window()
            self._note("ops-lost", f"{why}: the op calls of an open window are lost", steps=steps)
        self._stop_profiling_in_parts()

    def drop_steps_from(self, step: int) -> None:
        """Drop what is recorded of the steps from this one on, which were none, and begin the plan anew."""
        spans = self._spans if self.layers.open is None else self.layers.open.spans
        spans[:] = [span for span in spans if span.step < step]
        self.close_window()
        self._stop_profiling_in_parts()
        self.steps_with_details -= {profiled for profiled in self.steps_with_details if profiled >= step}
        self.plan.reset_learnt_state()

    def _leave_overtaken_window(self) -> bool:
        """A profiler of the training's, in another thread, took the place of this window; True where ours is gone."""
        window = self._window
        if window is None or not window.is_of_this_thread():
            return window is None
        self.stopped = True
        self._alarm.clear()
        self._memory.close()
        if is_ended := window.leave(self._end_scopes):
            self._window = self.layers.open = None
        self._stop_profiling_in_parts()
        return is_ended

    def thread_ends(self) -> None:
        """A thread that trained ends: a profile of its own would outlive it, and crash the process at its end."""
        if not self._is_open:
            self._leave_overtaken_window()
        elif self.stopped:  # the run is closed
            self.abandon_window("the thread that trained has ended")
        else:
            self.leave_step()
            self._stop_for_good("the thread that trained has ended")

    def discard_in_child(self) -> None:
        """Drop the window in a forked child: it is the parent's, and no call into the profiler is safe."""
        if self._window is not None:
            kineto.forget_callbacks()
        self._window, self.layers.open, self.stopped = None, None, True
        self._stop_profiling_in_parts()

    def close(self) -> None:
        """The run ends. A profile of another thread is stopped, unwritten, when that thread next steps an optimizer."""
        self.close_window()
        self._lines.write_first_step(self._writer, self._names, self.modules)
        if self._window is None:
            self._hooks.modules.profile(False)
            return
        kineto.end_without_destructors()  # should that thread never step again
        op_windows.when_an_optimizer_steps(self._drop_unwritten)

    def _drop_unwritten(self) -> bool:
        if self._window is None or not self._window.is_of_this_thread():
            return False
        return self._stop_window() is not None if self._is_open else self._leave_overtaken_window()

    def _end_full_window(self) -> None:
        """Memory has grown beyond its peak within a window: it ends, and is the last one where its events were that."""
        window = self._window
        if window is None or not self._is_open or torch_private.in_backward():
            return
        if window.nodes_alone:
            self.close_window()
            return
        most = op_windows.max_step_events(window.shapes or window.memory)
        if self._parts.open is None:
            events = (len(self._spans) + 1) * (self.event_count.seen or op_windows.MOST_EVENTS)
            few = events < op_windows.MOST_EVENTS_PER_PART
            if few and monotonic_ns() - self._open_step[1] < _STILL_USUAL * self.plan.step_ns():  # the training grew
                self._alarm.allow_more()
                return
            self._begin_parts(self._open_step[0], set())
            self._parts.note_part_open(BEGINNING, self._open_step[1])
        self._end_part("takes memory as if it were too large")
        caught = self.event_count.caught
        if caught > most:
            self._stop_for_good(f"{caught:,} operators, most of them outside of modules, filled a window")
        elif caught < op_windows.MOST_EVENTS_PER_PART:
            self._alarm.allow_more()

    def end_window_before_swap(self) -> None:
        """A tensor is about to be swapped with another, which torch refuses where a profile knows one: it ends."""
        window = self._window
        if window is None or not self._is_open or torch_private.in_backward():
            return
        if window.nodes_alone:
            self.close_window()
            return
        if self._parts.open is None:
            self._begin_parts(self._open_step[0], set())
            self._parts.note_part_open(BEGINNING, self._open_step[1])
        self._end_part("swaps tensors, too early")

    def yield_to_other_profiler(self) -> None:
        """Somebody else wants the profiler: it is theirs from now on."""
        if not self.stopped:
            self._stop_for_good("the training started a torch profiler of its own")
            self.close_window()

    def _run_and_time(self, action: Callable[[], object], once: bool = False) -> None:
        """Run the action between steps, undisturbed; once: its cost is paid once a process, outside the budget."""
        began = monotonic_ns()
        with WithoutCollections():
            try:
                with DeferredSignals(), torch_private.bypass_torch_modes():
                    action()
            except BaseException as error:  # whatever it is, the training goes on
                if not is_ours(error):
                    raise
                self._note_loss(error)
                once = False  # a step begins behind it
        spent_ns = monotonic_ns() - began
        if once:
            self.once_ns += spent_ns
        else:
            self.paused_ns += spent_ns
            self.plan.note_cost(spent_ns, self._written, self.layers.written)
        self._written = self.layers.written = 0

    def _open(self, shapes: bool, memory: bool, in_pass: bool = False) -> None:
        self._cuda = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call] # other questions initialise it
        if self._cuda:
            torch.cuda.synchronize()
        if memory:
            self._run_memory_watch(self._memory.open)
        self._spans, self._calls = [], OptimizerCalls()
        self.updates.window_begins()
        self.event_count.window_begins()
        self._offset_ns = unix_minus_monotonic_ns()
        self._window = kineto.start_window(shapes, self._cuda, memory, in_pass)
        run_at_end_of_thread(self.thread_ends)
        self._hooks.modules.profile(True)
        if self._lines.wanted and not self._parts and self._hooks.modules.noted_by is None:
            self._hooks.modules.note(self._lines.note_window(self.modules.index))
        self._alarm.set()

    def _stop_for_good(self, why: str) -> None:
        self.stopped = True
        self._note("recording-stopped", f"{why}: ops are recorded up to here")

    def _stop_window(self) -> list[Any]:
        """Stop the profile, whatever else fails: one that ran on would fill the RAM and slow the training."""
        window, self._window, layers, self.layers.open = self._window, None, self.layers.open, None
        assert window is not None
        try:
            self._alarm.clear()
            if self._cuda:
                torch.cuda.synchronize()
        finally:
            try:
                raw = window.stop(self._end_scopes)
            except kineto.ProfileOvertaken:
                self._window, self.layers.open = window, layers
                raise
        return raw

    def _end_scopes(self) -> None:
        self._parts.end_scope()
        self._stop_noting_sites()
        self._hooks.modules.time(None)
        self._hooks.modules.profile(False)

    def _write_layer_window(self) -> None:
        layers = self.layers.settled_window()
        raw = self._stop_window()
        self.windows += 1
        if layers.spans and abs(unix_minus_monotonic_ns() - self._offset_ns) <= _CLOCK_JUMP_NS:
            part = layers.part(raw, self._offset_ns, self._names, self.modules.names())
            self.bytes_written += self._writer.write_layer_calls(part) if len(part) else 0
            self.layers.written = len(layers.spans)

    def _flush(self) -> None:
        window, parts = self._window, self._parts
        assert window is not None
        raw = self._stop_window()
        self.event_count.window_ends(len(raw))
        watched = self._memory.close()
        offset = unix_minus_monotonic_ns()
        if abs(offset - self._offset_ns) > _CLOCK_JUMP_NS:
            self._note("clock-jump", "the wall clock was set in a recorded window", jump_ns=offset - self._offset_ns)
        caught = Window(raw, self._spans, self._offset_ns, self._calls, window.shapes, self._cuda)
        if parts.open is not None:
            caught = replace(caught, places=parts.places, rows_before=parts.rows)
        self.costs.missed = False
        rows = rows_of(caught, self._names, self.modules.names(), self.costs)
        self.windows += 1
        self.updates.learn(self._calls)
        if rows.left_open and not torch_private.in_backward():  # there, no window opens before they have ended
            self._stop_for_good(f"{rows.left_open[0]} was still open at the end of a step, and torch could crash")
        if len(rows.part):
            self.event_count.seen = max(1.0, len(raw) / max(len(self._spans), 1))
            self.bytes_written += self._writer.write_ops(rows.part)
            self.rows += len(rows.part)
            self.layers.learn_from_step(rows.part)
        if parts.open is not None:
            parts.rows += len(rows.part)
            if parts.open == FORWARD:
                self.event_count.learn_from_forward()
            self._lines.drop_window()
            return
        if window.shapes or window.memory:
            self.steps_with_details.update(span.step for span in self._spans)
        else:
            self._written = len(raw) if self._spans else 0  # else they tell nothing of what a step costs
        if rows.labelled is not None:
            self._lines.store_first_step(rows.labelled, self._spans)
            self._lines.write_first_step(self._writer, self._names, self.modules, LINES_WAIT_NS)
        self.plan.learn(rows.profiles)
        if self._spans:
            self.event_count.learn_from_steps()
        if window.memory and rows.labelled is not None and self._spans:
            self._run_memory_watch(lambda: self._write_memory(caught, window.tree, watched, rows))

    def _write_memory(self, caught: Window, roots: Any, watched: WatchedStorages, rows: WindowRows) -> None:
        tree, ops = read_tree(roots, caught.shapes), rows.labelled
        assert ops is not None
        part = memory_rows(caught, tree, watched, ops, self._names.texts(), self.modules.names(), self.memory_state)
        self.bytes_written += self._writer.write_memory_events(part) if len(part) else 0
        write_accesses(self._writer, tree, rows.part, caught)

    def _run_memory_watch(self, action: Callable[[], None]) -> None:
        """Run an action of the memory watch; a failure ends the watch, and nothing else."""
        if self.plan.memory == "off":
            return
        error = self._memory.run_guarded(action)
        if error is not None:
            self.plan.memory = self.plan.memory if isinstance(error, OSError) else "off"
            self._note("memory-lost", f"{type(error).__name__}: {error}")

    def _note_loss(self, error: BaseException) -> None:
        """A disk that is full may have room again; a profiler that fails will fail again."""
        self._lines.drop_window()
        self._hooks.modules.profile(False)
        self._memory.close()
        if isinstance(error, OSError):
            self.lost_windows += 1
        else:
            self.stopped = True
        if self._is_open:  # it failed between start and stop
            with DeferredSignals(), contextlib.suppress(Exception):
                self._stop_window()
            if self._is_open:  # it keeps references to tensors, which torch refuses to swap
                kineto.end_running_profile()
                self._window = self.layers.open = None
        self._note("ops-lost", f"{type(error).__name__}: {error}", steps=[span.step for span in self._spans])
