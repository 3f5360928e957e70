"""The one place where a training loop meets the recorders and the sampler.

`stepscope.profile` and `stepscope run` (workloads and scripts) are ways into this same session.
Telemetry never breaks training: whatever fails here is noted in the run, and the loop goes on.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stepscope.clock import anchors, monotonic_ns
from stepscope.errors import StepscopeError, UsageError
from stepscope.record import allocators, facts, torch_private
from stepscope.record.empty_process import kept_empty_process_bytes
from stepscope.record.plan import WARMUP_STEPS, Plan
from stepscope.record.recorder import OpRecorder
from stepscope.record.recorders.modules import ModuleBook, ModuleScopes
from stepscope.record.recorders.phases import MODULE_SCOPE
from stepscope.record.recorders.window import StepSpan
from stepscope.record.sampling import Sampler, start_sampler
from stepscope.record.schedule import Schedule, parse, parse_memory
from stepscope.record.sensors.contract import Meter
from stepscope.record.steps import OptimizerRounds, OutermostCalls, watch_optimizers
from stepscope.runfolder import RunWriter

_FLUSH_EVERY_NS = 500_000_000
Models = nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module] | None


@dataclass(frozen=True)
class Metering:
    """How power is learnt: meters that the user names, and what is made of the sensors that are found."""

    meters: tuple[Meter, ...] = ()
    power_model: str | None = None  # "cpu=2W..15W": estimated, by the user's choice alone
    characterise: bool = True  # measure refresh, step and filter of each power sensor, once a device
    dither: bool = True
    simulated: str | None = None  # the board that `root` pretends to be


@dataclass(frozen=True)
class Settings:
    """How a run is recorded; `steps_from` is "calls" (of `Scope.step`) or "optimizer"."""

    out: str | Path = "runs"
    name: str = "loop"
    record: str | Schedule = "adaptive"
    memory: str = "auto"  # steps whose allocations are recorded, see `schedule.MEMORY_CHOICES`
    period_ns: int = 10_000_000
    steps_from: str = "calls"
    optimizer_steps_per_step: int | None = None
    samples_per_step: int | None = None
    root: str | None = None
    metering: Metering = field(default_factory=Metering)
    facts: dict[str, Any] = field(default_factory=dict)  # what run.json says of the workload
    flops: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # forward and backward per sample, by module


class Session:
    """A run that is being recorded: `start`, any number of steps, `close`."""

    def __init__(self, settings: Settings) -> None:
        if settings.period_ns < 1_000_000:
            raise UsageError("the sampling period must be 1 ms or more", "for example --period 5ms")
        self._plan = Plan(parse(settings.record), parse_memory(settings.memory))
        self._settings = settings
        self._pid = os.getpid()
        self.writer = RunWriter.create(settings.out, settings.name)
        self._book = ModuleBook(self._found_root)
        self._scopes = ModuleScopes(self._book)
        self._recorder = OpRecorder(self.writer, self._plan, self._scopes, self.note)
        self._outermost = OutermostCalls(self._evaluated)
        self._rounds = OptimizerRounds(self._round_ended, settings.optimizer_steps_per_step)
        self._sampler: Sampler | None = None
        self._undo: list[Callable[[], None]] = []
        self._step = 0
        self._t0_ns: int | None = None
        self._began_ns = self._flushed_ns = 0
        self._recorded = False
        self._loss: Any = None
        self._samples: int | None = None
        self._steps_lost = 0
        self.closed = False

    @property
    def path(self) -> Path:
        return self.writer.path

    @property
    def steps(self) -> int:
        """Steps that have ended."""
        return self._step

    def start(self, models: Models = None) -> None:
        """Begin: sampler ready, hooks in place, first step open."""
        settings = self._settings
        self.writer.update(
            pid=self._pid,
            workload={"name": settings.name, **settings.facts.get("workload", {})},
            clock=anchors(),
            warmup_steps=WARMUP_STEPS,
            recorder={"mode": self._plan.choice.name, "steps_from": settings.steps_from},
            sampler={"period_ns": settings.period_ns},
            malloc=_malloc(),
            **_stated(settings.metering),
            **facts.of_process(),
            **{key: value for key, value in settings.facts.items() if key != "workload"},
        )
        self._quietly(lambda: self.writer.device(facts.of_device(settings.root)))
        self._start_sampler()
        for name, model in _named(models):
            self._book.add_root(model, name)
        self._undo.append(watch_optimizers(self._before_optimizer, self._after_optimizer))
        self._undo.append(torch_private.before_other_profilers(self._recorder.give_way))
        atexit.register(self._at_exit)
        self._began_ns = self._flushed_ns = monotonic_ns()
        self._scopes.find_models()
        if settings.steps_from == "calls" or self._book.roots:  # else with the first call of a model
            self._begin_step(self._began_ns)

    def step(self, loss: Any = None, samples: int | None = None) -> None:
        """One step has ended; `loss` may be a tensor (read when it is written) or a number."""
        if not self._is_mine():
            return
        self._loss, self._samples = loss, samples
        self._end_step(monotonic_ns())

    def pause(self) -> None:
        """What follows is no part of a step (evaluation, a checkpoint): nothing of it is recorded until `resume`."""
        if self._recorder.recording and self._is_mine():
            self._recorder.close_window()
            self._recorded = False

    def resume(self) -> None:
        """The open step begins now: what lay between it and the last one is no part of it."""
        if self._is_mine():
            self._t0_ns = monotonic_ns()

    def inside(self, module: nn.Module) -> torch_private.Scope:
        """A range of the step that counts as a call of this module, for code that calls a function of it instead."""
        return torch_private.make_scope(f"{MODULE_SCOPE}{self._book.index(module)}")

    def note(self, kind: str, message: str, **fields: Any) -> None:
        """Append to the run's events; a full disk loses the note, not the training."""
        self._quietly(lambda: self.writer.event(kind, message, **fields), note=False)

    def update(self, **fields: Any) -> None:
        """Merge fields into run.json."""
        self._quietly(lambda: self.writer.update(**fields))

    def close(self, status: str = "ok", reason: str | None = None) -> None:
        """End the run, whatever state it is in; safe to call twice, never raises on account of the disk."""
        if not self._is_mine():
            return
        if self._settings.steps_from == "optimizer":
            self._rounds.finish()
        self.closed = True
        atexit.unregister(self._at_exit)
        self._recorder.close()
        self._outermost.release()
        for undo in self._undo:
            undo()
        self._stop_sampler()
        if self._step == 0:
            self.note("no-steps", "no step ended while this run was recorded: " + _why_no_steps(self._settings))
        self._write_model()
        # Threads again: a script sets their number after the run has begun.
        self._quietly(
            lambda: self.writer.update(clock_end=anchors(), threads=torch.get_num_threads(), **self._outcome())
        )
        self._quietly(lambda: self.writer.device(facts.of_device(self._settings.root, self.path)))
        if not self._quietly(lambda: self.writer.close(status, reason)):
            self._quietly(lambda: self.writer.update(status=status, reason=reason))

    # steps

    def _is_mine(self) -> bool:
        """Open, and not the copy that a fork made."""
        return not self.closed and os.getpid() == self._pid

    def _begin_step(self, at_ns: int | None = None) -> None:
        paused = self._recorder.paused_ns
        elapsed = monotonic_ns() - self._began_ns
        self._recorded = self._recorder.before_step(self._step, elapsed)
        if not self._recorded:  # models that were never called are looked for while warming up
            (self._scopes.find_models if self._step < WARMUP_STEPS else self._scopes.remove)()
        moved = at_ns is None or self._recorder.paused_ns != paused
        self._t0_ns = monotonic_ns() if moved else at_ns

    def _end_step(self, t1_ns: int, late: bool = False) -> None:
        t0_ns = self._t0_ns
        if t0_ns is None:
            t0_ns = t1_ns
        counted = self._outermost.next_step(at_mark=late)
        samples = next((n for n in (self._samples, self._settings.samples_per_step, counted) if n is not None), None)
        span = StepSpan(self._step, t0_ns, t1_ns, samples)
        self._recorded = self._recorded and self._recorder.recording  # it may have ended within the step
        if self._recorded:
            self._recorder.after_step(span)
        self._plan.took(self._recorded, t1_ns - t0_ns)
        self._write_step(span)
        self._step += 1
        if self._step == WARMUP_STEPS:
            self._write_model()  # a run that is killed later has its module tree
        if late:  # the next step began in the past: nothing may be opened or closed in its midst
            self._t0_ns = t1_ns
            wanted = self._plan.records(self._step, t1_ns - self._began_ns)
            self._recorded = wanted and self._recorder.recording
        else:
            self._begin_step()

    def _write_step(self, span: StepSpan) -> None:
        loss, self._loss, self._samples = _number(self._loss), None, None
        try:
            self.writer.step(span.step, span.t0_ns, span.t1_ns, span.samples, loss, self._recorded)
            if span.t1_ns - self._flushed_ns > _FLUSH_EVERY_NS:
                self._flushed_ns = span.t1_ns
                self.writer.flush_steps()
        except OSError as error:
            self._steps_lost += 1
            if self._steps_lost == 1:
                self.note("steps-lost", f"the times of some steps could not be written: {error}", step=span.step)

    def _write_model(self) -> None:
        self._quietly(lambda: self.writer.model(facts.of_modules(self._book, self._settings.flops)))

    def _found_root(self, root: nn.Module) -> None:
        self._outermost.watch(root)
        if hasattr(root, "_orig_mod"):
            self.note("compiled", "a compiled model: ops below it carry the model's name, not their layer's")
        lazily = self._settings.steps_from == "optimizer" and self._began_ns
        if lazily and self._t0_ns is None and torch.is_grad_enabled():
            self._begin_step()

    def _evaluated(self, now_ns: int) -> None:
        """Evaluation between steps: the step begins after it, and what it ran is not kept in RAM."""
        self._rounds.finish()
        if self._recorder.recording:
            self._recorder.close_window()
            self._recorded = False
            now_ns = monotonic_ns()
        self._t0_ns = now_ns

    def _before_optimizer(self, optimizer: Any) -> None:
        if os.getpid() == self._pid:
            self._recorder.optimizer_steps(optimizer)

    def _after_optimizer(self, optimizer: Any) -> None:
        if self._settings.steps_from == "optimizer" and os.getpid() == self._pid and not self.closed:
            self._rounds.stepped(optimizer)
            self._outermost.mark()

    def _round_ended(self, t_ns: int, late: bool) -> None:
        self._end_step(t_ns, late)

    # the sampler, and the end

    def _start_sampler(self) -> None:
        try:
            metering = self._settings.metering
            self._sampler = start_sampler(
                self.path,
                self._settings.period_ns,
                root=self._settings.root,
                dither=metering.dither,
                characterise=metering.characterise,
                meters=metering.meters,
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
            self.note("sampler-lost", f"the sampling process ended early (exit code {end.exit_code})")

    def _outcome(self) -> dict[str, Any]:
        recorder, plan = self._recorder, self._plan
        return {
            "recorder": {
                "mode": plan.choice.name,
                "steps_from": self._settings.steps_from,
                "recorded_steps": plan.recorded,
                "known_share": plan.known,
                "windows": recorder.windows,
                "lost_windows": recorder.lost_windows,
                "rows": recorder.rows,
                "bytes": recorder.bytes_written,
                "memory": plan.memory,
                "reserved_bytes": recorder.memory_book.reserved,  # by device, the most that an allocator held
                "module_calls": "routed" if torch_private.can_route_calls() else "hooks",
            },
            "overhead": {"paused_ns": recorder.paused_ns, "span_ns": monotonic_ns() - self._began_ns},
            "input_shape": self._outermost.input_shape,
            "steps_lost": self._steps_lost,
        }

    def _at_exit(self) -> None:
        """The interpreter ends with the run open: a running profiler would crash it."""
        self.close("interrupted", "the process ended inside the run")

    def _quietly(self, write: Callable[[], None], note: bool = True) -> bool:
        try:
            write()
        except OSError as error:
            if note:
                self.note("write-failed", str(error))
            return False
        return True


def status_of(error: BaseException | None) -> tuple[str, str | None]:
    """(status, reason) of a run that ended with this exception."""
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return "ok", None
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", "Ctrl-C"
    text = str(error)
    ran_out = isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)) or "can't allocate memory" in text
    return ("oom" if ran_out else "failed"), reason


def _named(models: Models) -> list[tuple[str | None, nn.Module]]:
    if models is None:
        return []
    if isinstance(models, nn.Module):
        return [("", models)]
    if isinstance(models, Mapping):
        return list(models.items())
    return [(None, model) for model in models]


def _stated(metering: Metering) -> dict[str, Any]:
    """What run.json says where the user chose it."""
    chosen = {"power_model": metering.power_model, "simulated": metering.simulated}
    return {key: value for key, value in chosen.items() if value is not None}


def _malloc() -> dict[str, Any]:
    """The allocator, and what a process takes that trains nothing, where this device has measured it."""
    stated = allocators.in_force()
    return {**stated, "empty_process_bytes": kept_empty_process_bytes(stated["name"])}


def _number(loss: Any) -> float | None:
    if loss is None:
        return None
    try:
        return float(loss.detach() if isinstance(loss, torch.Tensor) else loss)
    except (TypeError, ValueError, RuntimeError):
        return None


def _why_no_steps(settings: Settings) -> str:
    if settings.steps_from == "optimizer":
        return "no torch optimizer made a step"
    return "scope.step() was never called"
