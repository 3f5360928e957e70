"""The one place where a training loop meets the recorders and the sampler.

`stepscope.profile` and `stepscope run` (workloads and scripts) are ways into this same session. It hears of the
training through `routes`, and every call comes through one `boundary`: what fails here is noted in the run, profiling
ends, and the loop goes on.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stepscope.clock import anchors, monotonic_ns
from stepscope.errors import StepscopeError
from stepscope.record import facts, torch_private
from stepscope.record.batch_axis import BatchWitness
from stepscope.record.boundary import Boundary, Undisturbed, is_ours
from stepscope.record.forks import SESSIONS
from stepscope.record.gradient_threads import Trainers
from stepscope.record.memory.watch import MemoryWatch
from stepscope.record.ops.events import MODULE_SCOPE, OPTIMIZER_STEP
from stepscope.record.ops.modules import Models, ModuleBook, named_models
from stepscope.record.ops.rows import StepSpan
from stepscope.record.ops.source_lines import CallSites
from stepscope.record.plan import WARMUP_STEPS, Plan
from stepscope.record.recorder import OpRecorder
from stepscope.record.repeats import FLUSH_EVERY_NS, Ended, Repeats
from stepscope.record.sampler.process import Sampler, start_sampler
from stepscope.record.settings import Settings, check_settings, parse_memory, parse_schedule
from stepscope.record.steps import StepFinder, why_no_steps
from stepscope.record.torch_hooks import Routes
from stepscope.runfolder import RunWriter


class Session:
    """A run that is being recorded: `start`, any number of steps, `close`.

    `place` gives the folder to write to; with it the run begins at the first sign of a training, without it at once.
    """

    def __init__(self, settings: Settings, place: Callable[[], RunWriter] | None = None) -> None:
        check_settings(settings)
        self._plan = Plan(parse_schedule(settings.record), parse_memory(settings.memory))
        self._settings = settings
        self._pid = os.getpid()
        self._place = place
        self._writer = RunWriter.create(settings.out, settings.name) if place is None else None
        self._recorder: OpRecorder | None = None
        self._boundary = Boundary(self._failed, self._disturbed)
        self._repeats = Repeats(self._boundary, self)
        self._routes = Routes(self._boundary, self, self._repeats)
        self._book = ModuleBook(self._found_root)
        self._trainers = Trainers()
        self._finder = StepFinder(
            self._trainers,
            settings.steps_from == "optimizer",
            settings.optimizer_steps_per_step,
            self._end_step,
            self._excluded,
            self._note_calls,
        )
        self._sampler: Sampler | None = None
        self._sampler_wanted = False
        self._ending: list[Callable[[], None]] = []
        self._notes: list[tuple[str, str, dict[str, Any]]] = []  # until there is a run to write them into
        self._step = self._steps_lost = 0
        self._t0_ns: int | None = None
        self._began_ns = self._flushed_ns = 0
        self._recorded = False
        self._begins_anew = self._anew = False  # recorded from the end of the evaluation at its beginning: will be, is
        self._evaluated_first = 0  # steps that were to be recorded and began with evaluation, since one that did not
        self._loss: Any = None
        self._stated_samples: int | None = None
        self.modules_bytes: int | None = None
        self._model_rows: list[dict[str, Any]] | None = None  # as they were last written
        self.closed = False
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
        return self._step + self._repeats.untold

    @property
    def begun(self) -> bool:
        """Return whether a training was seen, and a run is written."""
        return self._recorder is not None

    @property
    def pid(self) -> int:
        """The process that is recorded."""
        return self._pid

    def start(self, models: Models = None) -> None:
        """Begin: sampler ready, routes in place, first step open."""
        SESSIONS.add(self)
        atexit.register(self._at_exit)
        if self._writer is not None:
            self._begin()
        for name, model in named_models(models):
            self._boundary.call(self._book.add_root, model, name)
        self._routes.install()
        self._ending.append(self._routes.remove)
        self._ending.append(torch_private.before_other_profilers(self._boundary.guarded(self._other_profiler)))
        self._began_ns = self._flushed_ns = monotonic_ns()
        if self._settings.steps_from == "calls" or self._book.roots:  # else with the first call of a model
            self._boundary.call(self._begin_step, self._began_ns)

    def step(self, loss: Any = None, samples: int | None = None) -> None:
        """One step has ended; `loss` may be a tensor (read when it is written) or a number."""
        if self._boundary.asks(self._repeats.stepped, loss, samples):
            return
        self._boundary.call(self._stepped, loss, samples)

    def pause(self) -> None:
        """Exclude what follows from the step (evaluation, a checkpoint): nothing of it is recorded until `resume`."""
        self._boundary.asks(self._repeats.differs)
        self._boundary.call(self._pause)

    def resume(self) -> None:
        """The open step begins now: what lay between it and the last one is no part of it."""
        self._boundary.asks(self._repeats.differs)
        self._boundary.call(self._resume)

    def inside(self, module: nn.Module) -> torch_private.Scope:
        """A range of the step that counts as a call of this module, for code that calls a function of it instead."""
        index = self._boundary.call(self._book.index, module)
        return torch_private.make_scope("call" if index is None else f"{MODULE_SCOPE}{index}")

    def note(self, kind: str, message: str, **fields: Any) -> None:
        """Append to the run's events; a full disk loses the note, not the training."""
        if self._writer is None:
            self._notes.append((kind, message, fields))
            return
        writer = self._writer
        self._safely(lambda: writer.event(kind, message, **fields), note=False)

    def update(self, **fields: Any) -> None:
        """Merge fields into run.json."""
        self._safely(lambda: self.writer.update(**fields))

    def close(self, status: str = "ok", reason: str | None = None) -> None:
        """End the run, whatever state it is in; safe to call twice, never raises on account of the disk."""
        if self.closed or os.getpid() != self._pid:
            return
        self.status = status, reason
        self._boundary.asks(self._repeats.differs)
        self._boundary.call(self._finder.finish)
        self._boundary.open = False
        if self._recorder is not None:
            self._safely(self._recorder.close)
        while self._ending:
            self._safely(self._ending.pop())
        if self._writer is not None:
            self._safely(lambda: self._close_run(status, reason))
        self.closed = True
        atexit.unregister(self._at_exit)
        SESSIONS.discard(self)

    def pack(self) -> None:
        """Make Parquet of the closed run, in this process: for those to whom it belongs. What cannot be stays rows."""
        from stepscope.runfolder.pack import pack

        with contextlib.suppress(StepscopeError, OSError):
            pack(self.path)

    # the listener of the routes: what the training does

    def called(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module is called that no other module calls."""
        if not self._book.knows(module):
            self._book.add_root(module)
        if self._recorder is None and not (torch.is_grad_enabled() and self._book.learns(module)):
            self._finder.signs["calls"] += 1  # no training so far: a transform in a worker, inference
            return
        self._begin()
        self._finder.called(module, args, kwargs)
        if self._finder.awaits_output:
            self._repeats.differs()
        self._open_step()
        if self._recorder is None or not torch.is_grad_enabled():
            return
        if self._recorded:
            self._recorder.called(args, kwargs)
            self._look()
        else:
            self._recorder.works()

    def returned(self, module: nn.Module, output: Any) -> None:
        """It has returned."""
        if self._recorder is not None:
            self._finder.returned(module, output)

    def raised(self, module: nn.Module) -> None:
        """It has ended with an exception."""
        self._repeats.differs()
        self._finder.raised(module)

    def compiled(self, module: nn.Module) -> None:
        """A model was compiled in place: its calls pass us by, and what it is made of is known."""
        if self._recorder is not None:
            self._repeats.follow()
            self._book.add_root(module)
            self.note("compiled", "a compiled model: ops below it carry the model's name, not their layer's")

    def before_optimizer(self, optimizer: Any) -> None:
        """An optimizer is about to update."""
        self._begin()
        self._finder.before_update()
        if self._recorder is not None:
            self._look()
            self._recorder.updates(optimizer)
            self._recorder.optimizer_steps(optimizer)

    def after_optimizer(self, optimizer: Any) -> None:
        """An optimizer has updated: the step may have ended."""
        if self._recorder is not None:
            self._recorder.updates(None)
        self._finder.after_update(optimizer)

    def skipped_update(self) -> None:
        """A gradient scaler left an update out."""
        self._repeats.follow()
        self.note("update-skipped", "a gradient scaler skipped an update: its time is in no step", step=self._step)
        self._finder.skipped_update()

    def swaps(self) -> None:
        """Two tensors are about to be swapped."""
        self._finder.swaps()
        if self._recorder is not None:
            self._recorder.swaps()

    def before_backward(self, roots: Any, inputs: Any) -> None:
        """Gradients are about to be computed."""
        self._trainers.computes()
        self._begin()
        self._finder.before_backward(roots, inputs)
        self._open_step()
        self._look(before_pass=True)
        if self._recorder is not None:
            self._recorder.mark("backward")
            self._recorder.before_pass(roots, inputs)

    def after_backward(self) -> None:
        """Gradients are computed."""
        self._finder.after_backward(self._repeats.replaying)
        if self._recorder is not None:
            self._recorder.after_pass()
            self._look()

    def backward_raised(self) -> None:
        """An exception has ended a backward pass."""
        self._repeats.differs()
        self._finder.backward_raised()
        if self._recorder is not None:
            self._recorder.after_pass()

    def batch(self, iterator: Any, batch: Any) -> None:
        """A data loader gave a batch."""
        self._finder.batch(iterator, batch)
        if self._recorder is not None:
            self._recorder.mark("data")

    def makes_scope(self, module: nn.Module) -> torch_private.Scope:
        """The range of a module's call in the window that records now."""
        return torch_private.make_call_scope(f"{MODULE_SCOPE}{self._book.index(module)}")

    def many_calls(self) -> None:
        """Many modules were called in a profiled step: is it still small enough?"""
        self._look()

    def optimizer_scope(self, optimizer: Any) -> torch_private.Scope:
        """The range by which a torch optimizer announces itself, for another."""
        return torch_private.make_scope(f"{OPTIMIZER_STEP}{type(optimizer).__name__}.step")

    # steps that repeat

    def fetched(self, iterator: Any, samples: int | None) -> None:
        """A data loader gave so many samples, earlier in the open step."""
        self._finder.fetched(iterator, samples)

    def repeated(self, ended: list[Ended], samples: int | None, sequence: int) -> None:
        """Write the steps that were not followed, and make up for what they would have changed."""
        began_ns, lengths_ns = self._t0_ns, []
        for t1_ns, loss in ended:
            t0_ns = t1_ns if began_ns is None else began_ns
            self.writer.step(self._step, t0_ns, t1_ns, samples, loss, False)
            self._step += 1
            lengths_ns.append(t1_ns - t0_ns)
            began_ns = t1_ns
        self._t0_ns = began_ns
        self._flush_steps(began_ns or 0)
        self._plan.waited(lengths_ns)
        self._finder.repeated(len(ended))
        if self._recorder is not None:
            self._recorder.step_begins(sequence)

    # the beginning

    def _begin(self) -> None:
        """There is a training: open the run, and write what is known of the process."""
        if self._recorder is None:
            with Undisturbed():  # importlib.metadata, for one, would swallow what a signal handler raises
                self._open_run()
        if self._sampler_wanted:  # again, where an exception of the training's came in between
            self._start_sampler()
            self._sampler_wanted = False
            self._began_ns = self._flushed_ns = monotonic_ns()

    def _open_run(self) -> None:
        if self._writer is None:
            assert self._place is not None
            self._writer = self._place()
        self._plan.together = facts.rank_of_process().get("world_size", 1) > 1
        memory = MemoryWatch(self._book, self._trainers)
        self._recorder = OpRecorder(self._writer, self._plan, memory, self._routes, self.note, self._boundary.guarded)
        self._safely(self._write_beginning)
        for kind, message, fields in self._notes:
            self.note(kind, message, **fields)
        self._notes.clear()
        self._recorder.rehearse()
        self._sampler_wanted = self._settings.sampler
        self._began_ns = self._flushed_ns = monotonic_ns()

    def _write_beginning(self) -> None:
        self.writer.max_disk = self._settings.metering.max_disk
        self.writer.update(**facts.of_beginning(self._settings, self._plan.choice.name, self._pid))
        if not self.writer.is_rank:
            self._safely(lambda: self.writer.device(facts.of_device(self._settings.root)))

    # steps

    def _stepped(self, loss: Any, samples: int | None) -> None:
        self._loss, self._stated_samples = loss, samples
        self._end_step(monotonic_ns())

    def _pause(self) -> None:
        if self._recorder is not None and self._recorder.recording:
            self._recorder.close_window()
            self._recorded = False

    def _resume(self) -> None:
        self._t0_ns = monotonic_ns()

    def _begin_step(self, at_ns: int | None = None, again: bool = False) -> None:
        recorder = self._recorder
        if recorder is None:
            return
        paused = recorder.paused_ns
        elapsed = monotonic_ns() - self._began_ns
        self._recorded = recorder.before_step(self._step, elapsed, again)
        self._begins_anew, self._anew = False, again
        moved = at_ns is None or recorder.paused_ns != paused
        self._t0_ns = monotonic_ns() if moved else at_ns

    def _end_step(self, t1_ns: int, late: bool = False) -> None:
        if self._recorder is None:
            self._begin()
        recorder = self._recorder
        assert recorder is not None
        t0_ns = t1_ns if self._t0_ns is None else self._t0_ns
        counted = self._finder.step_ended()
        stated, loss = self._stated_samples, torch_private.number_in(self._loss)
        self._stated_samples = self._loss = None
        samples = next((n for n in (stated, self._settings.samples_per_step, counted) if n is not None), None)
        span = StepSpan(self._step, t0_ns, t1_ns, samples)
        self._recorded = self._recorded and recorder.recording  # it may have ended within the step
        if self._recorded:
            recorder.after_step(span)
            if not self._anew:
                self._evaluated_first = 0
        if not recorder.step_ends(span):
            self._plan.took(self._recorded, t1_ns - t0_ns)
        self.writer.step(self._step, t0_ns, t1_ns, samples, loss, self._recorded)
        self._flush_steps(t1_ns)
        self._step += 1
        self._repeats.step_ended()
        if self._step == WARMUP_STEPS:
            self._write_model()  # a run that is killed later has its module tree, and its first steps
            self._flushed_ns = 0
        if late:  # the next step began in the past: nothing may be opened or closed in its midst
            self._t0_ns = t1_ns
            wanted = self._plan.records(self._step, t1_ns - self._began_ns)
            self._recorded = wanted and recorder.recording
            self._repeats.differs()
        else:
            self._begin_step()
            if not self._recorded and self._step > WARMUP_STEPS and self._finder.repeats:
                self._repeats.may_begin(self._plan.steps_unprofiled(self._step), samples, self._flushed_ns)

    def _flush_steps(self, now_ns: int) -> None:
        if now_ns - self._flushed_ns <= FLUSH_EVERY_NS:
            return
        self._flushed_ns = now_ns
        try:
            self.writer.flush_steps()
        except OSError as error:
            self._steps_lost += 1
            if self._steps_lost == 1:
                self.note("steps-lost", f"the times of some steps could not be written: {error}", step=self._step)

    def _open_step(self) -> None:
        """The first step of a training that says nothing of its steps begins with its first work."""
        if (self._t0_ns is None or self._begins_anew) and torch.is_grad_enabled():
            self._begin_step(again=self._begins_anew)

    def _excluded(self, now_ns: int) -> None:
        """Begin the step now: what went before is no part of it, and what was recorded is dropped from RAM."""
        if self._recorder is not None and self._recorder.recording:
            self._recorder.close_window()
            self._evaluated_first += self._recorded
            self._begins_anew = self._recorded and self._evaluated_first > 1  # each time: else none would be recorded
            self._recorded = False
            now_ns = monotonic_ns()
        self._t0_ns = now_ns

    def _look(self, before_pass: bool = False) -> None:
        recorder, t0_ns = self._recorder, self._t0_ns
        if recorder is None or t0_ns is None or not recorder.recording:
            return
        if recorder.look(self._step, t0_ns, before_pass):
            self._recorded = False

    # modules

    def _note_calls(self, witness: BatchWitness | None) -> bool:
        """Tell a witness of the calls that follow, unless somebody else hears of them; nobody, where it is None."""
        noted_by = self._routes.calls_noted_by
        if isinstance(noted_by, CallSites):
            noted_by.also = witness
            return True
        if noted_by is not None and not isinstance(noted_by, BatchWitness):
            return False
        self._routes.note_calls(witness)
        return True

    def _found_root(self, root: nn.Module) -> None:
        if "_orig_mod" in (vars(root).get("_modules") or {}):
            self.note("compiled", "a compiled model: ops below it carry the model's name, not their layer's")

    def _write_model(self) -> None:
        shares = {} if self._recorder is None else self._recorder.update_shares()

        def write() -> None:
            rows = facts.of_modules(self._book, self._settings.flops, shares)
            if rows != self._model_rows:  # at the end they are mostly the same as after the warm-up
                self.writer.model(rows)
                self._model_rows = rows

        self._safely(write)

    def _other_profiler(self) -> None:
        if self._recorder is not None:
            self._recorder.give_way()

    # faults

    def _failed(self, error: BaseException) -> None:
        """Ours, of any kind: tell it in the run, and let the training be."""
        self._recorded = False
        self._safely(self._repeats.tell)
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        if self._recorder is not None:
            recorder = self._recorder
            self._safely(lambda: recorder.abandon_window("profiling failed"))
        self._safely(self._routes.remove)
        self.note(
            "profiling-failed",
            f"a fault in Stepscope ended profiling, the training goes on: {type(error).__name__}: {error}",
            step=self._step,
            traceback="".join(lines)[-4000:],
        )

    def _disturbed(self) -> None:
        """An exception of the training's came while our code ran: a window may be half open."""
        if self._recorder is not None:
            self._recorder.abandon_window("an exception of the training's was raised while it was written")

    def forked(self) -> None:
        """This process is a copy that a fork made: it is no part of the run."""
        self._boundary.forked()
        self.closed = True
        atexit.unregister(self._at_exit)
        if self._recorder is not None:
            self._recorder.forget()
        self._ending.clear()
        self._routes.remove()

    def forks(self) -> None:
        """This process has made a copy of itself."""
        self._finder.signs["forks"] += 1

    # the sampler, and the end

    def _start_sampler(self) -> None:
        try:
            settings = self._settings
            self._sampler = start_sampler(self.path, settings.period_ns, root=settings.root, metering=settings.metering)
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
            self.note("sampler-lost", f"the sampling process ended early (exit code {end.exit_code})")

    def _close_run(self, status: str, reason: str | None) -> None:
        self._safely(self._stop_sampler)
        if self._step == 0:
            why = self.why_no_steps
            self._safely(lambda: self.note("no-steps", f"no step ended while this run was recorded: {why()}"))
        if self._step and self._finder.calls_no_module:
            self.note(
                "no-module-calls",
                "gradients were computed, and never of what a call of a module had computed: the training calls "
                "'forward' of its modules itself, or uses functions alone, and only calls of modules tell layers apart",
            )
        self._write_model()
        # Threads again: a script sets their number after the run has begun.
        self._safely(
            lambda: self.writer.update(
                clock_end=anchors(), threads=torch.get_num_threads(), **facts.rank_of_process(), **self._outcome()
            )
        )
        if not self.writer.is_rank:
            self._safely(lambda: self.writer.device(facts.of_device(self._settings.root, self.path)))
        self._safely(lambda: self.writer.close(status, reason))

    def why_no_steps(self) -> str:
        """The reason why there is no step, as far as it was seen, and what helps."""
        if self._settings.steps_from != "optimizer":
            return "scope.step() was never called"
        return why_no_steps(self._finder.signs)

    def _outcome(self) -> dict[str, Any]:
        recorder = self._recorder
        assert recorder is not None
        return {
            "recorder": {
                **facts.of_recording(recorder, self._settings.steps_from, self._finder.detected_by),
                "modules_bytes": self.modules_bytes,  # of code, loaded for profiling alone
            },
            "overhead": facts.of_overhead(recorder, monotonic_ns() - self._began_ns),
            "compile_s": torch_private.compile_seconds(),
            "input_shape": self._finder.input_shape,
            "steps_lost": self._steps_lost,
        }

    def _at_exit(self) -> None:
        """The interpreter ends with the run open: a running profiler would crash it."""
        self.close(*self.status)

    def _safely(self, action: Callable[[], Any], note: bool = True) -> None:
        """Do it; what fails on our side is noted and nothing else."""
        try:
            action()
        except BaseException as error:
            if not is_ours(error):
                raise
            if note:
                self.note("write-failed", f"{type(error).__name__}: {error}")
