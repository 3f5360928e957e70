"""Hugging Face: `Trainer(callbacks=[StepscopeCallback()])`.

A step is an optimizer step of the trainer, with all the batches whose gradients add up to it. The trainer tells its
callbacks of no exception: so the callback finds the trainer that calls it and looks on as `train` and `training_step`
are called, which gives it the loss as well.
"""

from __future__ import annotations

import functools
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

from stepscope.integrations._library import load, version_of

if TYPE_CHECKING:
    from stepscope.integrations._training import TrainerRun

TITLE = "Hugging Face Trainer"
EXTRA = "huggingface"


class Hooks:
    """Records the training that a Hugging Face Trainer runs; options are those of `stepscope.profile`.

    `recording.run` is the run once the training is over, `recording.path` its folder. Only the first process records.
    """

    def __init__(self, **options: Any) -> None:
        from stepscope.integrations._training import TrainerRun

        super().__init__()
        self.recording: TrainerRun = TrainerRun(**options)
        self._watched: set[int] = set()

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The trainer is made."""
        self._watch_trainer()

    def on_train_begin(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        """Everything is in place, a checkpoint is loaded: the first step begins."""
        if not state.is_world_process_zero:
            return
        self._watch_trainer()
        steps_of_one = args.gradient_accumulation_steps
        self.recording.begin(
            known.get("model"),
            [known.get("optimizer")],
            trainer={
                "library": "transformers",
                "version": version_of(load("transformers", EXTRA)),
                "first_step": state.global_step,
                "accumulate": steps_of_one,
                "processes": args.world_size,
            },
            workload={
                "batch_size": args.train_batch_size * steps_of_one,
                "precision": "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
                "device": str(args.device),
            },
            planned_steps=state.max_steps - state.global_step if state.max_steps > 0 else None,
        )

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """What was done between two epochs is no part of a step."""
        self.recording.resume()

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A batch is done whose gradients wait for more."""
        self.recording.batch()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The optimizer has stepped."""
        self.recording.step()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A batch of an evaluation is done."""
        self.recording.pause()

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """An evaluation is over."""
        self.recording.resume()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A checkpoint is written."""
        self.recording.resume()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The training is over."""
        self.recording.end()

    def _watch_trainer(self) -> None:
        """Look on at the trainer that is calling this callback, once; without it exceptions show at the end only."""
        from stepscope.integrations._training import told

        trainer = _calling_trainer(self)
        if trainer is None or id(trainer) in self._watched:
            return
        self._watched.add(id(trainer))
        trainer.train = told(self.recording, trainer.train)
        trainer.training_step = told(self.recording, self._with_loss(trainer.training_step))

    def _with_loss(self, training_step: Any) -> Any:
        @functools.wraps(training_step)
        def call(*args: Any, **kwargs: Any) -> Any:
            loss = training_step(*args, **kwargs)
            if self.recording.open:
                self.recording.loss(loss)
            return loss

        return call


def _calling_trainer(callback: Any) -> Any:
    """The `self` further up the stack that has this callback among its own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("self")
        handler = getattr(found, "callback_handler", None)
        if any(one is callback for one in getattr(handler, "callbacks", ())):
            return found
        frame = frame.f_back
    return None


@functools.cache
def _callback() -> type:
    from stepscope.integrations._training import made_class

    return made_class(Hooks, (load("transformers", EXTRA).TrainerCallback,))


def __getattr__(name: str) -> Any:
    if name == "StepscopeCallback":
        return _callback()
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


if TYPE_CHECKING:
    StepscopeCallback = Hooks
