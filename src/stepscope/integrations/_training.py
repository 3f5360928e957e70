"""One run of somebody else's trainer: begun once the trainer is ready, ended once, whatever the trainer leaves out.

Trainers forget: no callback hears of an exception (Hugging Face, Keras), `on_train_end` may never come, and may come
twice. Trainers copy: what is pickled or deep-copied of a callback is an idle one with the same options. Nothing that
fails in here reaches the training; only an option that cannot be meant is refused, when the callback is made.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

import stepscope
from stepscope.clock import PERIOD_NS
from stepscope.errors import StepscopeError, UsageError
from stepscope.integrations._library_hooks import Listener, class_of_library, listen, same_object_test, try_call
from stepscope.record.fault_boundary import Boundary
from stepscope.record.ops.modules import Models
from stepscope.record.profile import Scope
from stepscope.record.run_facts import status_of
from stepscope.record.settings import parse_memory, parse_schedule, sampling_period_ns
from stepscope.record.torch_private import bypass_torch_modes

if TYPE_CHECKING:
    from stepscope import Run

T = TypeVar("T")
_Call = tuple[int, CodeType]  # the address of a frame, and its function
_OPEN: set[TrainingRun] = set()
_NO_END = "a new training began before the trainer said that this one had ended"


class TrainingRun:
    """The run that a callback records, at most one at a time; options are those of `stepscope.profile`."""

    def __init__(self, **options: Any) -> None:
        parse_schedule(options.get("record", "adaptive"))
        parse_memory(options.get("memory", "off"))
        if sampling_period_ns(options.get("period", PERIOD_NS / 1e9), options.get("period_ms")) < 1_000_000:
            raise UsageError("the sampling period must be 1 ms or more", 'for example period="5ms"')
        stepscope.profile(None, **options)  # what is refused is refused here, not after an hour of preparation
        self._options = options
        self._boundary = Boundary(self._failed)
        self._pid = os.getpid()
        self._scope: Scope | None = None
        self._undo: list[Callable[[], None]] = []
        self._losses: list[Any] = []
        self._samples: int | None = None
        self._batches = 0
        self._noted: set[str] = set()  # kinds of events, once a run
        self._paused = self._in_batch = False
        self._call: _Call | None = None
        self.steps = 0
        self.path: Path | None = None

    def __reduce__(self) -> tuple[Callable[..., TrainingRun], tuple[dict[str, Any]]]:
        """A copy records nothing until a trainer begins with it: files, processes and clocks of a run are its own."""
        options = dict(self._options)
        if options.get("simulation") is not None:
            options["simulation"] = _SimulatedBoard(options["simulation"].board, options["simulation"].root)
        return _new_training_run, (options,)

    @property
    def open(self) -> bool:
        """Return whether a run is being recorded, by this process."""
        return self._scope is not None and self._pid == os.getpid()

    @property
    def run(self) -> Run:
        """The last run, opened for reading; UsageError where there is none: `path` is None there."""
        if self.path is None:
            hint = "train first; of several processes only the first one records, so look whether `path` is None"
            raise UsageError("this process has recorded no training so far", hint)
        return stepscope.Run(self.path)

    def guard(self, function: Callable[..., T], *args: Any, opens: bool = False, **kwargs: Any) -> T | None:
        """Call what may begin a run (`opens`), or what is for one that is open: a failure ends it and nothing else."""
        if opens:
            self._boundary = Boundary(self._failed)
        elif not self.open:
            return None
        return self._boundary.call(function, *args, **kwargs)

    def begin(
        self,
        models: Models,
        optimizers: Sequence[Any] = (),
        *,
        trainer: dict[str, Any],
        workload: dict[str, Any] | None = None,
        planned_steps: int | None = None,
        steps: str = "calls",
    ) -> None:
        """Start recording; trainer and workload are what run.json says of them (None is not written)."""
        if self.open:
            self.close("interrupted", _NO_END)
        elif self._scope is not None:  # of the process that this one was forked from
            self._scope, undo, self._undo = None, self._undo, []
            for back in undo:
                back()
        self.path, self._call = None, _call_of_library(trainer["library"])
        _close_abandoned(self._call)
        name = self._options.get("name") or _name(models, trainer)
        profiled = stepscope.profile(models, **{"steps": steps, **self._options, "name": name})
        try:
            scope = profiled.__enter__()
        except BaseException as error:
            profiled.__exit__(type(error), error, error.__traceback__)
            if not isinstance(error, (StepscopeError, OSError)):
                raise
            hint = getattr(error, "hint", None)
            self._warn(f"this training is not recorded: {error}" + (f" ({hint})" if hint else ""))
            return
        self._scope, self.path, self.steps, self._pid = scope, scope.path, 0, os.getpid()
        atexit.register(self._close_at_process_exit)
        _OPEN.add(self)
        self._forget_batches()
        facts = {"name": name, "optimizer": _names(optimizers), **(workload or {})}
        scope.update(
            trainer=_without_none(trainer),
            workload=_without_none(facts),
            **_without_none({"planned_steps": planned_steps}),
        )

    def set_planned_steps(self, steps: int) -> None:
        """State how many steps are to come, where the library says so after the begin alone."""
        if self._scope is not None and self.open:
            self._scope.update(planned_steps=steps)

    def observe_calls(
        self,
        owner: Any,
        name: str,
        concerns: Callable[[Any], bool],
        *,
        scope: Callable[[], AbstractContextManager[Any] | None] | None = None,
        returned: Callable[[Any], None] | None = None,
        raised: Callable[[BaseException], None] | None = None,
    ) -> None:
        """Hear of the library's calls of `owner.name` on what `concerns` this run, until it ends (`_routes`)."""
        boundary = self._boundary
        listener = Listener(boundary, lambda first: self.open and concerns(first), scope, returned, raised)
        self.undo_at_end(listen(owner, name, listener))

    def undo_at_end(self, undo: Callable[[], None]) -> None:
        """Something that listens to the training, taken back when the run ends; at once where none is open."""
        if self.open:
            self._undo.append(undo)
        else:
            undo()

    def batch(self, loss: Any = None, samples: int | None = None) -> None:
        """A batch is done that did not end a step by itself: gradients add up."""
        self._batches += 1
        self._in_batch = False
        self.loss(loss)
        if samples is not None:
            self._samples = (self._samples or 0) + samples

    def loss(self, loss: Any) -> None:
        """The loss of a batch, where it is known apart from its end; what is no single number is none."""
        if try_call(getattr, loss, "device_mesh", None) is not None:
            return  # a DTensor: to read it all ranks must take part, and one alone records
        if isinstance(loss, torch.Tensor):
            with torch._C.DisableTorchFunction():
                if try_call(loss.numel) == 1:
                    self._losses.append(try_call(loss.detach) if loss.requires_grad else loss)
        elif isinstance(loss, (int, float)):
            self._losses.append(loss)

    @property
    def batches(self) -> int:
        """Batches since the last step: more than none is the middle of a step."""
        return self._batches

    def step(self, loss_scale: float = 1.0) -> None:
        """A step has ended, with the batches since the last one; its loss is the sum of theirs times a factor."""
        if self._scope is not None:
            samples = self._samples if self._options.get("samples") is None else None  # the user's own word
            self._scope.step(_sum(self._losses, loss_scale), samples)
            self.steps += 1
        self._forget_batches()

    def begin_batch(self) -> None:
        """A batch begins: until its end, a checkpoint is a part of the step."""
        self._in_batch = True

    def pause(self) -> None:
        """Evaluation begins; in the middle of a step it stays a part of it, and the run says so."""
        if self._scope is None:
            return
        if self._batches == 0:
            self._paused = True
            self._scope.pause()
        else:
            self._note_within_step("evaluated-in-step", "evaluation fell between the batches of one step")

    def resume(self) -> None:
        """Evaluation, a checkpoint or the work between two epochs is over."""
        self._paused = self._in_batch = False
        if self._scope is not None and self._batches == 0:
            self._scope.resume()

    @contextlib.contextmanager
    def checkpoint(self) -> Iterator[None]:
        """A range that is no part of a step, unless it lies in the middle of one: then the run says so."""
        if self._scope is None or self._paused or self._in_batch or self._batches:
            if not self._paused:
                self._note_within_step("checkpoint-in-step", "a checkpoint was written within a step")
            yield
            return
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def observe_checkpoints(self, thing: Any, names: Sequence[str], *packages: str) -> None:
        """Exclude these methods of the trainer or the model from steps: what they write are checkpoints."""
        for name in names:
            owner = class_of_library(thing, name, *packages)
            self.observe_calls(owner, name, same_object_test(thing), scope=self.checkpoint)

    def _note_within_step(self, kind: str, what: str) -> None:
        if self._scope is not None and kind not in self._noted:
            self._noted.add(kind)
            self._scope.note(kind, f"{what}: its time is in that step", step=self.steps)

    def inside(self, module: nn.Module) -> AbstractContextManager[Any] | None:
        """A range that counts as a call of this module; None where no run is open."""
        return None if self._scope is None else self._scope.inside(module)

    def update(self, **fields: Any) -> None:
        """Merge fields into run.json."""
        if self._scope is not None:
            self._scope.update(**fields)

    def end(self, error: BaseException | None = None) -> None:
        """The training is over, well or with the user's exception."""
        if self.open:
            self.close(*status_of(error))

    def close(self, status: str, reason: str | None = None) -> None:
        """End the run; nothing happens where none is open."""
        scope, self._scope = self._scope, None
        if scope is None:
            return
        undo, self._undo = self._undo, []
        self._noted, self._paused = set(), False
        self._forget_batches()
        atexit.unregister(self._close_at_process_exit)
        _OPEN.discard(self)
        with ExitStack() as ending:  # all of it, whatever fails
            ending.callback(scope.close, status, reason)
            for back in undo:
                ending.callback(back)

    def _failed(self, error: BaseException) -> None:
        """The recording failed, not the training, which goes on without it."""
        message = f"{type(error).__name__}: {error}"
        with ExitStack() as ending:
            ending.callback(self._warn, f"recording failed and has ended, the training goes on: {message}")
            ending.callback(self.close, "interrupted", f"the recording failed: {message}")
            if self._scope is not None:
                self._scope.note("recording-lost", message)

    def _forget_batches(self) -> None:
        self._losses, self._samples, self._batches, self._in_batch = [], None, 0, False

    def _close_at_process_exit(self) -> None:
        """Close what an uncaught exception ended: the interpreter knows it by now, unless somebody types at it."""
        error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        if error is not None:
            self.guard(self.end, error)
        else:
            reason = "the process ended, and the trainer had not said that the training was over"
            self.guard(self.close, "interrupted", reason)

    def _warn(self, message: str) -> None:
        with contextlib.suppress(RuntimeWarning):  # of those who turn warnings into errors
            warnings.warn(f"stepscope: {message}", RuntimeWarning, stacklevel=3)


