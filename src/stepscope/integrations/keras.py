"""Keras on its torch backend: `model.fit(..., callbacks=[StepscopeCallback()])`.

A step is an update of the weights, with all the batches whose gradients add up to it. Keras has optimizers of its own,
which torch does not announce: the callback marks their work. Keras tells its callbacks of no exception, so the callback
looks on as the model trains on a batch. The loss that Keras reports is a mean over the epoch, so steps have none.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from stepscope.errors import UsageError
from stepscope.integrations._library import load, version_of

if TYPE_CHECKING:
    from stepscope.integrations._training import TrainerRun

TITLE = "Keras on its torch backend"
EXTRA = "keras"


class Hooks:
    """Records what `model.fit` trains; options are those of `stepscope.profile`.

    `recording.run` is the run once the training is over, `recording.path` its folder.
    """

    model: Any
    params: dict[str, Any]

    def __init__(self, **options: Any) -> None:
        from stepscope.integrations._training import TrainerRun

        _require_torch()
        super().__init__()
        self.recording: TrainerRun = TrainerRun(**options)
        self._batches = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """The first step begins."""
        model, self._batches = self.model, 0
        per_epoch, epochs, of_one = self.params.get("steps"), self.params.get("epochs"), self._accumulates()
        self.recording.begin(
            _layers(model),
            [model.optimizer],
            trainer={
                "library": "keras",
                "version": version_of(load("keras", EXTRA)),
                "first_step": int(model.optimizer.iterations),
                "accumulate": of_one,
            },
            workload={"precision": str(model.dtype_policy.name)},
            planned_steps=per_epoch * epochs // of_one if per_epoch and epochs else None,
        )
        if self.recording.open:
            self._look_on(model)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """What was done between two epochs is no part of a step."""
        self.recording.resume()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """A batch is done, and with it a step where gradients do not wait for more."""
        self._batches += 1
        self.recording.batch()
        if self._batches % self._accumulates() == 0:
            self.recording.step()

    def on_test_begin(self, logs: Any = None) -> None:
        """Validation begins."""
        self.recording.pause()

    def on_test_end(self, logs: Any = None) -> None:
        """Validation is over."""
        self.recording.resume()

    def on_train_end(self, logs: Any = None) -> None:
        """The training is over."""
        self.recording.end()

    def _accumulates(self) -> int:
        return int(getattr(self.model.optimizer, "gradient_accumulation_steps", None) or 1)

    def _look_on(self, model: Any) -> None:
        """See exceptions of a batch, and mark the optimizer's work, until the run ends."""
        from stepscope.integrations._training import told

        optimizer, trains = model.optimizer, model.train_function
        model.train_function = watched = told(self.recording, trains)
        optimizer.apply = _as_optimizer_step(optimizer)

        def undo() -> None:
            if model.train_function is watched:
                model.train_function = trains
            vars(optimizer).pop("apply", None)

        self.recording.undo_at_end(undo)


def _require_torch() -> None:
    backend = load("keras", EXTRA).backend.backend()
    if backend != "torch":
        raise UsageError(
            f"Keras runs on {backend}, and only torch can be recorded", "set KERAS_BACKEND=torch before importing keras"
        )


def _layers(model: Any) -> dict[str, Any]:
    """The model, and every layer by the name that Keras gives it: torch does not see layers in the lists of Keras."""
    return {"": model, **_named_layers(model, "")}


def _named_layers(model: Any, above: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for layer in model.layers:
        found[above + layer.name] = layer
        if hasattr(layer, "layers"):
            found |= _named_layers(layer, f"{above}{layer.name}.")
    return found


def _as_optimizer_step(optimizer: Any) -> Any:
    """`optimizer.apply` inside the range by which a torch optimizer announces itself."""
    from stepscope.record import torch_private
    from stepscope.record.recorders.phases import OPTIMIZER_STEP

    apply, name = optimizer.apply, f"{OPTIMIZER_STEP}{type(optimizer).__name__}.step"

    @functools.wraps(apply)
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch_private.make_scope(name):
            return apply(*args, **kwargs)

    return call


@functools.cache
def _callback() -> type:
    from stepscope.integrations._training import made_class

    return made_class(Hooks, (load("keras", EXTRA).callbacks.Callback,))


def __getattr__(name: str) -> Any:
    if name == "StepscopeCallback":
        return _callback()
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


if TYPE_CHECKING:
    StepscopeCallback = Hooks
