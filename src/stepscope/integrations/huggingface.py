"""Hugging Face: `Trainer(callbacks=[StepscopeCallback()])`.

A step is an optimizer step of the trainer, with all the batches whose gradients add up to it. The trainer tells its
callbacks neither of exceptions nor of losses: they are heard of where the library's own `Trainer` runs the loop and its
`training_step`. A subclass that replaces `training_step` without calling the library's has no losses.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stepscope.integrations._library_hooks import Recording, class_on_demand, import_library, version_of

TITLE = "Hugging Face Trainer"
EXTRA = "huggingface"
_LOOP = ("_run_epoch", "_finalize_training")  # since transformers 5
_PARTS = ("get_batch_samples", "training_step", "_maybe_log_save_evaluate")  # of a loop that is one function


class Hooks(Recording):
    """Records the training that a Hugging Face Trainer runs; options are those of `stepscope.profile`.

    `recording.run` is the run once the training is over, `recording.path` its folder. Only the first process records.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Everything is in place, a checkpoint is loaded: the first step begins."""
        if not state.is_world_process_zero:
            return
        steps_per_update = args.gradient_accumulation_steps
        batch_size = state.train_batch_size if args.auto_find_batch_size else args.train_batch_size
        self.recording.begin(
            parts.get("model"),
            [parts.get("optimizer")],
            trainer={
                "library": "transformers",
                "version": version_of(import_library("transformers", EXTRA)),
                "first_step": state.global_step,
                "accumulate": steps_per_update,
                "processes": args.world_size,
            },
            workload={
                "batch_size": batch_size * steps_per_update,
                "precision": "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
                "device": str(args.device),
            },
            planned_steps=state.max_steps - state.global_step if state.max_steps > 0 else None,
        )
        if self.recording.open:
            self._observe_trainer()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Resume after what is no part of a step: work between epochs, an evaluation, a prediction, a checkpoint."""
        self.recording.resume()

    on_evaluate = on_predict = on_save = on_epoch_begin

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A batch is done whose gradients wait for more."""
        self.recording.batch()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The optimizer has stepped."""
        self.recording.step()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A batch of an evaluation is done."""
        self.recording.pause()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The training is over."""
        self.recording.end()

    def _observe_trainer(self) -> None:
        """Hear of exceptions and losses, from the methods of the library's own Trainer."""
        trainers: Any = import_library("transformers", EXTRA).Trainer
        ours = _own_trainer_test(self)
        whole_loop = [name for name in _LOOP if name in vars(trainers)]
        self.recording.observe_calls(trainers, "training_step", ours, returned=self.recording.loss)
        for name in whole_loop or _PARTS:
            concerns = ours if whole_loop else _not_overridden(ours, trainers, name)
            self.recording.observe_calls(trainers, name, concerns, raised=self.recording.end)


def _own_trainer_test(callback: Any) -> Callable[[Any], bool]:
    """Return whether a trainer is the one that has this callback."""
    own_trainer: weakref.ref[Any] | None = None

    def concerns(trainer: Any) -> bool:
        nonlocal own_trainer
        if own_trainer is None:
            handler = vars(trainer).get("callback_handler")
            if not any(other is callback for other in getattr(handler, "callbacks", ())):
                return False
            own_trainer = weakref.ref(trainer)
        return own_trainer() is trainer

    return concerns


def _not_overridden(concerns: Callable[[Any], bool], trainers: type, name: str) -> Callable[[Any], bool]:
    """Return the condition, and that the user's class has not replaced the method, which might catch what is raised."""
    return lambda trainer: concerns(trainer) and getattr(type(trainer), name) is getattr(trainers, name)


__getattr__ = class_on_demand(Hooks, lambda: (import_library("transformers", EXTRA).TrainerCallback,))

if TYPE_CHECKING:
    StepscopeCallback = Hooks