def _close_abandoned(call: _Call | None) -> None:
    """End the runs of other callbacks that the same function of the library began, and whose call is over."""
    same = [other for other in _OPEN if call is not None and other._call is not None and other._call[1] is call[1]]
    running = {entry[:2] for frame in sys._current_frames().values() for entry in _stack(frame)} if same else set()
    for other in same:
        if other._call == call or other._call not in running:
            other.guard(other.close, "interrupted", _NO_END)


def _call_of_library(library: str) -> _Call | None:
    """The call that runs this training: of the outermost function of the library, the innermost call."""
    stack = _stack(sys._getframe())
    calls = [(frame, code) for frame, code, package in stack if package.removeprefix("pytorch_") == library]
    return next((call for call in calls if call[1] is calls[-1][1]), None)


def _stack(frame: FrameType | None) -> list[tuple[int, CodeType, str]]:
    """Address, function and top package of each frame, innermost first."""
    frames = []
    while frame is not None:
        frames.append((id(frame), frame.f_code, str(frame.f_globals.get("__name__")).partition(".")[0]))
        frame = frame.f_back
    return frames


@dataclass(frozen=True)
class _SimulatedBoard:
    """A simulated board, for a copy: what drives it stays where it is."""

    board: str
    root: Path


def _new_training_run(options: dict[str, Any]) -> TrainingRun:
    return TrainingRun(**options)


