"""Keras on its torch backend: `model.fit(..., callbacks=[StepscopeCallback()])`.

A step is an update of the weights, with all the batches whose gradients add up to it. Keras tells its callbacks of no
exception: it is heard of where Keras shortens the traceback of what leaves `fit`. The loss that Keras reports is a mean
over the epoch, so steps have none.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

from stepscope.errors import UsageError
from stepscope.integrations._library_hooks import Recording, class_on_demand, import_library, try_call, version_of

TITLE = "Keras on its torch backend"
EXTRA = "keras"


class Hooks(Recording):
    """Records what `model.fit` trains; options are those of `stepscope.profile`.

    `recording.run` is the run once the training is over, `recording.path` its folder.
    """

    model: Any
    params: dict[str, Any]

    def __init__(self, **options: Any) -> None:
        _require_torch()
        super().__init__(**options)
        self._batches = 0
        self._is_planned = False

    def _idle_state(self) -> dict[str, Any]:
        return {"_batches": 0, "_is_planned": False, "_model": None, "params": None}

    def on_train_begin(self, logs: Any = None) -> None:
        """The first step begins; batches of a `fit` before whose gradients wait are of it."""
        model, passes = self.model, self._accumulates()
        self._batches, self._is_planned = int(getattr(model.optimizer, "_iterations", 0)) % passes, False
        self.recording.begin(
            try_call(_layers, model) or model,
            [model.optimizer],
            trainer={
                "library": "keras",
                "version": version_of(import_library("keras", EXTRA)),
                "first_step": int(getattr(model.optimizer, "iterations", 0)),
                "accumulate": passes,
            },
            workload={"precision": str(model.dtype_policy.name)},
        )
        if self.recording.open:
            self._observe_fit()
            self.recording.observe_checkpoints(model, ("save", "save_weights"), "keras")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Resume after what was done between two epochs, which is no part of a step."""
        per_epoch, last = self.params.get("steps"), self.params.get("epochs")  # the first is `initial_epoch`
        if not self._is_planned and per_epoch and last:
            self.recording.set_planned_steps((self._batches + per_epoch * (last - epoch)) // self._accumulates())
        self._is_planned = True
        self.recording.resume()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """A batch begins."""
        self.recording.begin_batch()

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

    def _observe_fit(self) -> None:
        """Hear of the exception that ends this `fit`, where Keras shortens the traceback that leaves it."""
        fit = _running_fit()
        if fit is None:
            return

        def leaves(trace: Any) -> bool:
            inner = getattr(trace, "tb_next", None)
            return inner is not None and id(inner.tb_frame) == fit

        def ended(_shortened: Any) -> None:
            self.recording.end(sys.exc_info()[1])

        tracebacks = sys.modules.get("keras.src.utils.traceback_utils")
        self.recording.observe_calls(tracebacks, "_process_traceback_frames", leaves, returned=ended)


def _running_fit() -> int | None:
    """The address of the frame of Keras' `fit` that calls this callback, which lives as long as `fit` runs."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "fit" and str(frame.f_globals.get("__name__")).startswith("keras."):
            return id(frame)
        frame = frame.f_back
    return None


def _require_torch() -> None:
    backend = import_library("keras", EXTRA).backend.backend()
    if backend != "torch":
        raise UsageError(
            f"Keras runs on {backend}, and only torch can be recorded", "set KERAS_BACKEND=torch before importing keras"
        )


def _layers(model: Any) -> dict[str, Any]:
    """The model, and every layer by the name that Keras gives it: torch does not see layers in the lists of Keras."""
    return {"": model, **_named_layers(model, "")}


def _named_layers(model: Any, above: str) -> dict[str, Any]:
    layers: dict[str, Any] = {}
    for layer in model.layers:
        layers[above + layer.name] = layer
        if hasattr(layer, "layers"):
            layers |= _named_layers(layer, f"{above}{layer.name}.")
    return layers


__getattr__ = class_on_demand(Hooks, lambda: (import_library("keras", EXTRA).callbacks.Callback,))

if TYPE_CHECKING:
    StepscopeCallback = Hooks
