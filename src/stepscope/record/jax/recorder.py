"""JAX's side of a session: steps as the training reports them, ops of traced steps, layers by named scopes.

JAX works on after its calls have returned. A step ends when the loss that `scope.step(loss)` was given is computed,
and what was given none ends when every array is; so it waits, where the training might not have. What it is waited for
costs is the overlap of the training's Python with the device's work.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from numbers import Number
from typing import TYPE_CHECKING, Any

import jax

from stepscope.clock import monotonic_ns
from stepscope.errors import UsageError
from stepscope.record.fault_boundary import DeferredSignals, WithoutCollections, is_ours
from stepscope.record.jax import profiler
from stepscope.record.jax.programs import Program, read_program
from stepscope.record.jax.rows import Layers, offset_ns, read_trace, rows_of
from stepscope.record.ops.rows import StepSpan
from stepscope.record.plan import WARMUP_STEPS
from stepscope.runfolder import RunWriter

if TYPE_CHECKING:
    from stepscope.record.session import Session

MOST_EVENTS = 60_000  # of several steps in one window
MOST_EVENTS_PER_STEP = 400_000  # a step that makes more is not recorded again: its events wait in RAM
EVENT_BYTES = 250  # that an event takes in RAM until it is written


class JaxRecorder:
    """The recorder of a training with JAX: ops on the CPU, times of steps on any device."""

    framework = "jax"
    knows_models = True  # the first step begins at once

    def __init__(self, session: Session) -> None:
        self._session, self._plan = session, session.plan
        if session.settings.steps_from != "calls":
            raise UsageError("with JAX the training says where a step ends", "call scope.step(loss) after each update")
        if session.plan.memory == "all":
            raise UsageError("allocations are not recorded with JAX", "leave memory as it is")
        self.layers = Layers()
        self.paused_ns = self.once_ns = 0
        self.unreported_steps = 0
        self._writer: RunWriter | None = None
        self._window: profiler.Window | None = None
        self._held: list[Any] = []  # programs that ran in the window, which the training may let go before it is read
        self._spans: list[StepSpan] = []
        self._programs: dict[tuple[str, int], Program] = {}
        self._stopped = False
        self._leaving = contextlib.ExitStack()
        self._windows = self._rows = self._bytes = self._lost = self._most = 0
        self._compile_s = self._compiled_before_s = 0.0

    # the run

    def attach(self, models: Any) -> None:
        """Note the parameters' sizes, and observe compiling and other traces."""
        self._session.boundary.call(self.layers.note_parameters, models)
        self._leaving.callback(profiler.observe_compiling(self._note_compile_time))
        guarded = self._session.boundary.guarded(self._give_way_to_other_trace)
        self._leaving.callback(profiler.before_other_traces(guarded))

    def open(self, writer: RunWriter) -> None:
        """Prepare to record into this run."""
        self._writer = writer

    def rehearse(self) -> None:
        """Do nothing: JAX is set up by the training itself."""

    def finish(self) -> None:
        """A step that was not said to have ended is none."""

    def close(self) -> None:
        """Write what is recorded, and record no more."""
        self.close_window()
        self._stopped = True

    def detach(self) -> None:
        """Stop observing."""
        self._leaving.close()

    # steps

    @property
    def recording(self) -> bool:
        """Are ops recorded? A trace is of all threads."""
        return self._window is not None

    def stepped(self, loss: Any, samples: int | None) -> bool:
        """Every step is followed."""
        return False

    def wait_for_step(self, loss: Any) -> None:
        """Return once the loss is computed; without one, once every array is. A number was waited for before.

        A loss that was deleted or donated is none.
        """
        if isinstance(loss, Number):
            return
        arrays = [leaf for leaf in jax.tree.leaves(loss) if isinstance(leaf, jax.Array) and not leaf.is_deleted()]
        for array in arrays or jax.live_arrays():  # type: ignore[no-untyped-call]
            if not array.is_deleted():
                array.block_until_ready()

    def loss_value(self, loss: Any) -> float | None:
        """The value of a loss, an array or a number; None where it is no single number."""
        if loss is None or getattr(loss, "size", 1) != 1:
            return None
        try:
            return float(loss.item() if hasattr(loss, "item") else loss)  # quicker than of an array itself
        except (TypeError, ValueError, RuntimeError, OverflowError):  # among them: of an array that was deleted
            return None

    def before_step(self, step: int, elapsed_ns: int, again: bool) -> bool:
        """Open, keep or close the window as the plan says."""
        is_profiled = not self._stopped and (again or self._plan.records(step, elapsed_ns))
        full = (len(self._spans) + 1) * self._plan.events_per_step > MOST_EVENTS
        if self._window is not None and (full or not is_profiled):
            self.close_window()
        if is_profiled and self._window is None and not self._stopped:
            self._run_between_steps(self._open_window)
        return self.recording

    def count_samples(self) -> int | None:
        """Do nothing: only the training knows its samples."""
        return None

    def after_step(self, span: StepSpan) -> None:
        """A profiled step has ended."""
        self._spans.append(span)
        self._held = profiler.live_programs()

    def step_ends(self, span: StepSpan) -> bool:
        """A step after warm-up that compiled a function anew says so; none is profiled in parts."""
        compiled_s = self._compile_s - self._compiled_before_s
        self._compiled_before_s = self._compile_s
        if compiled_s > 0 and self._session.number >= WARMUP_STEPS:
            step = self._session.number
            message = f"step {step} compiled a function for {compiled_s:.2g} s (new shapes, or a new function)"
            self._session.note("compiled-anew", message, step=step)
        return False

    def may_repeat(self, samples: int | None, flushed_ns: int) -> None:
        """Every step is followed: that takes no more than a look at the clock."""

    def end_repetition(self) -> bool:
        """Exclude what was compiled so far from the open step, which begins behind a pause; no step is predicted."""
        self._compiled_before_s = self._compile_s
        return False

    def pause(self) -> bool:
        """Return False: what is computed within a step is not seen."""
        return False

    def resume(self) -> None:
        """Do nothing: every step is reported by the training."""

    def close_window(self) -> None:
        """End the open window and write it."""
        if self._window is not None:
            self._run_between_steps(self._flush_window)
        self._held = []

    def layer_scope(self, layer: str) -> AbstractContextManager[Any]:
        """A named scope: what is traced in it is a part of this layer."""
        scope: AbstractContextManager[Any] = jax.named_scope(layer)
        return scope

    # windows

    def _open_window(self) -> None:
        if not profiler.reads_traces():
            self._stop_recording_ops(f"JAX {jax.__version__} does not read its own traces, 0.8 or newer does")
            return
        if self._stop_beside_accelerator():
            return
        self._spans = []
        self._window = profiler.Window()

    def _stop_beside_accelerator(self) -> bool:
        """End the recording of ops where JAX computes on another platform than the CPU; whether it does."""
        platform = profiler.platform()
        if platform in ("cpu", None):
            return False
        self._stop_recording_ops(
            f"ops are recorded on the CPU alone so far, and this training computes on '{platform}'"
        )
        return True

    def _flush_window(self) -> None:
        window, self._window = self._window, None
        assert window is not None
        assert self._writer is not None
        with warnings.catch_warnings():  # where they are errors, one within jaxlib ends the process (Python 3.13)
            warnings.simplefilter("ignore")
            trace = read_trace(profiler.traced_lines(window.stop()))
        self._windows += 1
        self._most = max(self._most, trace.events)
        spans, self._spans = self._spans, []
        if self._stop_beside_accelerator():  # the platform is not known before the first computation
            return
        if trace.events > MOST_EVENTS_PER_STEP * max(len(spans), 1):
            self._stop_recording_ops(f"a step makes {trace.events:,} events in the trace")
        if not spans:
            return
        self._learn_programs({call.program for call in trace.calls})
        rows = rows_of(trace, offset_ns(trace, window.marks), spans, self._programs)
        self._plan.events_per_step = max(1.0, trace.events / len(spans))
        self._written = trace.events
        if len(rows.part):
            self._bytes += self._writer.write_ops(rows.part)
            self._rows += len(rows.part)
        self._plan.learn(rows.profiles)

    def _learn_programs(self, programs: set[tuple[str, int]]) -> None:
        """Read the compiled programs that are new, once each."""
        new = programs - self._programs.keys()
        if not new:
            return
        began = monotonic_ns()
        for data in profiler.hlo_of_programs({name for name, _ in new}):
            program = read_program(data)
            self._programs.setdefault((program.name, program.number), program)
        for key in new:  # that were freed by now: their instructions keep their names alone
            program = self._programs.setdefault(key, Program(*key))
            self.layers.add_program(program)
        spent = monotonic_ns() - began
        self.once_ns += spent
        self._once_within = spent

    def _run_between_steps(self, action: Callable[[], object]) -> None:
        """Run the action between steps, undisturbed by signals and collections; a failure ends the recording of ops."""
        began = monotonic_ns()
        self._written = self._once_within = 0
        with WithoutCollections():
            try:
                with DeferredSignals():
                    action()
            except BaseException as error:
                if not is_ours(error):
                    raise
                self._note_lost_window(error)
        spent = monotonic_ns() - began - self._once_within
        self.paused_ns += spent
        self._plan.note_cost(spent, self._written)

    def _note_lost_window(self, error: BaseException) -> None:
        self._lost += 1
        if not isinstance(error, OSError):
            self._stopped = True
        steps = [span.step for span in self._spans]
        self._drop_window()
        self._session.note("ops-lost", f"{type(error).__name__}: {error}", steps=steps)

    def _drop_window(self) -> None:
        window, self._window, self._spans = self._window, None, []
        if window is not None:
            with contextlib.suppress(Exception):
                window.stop()

    def _stop_recording_ops(self, why: str) -> None:
        self._stopped = True
        self._session.note("recording-stopped", f"{why}: ops are recorded up to here")

    def _give_way_to_other_trace(self) -> None:
        if not self._stopped:
            self._stop_recording_ops("the training started a trace of its own")
        self.close_window()

    def _note_compile_time(self, seconds: float) -> None:
        self._compile_s += seconds

    # results

    def model_rows(self) -> list[dict[str, Any]]:
        """Rows of model.json: the named scopes that ops were seen in."""
        return self.layers.rows()

    def early_facts(self) -> dict[str, Any]:
        """Return nothing: JAX does not say how many threads it computes with."""
        return {}

    def run_json_fields(self, span_ns: int) -> dict[str, Any]:
        """Return what run.json says at the end of a run of this length."""
        plan = self._plan
        return {
            "recorder": {
                "mode": plan.choice.name,
                "steps_from": self._session.settings.steps_from,
                "steps_found_by": "calls",
                "recorded_steps": plan.recorded,
                "known_share": plan.known_share,
                "steps_apart": [],
                "windows": self._windows,
                "lost_windows": self._lost,
                "rows": self._rows,
                "bytes": self._bytes,
                "memory": "off",
                "held_bytes": self._most * EVENT_BYTES,
                "reserved_bytes": {},
            },
            "overhead": {
                **{"paused_ns": self.paused_ns, "once_ns": self.once_ns, "span_ns": span_ns},
                **{"event": None, "layer": None},  # not measured apart
            },
            "compile_s": self._compile_s or None,
        }

    def remarks(self) -> list[tuple[str, str]]:
        """Return what a reader should know of how the training was seen."""
        if self._rows and not self.layers.has_scopes:
            message = "no operator lies in a named scope, and only those tell layers apart"
            return [("no-named-scopes", message)]
        return []

    def why_no_steps(self) -> str:
        """Return the only reason: the training reports its steps."""
        return "scope.step() was never called"

    # faults

    def report_ended_steps(self) -> None:
        """Do nothing: every step was reported."""

    def abandon_window(self, why: str) -> None:
        """Drop the open window without writing it."""
        if self._window is not None:
            self._drop_window()
            self._session.note("ops-lost", f"{why}: the op calls of an open window are lost")

    def note_fork(self) -> None:
        """JAX warns of forks itself."""

    def discard_in_child(self) -> None:
        """Drop the trace in a forked child: it belongs to the parent."""
        self._window, self._stopped = None, True