def innermost_optimizer(optimizer: Any) -> Any:
    """The optimizer below what a trainer has put around it."""
    below = try_call(getattr, optimizer, "optimizer", None)
    return optimizer if below is None or below is optimizer else innermost_optimizer(below)


def _name(models: Models, trainer: dict[str, Any]) -> str:
    """Type of the model, of the first of several, else the trainer's library."""
    if isinstance(models, nn.Module):
        return type(models).__name__
    several = list(models.values() if isinstance(models, Mapping) else models or ())
    return type(several[0]).__name__ if several else str(trainer["library"])


def _names(optimizers: Iterable[Any]) -> str | None:
    names = dict.fromkeys(
        type(innermost_optimizer(optimizer)).__name__ for optimizer in optimizers if optimizer is not None
    )
    return ", ".join(names) or None


def _without_none(facts: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if value is not None}


def _sum(losses: list[Any], scale: float) -> Any:
    """Trainers divide the loss of a batch by how many add up to a step; summed here without an operator of torch."""
    if len(losses) == 1 and scale == 1.0:
        return losses[0]
    if any(isinstance(loss, torch.Tensor) and loss.device.type != "cpu" for loss in losses):
        return try_call(_sum_on_device, losses, scale)  # to look at the numbers would wait for the device
    numbers = [try_call(float, loss) for loss in losses]
    return None if not numbers or None in numbers else scale * sum(number for number in numbers if number is not None)


def _sum_on_device(losses: list[torch.Tensor], scale: float) -> torch.Tensor:
    """The sum in float32, for whoever reads it later; a fault where they are on several devices."""
    with bypass_torch_modes():
        return scale * torch.stack([loss.reshape(()) for loss in losses]).sum(dtype=torch.float32)
