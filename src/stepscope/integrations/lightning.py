"""Lightning: `Trainer(callbacks=[StepscopeCallback()])`, of `lightning.pytorch` or of `pytorch_lightning`.

A step is a batch in which an optimizer made a step: of several optimizers all that step in one batch belong to it, and
gradients that add up over batches make one step of them all.
"""

from __future__ import annotations

import sys
import weakref
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from stepscope.integrations._library_hooks import (
    Recording,
    class_of_library,
    class_on_demand,
    import_library,
    same_object_test,
    try_call,
    version_of,
)

if TYPE_CHECKING:
    from torch import nn

TITLE = "Lightning trainer"
EXTRA = "lightning"
_LIBRARIES = ("lightning.pytorch", "pytorch_lightning")
_PACKAGES = ("lightning", "pytorch_lightning")


class Hooks(Recording):
    """Records the training that a Lightning trainer runs; options are those of `stepscope.profile`.

    `recording.run` is the run once the training is over, `recording.path` its folder. Only the first process records.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._global_step = 0
        self._updated = False  # a torch optimizer has stepped since the last step

    def _idle_state(self) -> dict[str, Any]:
        return {"_global_step": 0, "_updated": False}

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Everything is in place, the sanity check is over: the first step begins."""
        if not trainer.is_global_zero:
            return
        self._global_step, self._updated = trainer.global_step, False
        self.recording.begin(
            pl_module,
            trainer.optimizers,
            trainer={
                "library": "lightning",
                "version": version_of(import_library(next(name for name in _LIBRARIES if name in sys.modules), EXTRA)),
                "first_step": trainer.global_step,
                "accumulate": trainer.accumulate_grad_batches,
                "processes": trainer.world_size,
            },
            workload={"precision": str(trainer.precision), "device": _device_of(pl_module)},
            planned_steps=_remaining_steps(trainer, pl_module),
        )
        if self.recording.open:
            self._count_training_step_as_forward(trainer.strategy, pl_module)
            self._look_for_updates()
            self.recording.observe_checkpoints(trainer, ("save_checkpoint",), *_PACKAGES)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Resume after what is no part of a step: work between two epochs, a validation."""
        self.recording.resume()

    on_validation_end = on_train_epoch_start

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """A batch begins."""
        self.recording.begin_batch()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *_: Any, **__: Any) -> None:
        """A batch is done, and with it a step where an optimizer has stepped."""
        loss = try_call(outputs.get, "loss") if isinstance(outputs, dict) else outputs
        self.recording.batch(loss, try_call(_samples, trainer, batch))
        if self._updated or trainer.global_step != self._global_step:
            self._global_step, self._updated = trainer.global_step, False
            divided_by = trainer.accumulate_grad_batches if _is_automatic_optimization(pl_module) else 1
            self.recording.step(divided_by / self.recording.batches)  # fewer add up at the end of an epoch

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Validation begins."""
        self.recording.pause()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The training is over."""
        self.recording.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The training ends with this."""
        self.recording.end(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """`fit` is over, whatever came of it."""
        if stage == "fit":
            self.recording.end()

    def _look_for_updates(self) -> None:
        """Hear of optimizers that step without the trainer's knowledge (manual optimization)."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        def stepped(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
            self._updated = True

        self.recording.undo_at_end(register_optimizer_step_post_hook(stepped).remove)

    def _count_training_step_as_forward(self, strategy: Any, pl_module: nn.Module) -> None:
        """Lightning calls training_step, loss and all, within the optimizer's step, and it is no call of a module."""
        recording, module = self.recording, weakref.ref(pl_module)

        def inside() -> AbstractContextManager[Any] | None:
            trained = module()
            return None if trained is None else recording.inside(trained)

        recording.observe_calls(
            class_of_library(strategy, "training_step", *_PACKAGES),
            "training_step",
            same_object_test(strategy),
            scope=inside,
        )


def _device_of(pl_module: Any) -> str | None:
    device = try_call(getattr, pl_module, "device", None)
    return None if device is None else str(device)


def _is_automatic_optimization(pl_module: Any) -> bool:
    """Return whether Lightning steps the optimizer, not the module itself."""
    return try_call(getattr, pl_module, "automatic_optimization", True) is not False


def _remaining_steps(trainer: Any, pl_module: Any) -> int | None:
    """Steps still to come; None where the module steps by itself or nobody knows."""
    if not _is_automatic_optimization(pl_module):
        return None
    whole = try_call(getattr, trainer, "estimated_stepping_batches") or 0  # asks the user's data loaders
    return int(whole) - int(trainer.global_step) if 0 < whole < float("inf") else None


def _samples(trainer: Any, batch: Any) -> int | None:
    """Return the samples of a batch: what its data loader says decides which side of a tensor they are."""
    from stepscope.record.call_samples import batch_size

    return batch_size(trainer.train_dataloader, batch)


def _callbacks_of_lightning() -> tuple[type, ...]:
    """A Callback of whichever of its two names Lightning was imported under; of both where it was under both."""
    imported = [name for name in _LIBRARIES if name in sys.modules]
    installed = [name for name in _LIBRARIES if find_spec(name.partition(".")[0]) is not None]
    names = imported or installed[:1] or _LIBRARIES[:1]
    return tuple(import_library(name, EXTRA).Callback for name in names)


__getattr__ = class_on_demand(Hooks, _callbacks_of_lightning)

if TYPE_CHECKING:
    StepscopeCallback = Hooks
