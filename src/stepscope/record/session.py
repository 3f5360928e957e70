"""The one place where a training loop meets the recorders and the sampler.

`stepscope.profile` and `stepscope run` (workloads and scripts) are ways into this same session. It hears of the
training from a `Recorder`, which knows the framework that trains, and every call comes through one `boundary`: what
fails here is noted in the run, profiling ends, and the loop goes on.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from os import getpid  # as it is now: a training may put another one in its place
from pathlib import Path
from typing import Any

from stepscope.clock import monotonic_ns, read_clocks
from stepscope.errors import StepscopeError
from stepscope.record import run_facts
from stepscope.record.fault_boundary import Boundary, DeferredSignals, clear_error_frames, fault_text, is_ours
from stepscope.record.framework import Ended, Loss, find_recorder
from stepscope.record.ops.rows import StepSpan
from stepscope.record.plan import WARMUP_STEPS, Plan
from stepscope.record.sampler.process import Sampler, start_sampler
from stepscope.record.settings import (
    FLUSH_EVERY_NS,
    Settings,
    check_settings,
    parse_memory,
    parse_schedule,
    sample_count_or_none,
)
from stepscope.runfolder import STATUSES, RunWriter


class Session:
    """A run that is being recorded: `start`, any number of steps, `close`.

    `place` gives the folder to write to; with it the run begins at the first sign of a training, without it at once.
    """

    def __init__(
        self, settings: Settings, place: Callable[[], RunWriter] | None = None, framework: str = "torch"
    ) -> None:
        check_settings(settings)
        make_recorder = find_recorder(framework)
        self.plan = Plan(parse_schedule(settings.record), parse_memory(settings.memory))
        self.settings = settings
        self.pid = getpid()  # the process that is recorded
        self._place = place
        self.boundary = Boundary(self._failed, self._drop_interrupted_window)
        self.begun = False  # a training was seen, and a run is written
        self.number = 0
        self._log = StepLog(self.note)
        self.t0_ns: int | None = None
        self.profiled = self._cut_off = False  # a pause ended the profile of the open step
        self._before_pause_ns: int | None = None  # how much of the open step was over when it paused; None: it runs
        self._noted_pause = False
        self._recorder = make_recorder(self)
        self.note_fork = self._recorder.note_fork
        self._writer = RunWriter.create(settings.out, settings.name) if place is None else None
        self._sampler: Sampler | None = None
        self._sampler_wanted, self._began_ns = False, 0
        self._notes: list[tuple[str, str, dict[str, Any]]] = []  # until there is a run to write them into
        self._loss: Any = None
        self._stated_samples: int | None = None
        self._odd_samples = False
        self.modules_bytes: int | None = None
        self._model_rows: list[dict[str, Any]] | None = None  # as they were last written
        self.closed = False
        self.fault: str | None = None  # ours, that has ended profiling
        self.status: tuple[str, str | None] = ("interrupted", "the process ended inside the run")

    @property
    def writer(self) -> RunWriter:
        """Return the writer of the run; StepscopeError before there is one."""
        if self._writer is None:
            raise StepscopeError("no training was seen yet, so that there is no run")
        return self._writer

    @property
    def path(self) -> Path:
        return self.writer.path

    @property
    def steps(self) -> int:
        """Steps that have ended."""
        return self.number + self._recorder.unreported_steps

    def start(self, models: Any = None) -> None:
        """Begin: sampler ready, recorder listening, first step open; models: those that the user names."""
        SESSIONS.add(self)
        atexit.register(self.at_exit)
        if self._writer is not None:
            self.begin()
        self._recorder.attach(models)
        self._began_ns = self._log.flushed_ns = monotonic_ns()
        if self.settings.steps_from == "calls" or self._recorder.knows_models:  # else with the first call of a model
            self.boundary.call(self.begin_step, self._began_ns)

    def step(self, loss: Any = None, samples: int | None = None) -> None:
        """One step has ended; `loss` may be a tensor (read when it is written) or a number."""
        if self.boundary.ask(self._recorder.stepped, loss, samples):
            return
        self.boundary.call(self._end_stated_step, loss, samples)

    def pause(self) -> None:
        """Exclude what follows from the step (evaluation, a checkpoint): nothing of it is recorded until `resume`."""
        self.boundary.ask(self._recorder.end_repetition)
        self.boundary.call(self._pause)

    def resume(self) -> None:
        """The open step begins now, or goes on where the pause lay within it."""
        self.boundary.ask(self._recorder.end_repetition)
        self.boundary.call(self._resume)

    def inside(self, layer: Any) -> AbstractContextManager[Any]:
        """A range of the step that counts as a call of this layer, for code that calls a function of it instead."""
        return self._recorder.layer_scope(layer)

    def note(self, kind: str, message: str, **fields: Any) -> None:
        """Append to the run's events; a full disk loses the note, not the training."""
        if self._writer is None:
            self._notes.append((kind, message, fields))
            return
        writer = self._writer
        self._run_noting_failure(lambda: writer.append_event(kind, message, **fields), note=False)

    def update(self, **fields: Any) -> None:
        """Merge fields into run.json."""
        self._run_noting_failure(lambda: self.writer.update(**fields))

    def close(self, status: str = "ok", reason: str | None = None) -> None:
        """End the run, whatever state it is in; safe to call twice, never raises on account of the disk."""
        if self.closed or getpid() != self.pid:
            return
        if status not in STATUSES[1:]:
            status, reason = "interrupted", f"it was closed as {status!r}, which is none of {', '.join(STATUSES[1:])}"
        self.status = status, reason
        self.boundary.ask(self._recorder.end_repetition)
        self.boundary.call(self._recorder.finish)
        self.boundary.open = False
        if self.begun:
            self._run_noting_failure(self._recorder.close)
        self._run_noting_failure(self._recorder.detach)
        if self._writer is not None:
            self._run_noting_failure(lambda: self._close_run(status, reason))
        self.closed = True
        atexit.unregister(self.at_exit)
        SESSIONS.discard(self)

    def pack(self) -> None:
        """Make Parquet of the closed run, in this process: for those to whom it belongs. What cannot be stays rows."""
        from stepscope.runfolder.pack import pack

        with contextlib.suppress(StepscopeError, OSError):
            pack(self.path)

    # steps that end unprofiled

    def repeated(self, ended: list[Ended], samples: int | None) -> list[StepSpan]:
        """Write steps that ended at these times, unprofiled and one right after the other; return them."""
        began_ns, spans = self.t0_ns, []
        for t1_ns, loss in ended:
            t0_ns = t1_ns if began_ns is None else began_ns
            self._log.add_step(self.writer, self.number, (t0_ns, t1_ns), samples, loss, False)
            spans.append(StepSpan(self.number, t0_ns, t1_ns, samples))
            self.number += 1
            began_ns = t1_ns
        self.t0_ns = began_ns
        self._log.flush(self.writer, began_ns or 0)
        return spans

    # the beginning

    def begin(self) -> None:
        """Open the run, now that there is a training, and write the facts of the process."""
        if not self.begun:
            with DeferredSignals():  # importlib.metadata, for one, would swallow what a signal handler raises
                self._open_run()
        if self._sampler_wanted:  # again, where an exception of the training's came in between
            self._start_sampler()
            self._sampler_wanted = False
            self._began_ns = self._log.flushed_ns = monotonic_ns()

    def _open_run(self) -> None:
        if self._writer is None:
            assert self._place is not None
            self._writer = self._place()
        self.plan.same_steps_on_all_ranks = run_facts.rank_of_process().get("world_size", 1) > 1
        self._recorder.open(self._writer)
        self.begun = True
        self._run_noting_failure(self._write_beginning)
        for kind, message, fields in self._notes:
            self.note(kind, message, **fields)
        self._notes.clear()
        self._recorder.rehearse()
        self._sampler_wanted = self.settings.sampler
        self._began_ns = self._log.flushed_ns = monotonic_ns()

    def _write_beginning(self) -> None:
        self.writer.max_disk = self.settings.metering.max_disk
        self.writer.update(
            **run_facts.run_start_facts(self.settings, self.plan.choice.name, self.pid, self._recorder.framework)
        )
        if not self.writer.is_rank:
            self._run_noting_failure(lambda: self.writer.write_device(run_facts.device_json(self.settings.root)))

    # steps

    def _end_stated_step(self, loss: Any, samples: int | None) -> None:
        self._recorder.wait_for_step(loss)
        self._end_pause()  # of a training that goes on without `resume`
        self._loss, self._stated_samples = loss, self._count_of(samples)
        self.end_step(monotonic_ns())

    def _count_of(self, samples: Any) -> int | None:
        """Return the samples that the training states of a step; null where they are no count, which is noted once."""
        count = None if samples is None else sample_count_or_none(samples)
        if samples is not None and count is None and not self._odd_samples:
            self._odd_samples = True
            text = repr(samples)[:40]
            self.note("no-count", f"samples={text} of step {self.number} is not a count: such steps count their own")
        return count

    def _pause(self) -> None:
        if self._before_pause_ns is not None:
            return
        now_ns, within_step = monotonic_ns(), self._recorder.pause()
        self._before_pause_ns = max(now_ns - self.t0_ns, 0) if within_step and self.t0_ns is not None else 0
        if within_step:
            if self.profiled and not self._noted_pause:
                self._noted_pause = True
                message = f"a pause lies within step {self.number}: such steps are not profiled"
                self.note("pause-within-step", message, step=self.number)
            self.profiled = False
        elif self._recorder.recording:
            self._recorder.close_window()
            self._cut_off, self.profiled = self.profiled, False

    def _resume(self) -> None:
        before_ns = self._end_pause()
        if self._cut_off:
            self.begin_step(again=True)
        self.t0_ns = monotonic_ns() - before_ns  # one stretch, as long as what lies outside of the pause

    def _end_pause(self) -> int:
        """Hear of the training again; return how much of the open step was over before the pause, ns."""
        if self._before_pause_ns is None:
            return 0
        before_ns, self._before_pause_ns = self._before_pause_ns, None
        self._recorder.resume()
        return before_ns

    def begin_step(self, at_ns: int | None = None, again: bool = False) -> None:
        """The open step begins: open, keep or close the window as the plan says; again: behind an evaluation."""
        if not self.begun:
            return
        paused, self._cut_off = self._recorder.paused_ns, False
        self.profiled = self._recorder.before_step(self.number, monotonic_ns() - self._began_ns, again)
        self.t0_ns = monotonic_ns() if at_ns is None or self._recorder.paused_ns != paused else at_ns

    def end_step(self, t1_ns: int, late: bool = False) -> None:
        """The open step ended then, and the next one begins; late: it has begun by now."""
        if not self.begun:
            self.begin()
        recorder = self._recorder
        t0_ns = t1_ns if self.t0_ns is None else self.t0_ns
        stated = self._stated_samples, self.settings.samples_per_step, recorder.count_samples()
        samples, loss = next((n for n in stated if n is not None), None), recorder.loss_value(self._loss)
        self._stated_samples = self._loss = None
        self.profiled = self.profiled and recorder.recording  # it may have ended within the step
        span = StepSpan(self.number, t0_ns, t1_ns, samples)
        if self.profiled:
            recorder.after_step(span)
        if recorder.step_ends(span):
            self.plan.postpone_shapes()
        else:
            self.plan.note_step_length(self.profiled, t1_ns - t0_ns)
        self._log.add_step(self.writer, self.number, (t0_ns, t1_ns), samples, loss, self.profiled)
        self._log.flush(self.writer, t1_ns)
        self.number += 1
        if self.number == WARMUP_STEPS:
            self._write_model()  # a run that is killed later has its module tree, threads, and its first steps
            self._run_noting_failure(lambda: self.writer.update(**self._recorder.early_facts()))
            self._log.flushed_ns = 0
        if late:  # the next step began in the past: nothing may be opened or closed in its midst
            self.t0_ns = t1_ns
            self.profiled = self.plan.records(self.number, t1_ns - self._began_ns) and recorder.recording
            recorder.end_repetition()
        else:
            self.next_step(samples)

    def next_step(self, samples: int | None) -> None:
        """The next step begins: it may be profiled, or repeat the last one, which had so many samples."""
        self.begin_step()
        if not self.profiled and self.number > WARMUP_STEPS:
            self._recorder.may_repeat(samples, self._log.flushed_ns)

    def join_steps(self, first_ns: int, ends_ns: tuple[int, ...]) -> int | None:
        """Make steps that end at these times of those since the one in which `first_ns` lies."""
        joined = self._log.replace_steps(self.writer, first_ns, ends_ns)
        if joined is None:
            return None
        step, self.t0_ns = joined
        self.number = step + len(ends_ns)
        return step

    def _write_model(self) -> None:
        def write() -> None:
            rows = self._recorder.model_rows()
            if rows != self._model_rows:  # at the end they are mostly the same as after the warm-up
                self.writer.write_model(rows)
                self._model_rows = rows

        self._run_noting_failure(write)

    # faults

    def _failed(self, error: BaseException) -> None:
        """Ours, of any kind: tell it in the run, and let the training be."""
        self.profiled, self.fault = False, fault_text(error)
        self._run_noting_failure(self._recorder.report_ended_steps)
        self._run_noting_failure(lambda: self._recorder.abandon_window("profiling failed"))
        self._run_noting_failure(self._recorder.detach)
        # With the frames of ours, too, that a route has hidden until now.
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        self.note("profiling-failed", self.fault, step=self.number, traceback="".join(lines)[-4000:])

    def _drop_interrupted_window(self) -> None:
        """An exception of the training's came while our code ran: a window may be half open."""
        self._recorder.abandon_window("an exception of the training's was raised while it was written")

    def forked(self) -> None:
        """Leave the run in a forked child: it is no part of it."""
        self.boundary.close_in_child()
        self.closed = True
        atexit.unregister(self.at_exit)
        self._recorder.discard_in_child()
        self._recorder.detach()

    # the sampler, and the end

    def _start_sampler(self) -> None:
        try:
            self._sampler = start_sampler(
                self.path, self.settings.period_ns, root=self.settings.root, metering=self.settings.metering
            )
        except (StepscopeError, OSError) as error:
            self.note("sampler-failed", str(error))

    def _stop_sampler(self) -> None:
        if self._sampler is None:
            return
        try:
            end = self._sampler.stop()
        except OSError as error:
            self.note("sampler-lost", f"the sampling process could not be stopped: {error}")
            return
        if end.died_early:
            self.note("sampler-lost", f"the sampling process ended early: {end.reason}")

    def _close_run(self, status: str, reason: str | None) -> None:
        self._run_noting_failure(self._stop_sampler)
        if self.number == 0:
            why = self.why_no_steps
            self._run_noting_failure(
                lambda: self.note("no-steps", f"no step ended while this run was recorded: {why()}")
            )
        else:
            self._run_noting_failure(self._note_remarks)
        self._write_model()
        facts: dict[str, Any] = {"clock_end": read_clocks(), "steps_lost": 0}
        self._run_noting_failure(lambda: facts.update(**run_facts.rank_of_process(), **self._run_json_at_end()))
        if not self.writer.is_rank:
            self._run_noting_failure(
                lambda: self.writer.write_device(run_facts.device_json(self.settings.root, self.path))
            )
        self._run_noting_failure(lambda: self._log.close(self.writer, status, reason, facts))

    def _note_remarks(self) -> None:
        for kind, message in self._recorder.remarks():
            self.note(kind, message)

    def why_no_steps(self) -> str:
        """The reason why there is no step, as far as it was seen, and what helps."""
        if self.fault is not None:
            return self.fault
        if self.settings.steps_from != "optimizer":
            return "scope.step() was never called"
        return self._recorder.why_no_steps()

    def _run_json_at_end(self) -> dict[str, Any]:
        outcome = self._recorder.run_json_fields(monotonic_ns() - self._began_ns)
        recorder = {**outcome.pop("recorder"), "modules_bytes": self.modules_bytes}  # of code for profiling alone
        return {**outcome, "recorder": recorder}

    def at_exit(self) -> None:
        """The interpreter ends with the run open: a running profiler would crash it."""
        try:
            with DeferredSignals():  # a second Ctrl-C would cost what is not on the disk yet
                self.close(*self._last_status())
        except BaseException as error:
            if not is_ours(error):
                raise

    def _last_status(self) -> tuple[str, str | None]:
        """Return how this process ends; of one that nobody follows, an exception that ended it tells."""
        uncaught = getattr(sys, "last_value", None)
        if uncaught is None:  # of a child of multiprocessing's, which is on its way through the finalizers
            uncaught = sys.exc_info()[1]
        return self.status if self.status[0] != "ok" or uncaught is None else run_facts.status_of(uncaught)

    def _run_noting_failure(self, action: Callable[[], Any], note: bool = True) -> None:
        """Run the action; a failure on our side is noted, and nothing else happens."""
        try:
            action()
        except BaseException as error:
            if not is_ours(error):
                raise
            if note:
                self.note("write-failed", f"{type(error).__name__}: {error}")
            clear_error_frames(error)


