"""Lightning: `Trainer(callbacks=[StepscopeCallback()])`, of `lightning.pytorch` or of `pytorch_lightning`.

A step is a batch in which an optimizer made a step: of several optimizers all that step in one batch belong to it, and
gradients that add up over batches make one step of them all.
"""

from __future__ import annotations

import functools
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from stepscope.integrations._library import load, version_of

if TYPE_CHECKING:
    from torch import nn

    from stepscope.integrations._training import TrainerRun

TITLE = "Lightning trainer"
EXTRA = "lightning"
_LIBRARIES = ("lightning.pytorch", "pytorch_lightning")


class Hooks:
    """Records the training that a Lightning trainer runs; options are those of `stepscope.profile`.

    `recording.run` is the run once the training is over, `recording.path` its folder. Only the first process records.
    """

    def __init__(self, **options: Any) -> None:
        from stepscope.integrations._training import TrainerRun

        super().__init__()
        self.recording: TrainerRun = TrainerRun(**options)
        self._global_step = 0

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Everything is in place, the sanity check is over: the first step begins."""
        if not trainer.is_global_zero:
            return
        self._global_step = trainer.global_step
        self.recording.begin(
            pl_module,
            trainer.optimizers,
            trainer={
                "library": "lightning",
                "version": version_of(load(next(name for name in _LIBRARIES if name in sys.modules), EXTRA)),
                "first_step": trainer.global_step,
                "accumulate": trainer.accumulate_grad_batches,
                "processes": trainer.world_size,
            },
            workload={"precision": str(trainer.precision), "device": _device_of(pl_module)},
            planned_steps=_planned(trainer, pl_module),
        )
        if self.recording.open:
            self._count_training_step_as_forward(pl_module)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """What was done between two epochs is no part of a step."""
        self.recording.resume()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *_: Any, **__: Any) -> None:
        """A batch is done, and with it a step where an optimizer has stepped."""
        self.recording.batch(_loss(outputs), _samples(batch))
        if self.recording.updated or trainer.global_step != self._global_step:
            self._global_step = trainer.global_step
            by_lightning = getattr(pl_module, "automatic_optimization", True)
            divided_by = trainer.accumulate_grad_batches if by_lightning else 1
            self.recording.step(divided_by / self.recording.batches)  # fewer add up at the end of an epoch

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Validation begins."""
        self.recording.pause()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Validation is over."""
        self.recording.resume()

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

    def _count_training_step_as_forward(self, pl_module: Any) -> None:
        """Lightning calls training_step, loss and all, within the optimizer's step, and it is no call of a module."""
        recording, plain = self.recording, pl_module.training_step

        @functools.wraps(plain)
        def training_step(*args: Any, **kwargs: Any) -> Any:
            if not recording.open:
                return plain(*args, **kwargs)
            with recording.inside(pl_module):
                return plain(*args, **kwargs)

        own = vars(pl_module).get("training_step")
        pl_module.training_step = training_step

        def undo() -> None:
            if vars(pl_module).get("training_step") is training_step:
                del pl_module.training_step
                if own is not None:
                    pl_module.training_step = own

        recording.undo_at_end(undo)


def _device_of(pl_module: Any) -> str | None:
    """Where the model trains, as torch names it."""
    device = getattr(pl_module, "device", None)
    return None if device is None else str(device)


def _planned(trainer: Any, pl_module: Any) -> int | None:
    """Steps still to come; None where the module steps by itself or nobody knows."""
    if not getattr(pl_module, "automatic_optimization", True):
        return None
    whole = trainer.estimated_stepping_batches
    return int(whole) - int(trainer.global_step) if 0 < whole < float("inf") else None


def _loss(outputs: Any) -> Any:
    return outputs.get("loss") if isinstance(outputs, dict) else outputs


def _samples(batch: Any) -> int | None:
    """Length of the first tensor of a batch; None where it holds none."""
    from stepscope.record.steps import first_tensor

    tensor = first_tensor(batch)
    return None if tensor is None or tensor.dim() == 0 else int(tensor.shape[0])


@functools.cache
def _callback() -> type:
    """A Callback of whichever of its two names Lightning was imported under; of both where it was under both."""
    from stepscope.integrations._training import made_class

    imported = [name for name in _LIBRARIES if name in sys.modules]
    installed = [name for name in _LIBRARIES if find_spec(name.partition(".")[0]) is not None]
    names = imported or installed[:1] or _LIBRARIES[:1]
    return made_class(Hooks, tuple(load(name, EXTRA).Callback for name in names))


def __getattr__(name: str) -> Any:
    if name == "StepscopeCallback":
        return _callback()
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


if TYPE_CHECKING:
    StepscopeCallback = Hooks
