"""One run of somebody else's trainer: begun once the trainer is ready, ended once, whatever the trainer leaves out.

Trainers forget: no callback hears of an exception (Hugging Face, Keras), `on_train_end` may never come, and may come
twice. Nothing that fails in here reaches the training; only an option that cannot be meant is refused, before it.
"""

from __future__ import annotations

import atexit
import functools
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import stepscope
from stepscope.errors import StepscopeError, UsageError
from stepscope.record.profile import Scope
from stepscope.record.schedule import parse, parse_memory
from stepscope.record.session import Models, status_of
from stepscope.record.steps import watch_optimizers

if TYPE_CHECKING:
    from stepscope import Run

_NO_END = "a new training began before the trainer said that this one had ended"


class TrainerRun:
    """The run that a callback records, at most one at a time; options are those of `stepscope.profile`."""

    def __init__(self, **options: Any) -> None:
        parse(options.get("record", "adaptive"))
        parse_memory(options.get("memory", "off"))
        stepscope.profile(None, **options)  # what is refused is refused here, not after an hour of preparation
        self._options = options
        self._scope: Scope | None = None
        self._undo: list[Callable[[], None]] = []
        self._losses: list[Any] = []
        self._samples: int | None = None
        self._batches = 0
        self._noted_evaluation = False
        self.steps = 0
        self.updated = False  # a torch optimizer has stepped since the last step
        self.path: Path | None = None

    @property
    def open(self) -> bool:
        """Whether a run is being recorded."""
        return self._scope is not None

    @property
    def run(self) -> Run:
        """The last run, opened for reading; UsageError where there is none yet."""
        if self.path is None:
            raise UsageError("nothing was recorded so far", "train first")
        return stepscope.Run(self.path)

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
        """Start recording; trainer and workload are what run.json says of them (None is left out)."""
        if self.open:
            self.close("interrupted", _NO_END)
        name = self._options.get("name") or _name(models, trainer)
        options = {"steps": steps, **self._options, "name": name}
        try:
            scope = stepscope.profile(models, **options).__enter__()
        except UsageError:
            raise
        except (StepscopeError, OSError) as error:
            hint = getattr(error, "hint", None)
            self._warn(f"this training is not recorded: {error}" + (f" ({hint})" if hint else ""))
            return
        self._scope, self.path, self.steps = scope, scope.path, 0
        facts = {"name": name, "optimizer": _names(optimizers), **(workload or {})}
        scope.update(trainer=_known(trainer), workload=_known(facts), **_known({"planned_steps": planned_steps}))
        self._undo = [watch_optimizers(lambda _: None, self._optimizer_stepped)]
        atexit.register(self._process_ends)
        self._forget_batches()

    def batch(self, loss: Any = None, samples: int | None = None) -> None:
        """A batch is done that did not end a step by itself: gradients add up."""
        self._batches += 1
        self.loss(loss)
        if samples is not None:
            self._samples = (self._samples or 0) + samples

    def loss(self, loss: Any) -> None:
        """The loss of a batch, where it is known apart from its end."""
        if loss is not None:
            self._losses.append(loss.detach() if isinstance(loss, torch.Tensor) else loss)

    @property
    def batches(self) -> int:
        """Batches since the last step: more than none is the middle of a step."""
        return self._batches

    def step(self, loss_scale: float = 1.0) -> None:
        """A step has ended, with the batches since the last one; its loss is the sum of theirs times a factor."""
        if self._scope is not None:
            self._scope.step(_sum(self._losses, loss_scale), self._samples)
            self.steps += 1
        self._forget_batches()

    def pause(self) -> None:
        """Evaluation begins; in the middle of a step it stays a part of it, and the run says so."""
        if self._scope is None:
            return
        if self._batches == 0:
            self._scope.pause()
        elif not self._noted_evaluation:
            self._noted_evaluation = True
            message = "evaluation fell between the batches of one step: its time is in that step"
            self._scope.note("evaluated-in-step", message, step=self.steps)

    def resume(self) -> None:
        """Evaluation, a checkpoint or the work between two epochs is over."""
        if self._scope is not None and self._batches == 0:
            self._scope.resume()

    def undo_at_end(self, undo: Callable[[], None]) -> None:
        """Something that was put into the trainer, taken out when the run ends."""
        self._undo.append(undo)

    def inside(self, module: nn.Module) -> Any:
        """A range that counts as a call of this module."""
        assert self._scope is not None
        return self._scope.inside(module)

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
        atexit.unregister(self._process_ends)
        for undo in self._undo:
            undo()
        self._undo = []
        scope.close(status, reason)
        self._noted_evaluation = False

    def lost(self, error: Exception) -> None:
        """The recording failed, not the training, which goes on without it."""
        message = f"{type(error).__name__}: {error}"
        if self._scope is not None:
            self._scope.note("recording-lost", message)
        self.close("interrupted", f"the recording failed: {message}")
        self._warn(f"recording failed and has ended, the training goes on: {message}")

    def _optimizer_stepped(self, _optimizer: Any) -> None:
        self.updated = True

    def _forget_batches(self) -> None:
        self._losses, self._samples, self._batches, self.updated = [], None, 0, False

    def _process_ends(self) -> None:
        """What nobody caught is known to the interpreter by now, unless somebody types at it."""
        error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        if error is not None:
            self.end(error)
        else:
            self.close("interrupted", "the process ended, and the trainer had not said that the training was over")

    def _warn(self, message: str) -> None:
        warnings.warn(f"stepscope: {message}", RuntimeWarning, stacklevel=3)


def made_class(hooks: type, bases: tuple[type, ...], name: str = "StepscopeCallback") -> type:
    """A class of the library's own kind with these hooks, guarded, named as if it stood in their file, for pickle."""
    made = type(name, (hooks, *bases), {"__module__": hooks.__module__, "__doc__": hooks.__doc__})
    for hook in vars(hooks):
        if hook.startswith("on_") or hook in ("teardown", "start", "store_init_configuration", "finish"):
            setattr(made, hook, guarded(getattr(hooks, hook)))
    return made


def guarded(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook of a callback with a `recording`: what fails in it ends the recording and nothing else."""

    @functools.wraps(hook)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return hook(self, *args, **kwargs)
        except UsageError:
            raise
        except Exception as error:
            self.recording.lost(error)
            return None

    return call


def told(recording: TrainerRun, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose exception ends the run as failed and passes on untouched."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            recording.end(error)
            raise

    return call


def unwrapped(optimizer: Any) -> Any:
    """The optimizer below what a trainer has put around it."""
    while hasattr(optimizer, "optimizer") and optimizer.optimizer is not optimizer:
        optimizer = optimizer.optimizer
    return optimizer


def _name(models: Models, trainer: dict[str, Any]) -> str:
    """Type of the model, of the first of several, else the trainer's library."""
    if isinstance(models, nn.Module):
        return type(models).__name__
    several = list(models.values() if isinstance(models, Mapping) else models or ())
    return type(several[0]).__name__ if several else str(trainer["library"])


def _names(optimizers: Iterable[Any]) -> str | None:
    names = dict.fromkeys(type(unwrapped(one)).__name__ for one in optimizers if one is not None)
    return ", ".join(names) or None


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if value is not None}


def _sum(losses: list[Any], scale: float) -> Any:
    """Trainers divide the loss of a batch by how many add up to a step; summed here without an operation of torch."""
    if len(losses) == 1 and scale == 1.0:
        return losses[0]
    return scale * sum(float(loss) for loss in losses) if losses else None