_KEPT = 512  # that can still be joined


class StepLog:
    """Writes steps and notes when the disk refuses them."""

    def __init__(self, note: Callable[..., None]) -> None:
        self._note = note
        self._last: deque[tuple[int, int, int]] = deque(maxlen=_KEPT)  # number, beginning and end
        self._waiting: list[tuple[int, int, int, int | None, Loss, bool]] = []  # for losses that are read later
        self.flushed_ns = 0
        self._refused = self._diverged = False  # by the disk; a loss was NaN

    def add_step(
        self,
        writer: RunWriter,
        step: int,
        span_ns: tuple[int, int],
        samples: int | None,
        loss: Loss,
        whole: bool,
    ) -> None:
        """Write a step of this span; whole: its ops are recorded as a whole."""
        self._waiting.append((step, *span_ns, samples, loss, whole))
        if len(self._waiting) == 1 and not callable(loss):
            self._read_losses(writer)
        self._last.append((step, *span_ns))

    def flush(self, writer: RunWriter, now_ns: int) -> None:
        """Bring the steps so far to the disk, where the last time is long enough ago."""
        if now_ns - self.flushed_ns <= FLUSH_EVERY_NS:
            return
        self.flushed_ns = now_ns
        self._read_losses(writer)
        try:
            writer.flush_steps()
        except OSError as error:
            if not self._refused:
                self._refused = True
                why = f"the times of some steps could not be written, and wait in RAM: {error}"
                self._note("steps-lost", why, step=self._last[-1][0])

    def close(self, writer: RunWriter, status: str, reason: str | None, facts: dict[str, Any]) -> None:
        """Write what waits for its loss, and close the run with these facts of its end."""
        try:
            self._read_losses(writer)
        finally:
            try:
                writer.close(status, reason, **facts)
            finally:
                if writer.steps_dropped:
                    writer.update(steps_lost=writer.steps_dropped)

    def _read_losses(self, writer: RunWriter) -> None:
        while self._waiting:  # an interrupt, which a wait for an accelerator invites, loses none of them
            step, t0_ns, t1_ns, samples, loss, whole = self._waiting[0]
            value = loss() if callable(loss) else loss
            writer.append_step(step, t0_ns, t1_ns, samples, value, whole)
            del self._waiting[0]
            if value is not None and value != value and not self._diverged:  # in its row NaN reads as none
                self._diverged = True
                self._note("loss-nan", f"the loss of step {step} is NaN, and is not stored", step=step)

    def replace_steps(self, writer: RunWriter, first_ns: int, ends_ns: tuple[int, ...]) -> tuple[int, int] | None:
        """Make steps that end at these times of those since the one in which `first_ns` lies.

        Return the number of the first of them, and when the open step begins; None where they cannot be taken back.
        """
        self._read_losses(writer)
        step, begin_ns, _ = next((entry for entry in self._last if entry[2] >= first_ns), (None, 0, 0))
        if step is None or (step and step == self._last[0][0]) or not writer.drop_steps_from(step):
            return None
        what = f"{len(ends_ns)} rounds of optimizers" if ends_ns else "none, since an optimizer updates"
        count = self._last[-1][0] + 1 - step + (len(ends_ns) > 0)
        self._note("steps-joined", f"{count} updates since step {step} were found to be {what}", step=step)
        self._last.clear()
        for number, end_ns in enumerate(ends_ns, step):
            self.add_step(writer, number, (begin_ns, end_ns), None, None, False)
            begin_ns = end_ns
        return step, begin_ns


SESSIONS: set[Any] = set()  # each hears of it by `forked` and `forks`


def _leave_sessions_in_child() -> None:
    kineto: Any = sys.modules.get("stepscope.record.kineto")
    if kineto is not None:  # a training with torch
        kineto.end_forked_children_early()
    for session in list(SESSIONS):
        with contextlib.suppress(Exception):  # nothing of ours may reach a child of the training's
            session.forked()
    SESSIONS.clear()


def _note_fork_in_sessions() -> None:
    for session in list(SESSIONS):
        session.note_fork()


os.register_at_fork(after_in_child=_leave_sessions_in_child, after_in_parent=_note_fork_in_sessions)
