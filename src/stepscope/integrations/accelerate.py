"""Accelerate: `with profile(accelerator) as recording:` around the loop, or `Accelerator(log_with=StepscopeTracker())`.

Accelerate calls the torch optimizer only when the gradients of enough batches have added up: its calls are the steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stepscope.integrations._library_hooks import Recording, class_on_demand, import_library, try_call, version_of

if TYPE_CHECKING:
    from stepscope.integrations._training import TrainingRun

TITLE = "Accelerate training loop"
EXTRA = "huggingface"
_PRECISION = {"no": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}


@contextmanager
def profile(accelerator: Any, **options: Any) -> Iterator[TrainingRun]:
    """Record the loop within; options are those of `stepscope.profile`. Only the first process records.

    `recording.run` is the run once the block is left, `recording.path` its folder.
    """
    from stepscope.integrations._training import TrainingRun

    recording = TrainingRun(**options)
    recording.guard(_begin_prepared, recording, accelerator, opens=True)
    try:
        yield recording
    except BaseException as error:
        recording.guard(recording.end, error)
        raise
    recording.guard(recording.end)


class Tracker(Recording):
    """Records from `accelerator.init_trackers` to `accelerator.end_training`; options are those of `stepscope.profile`.

    What `init_trackers` is given as configuration goes into run.json.
    """

    name = "stepscope"
    requires_logging_directory = False

    @property
    def tracker(self) -> TrainingRun:
        """Return what Accelerate gives to those who request the tracker itself."""
        return self.recording

    def start(self) -> None:
        """`init_trackers` was called: recording begins; models are found as they are called."""
        _begin(self.recording, [], [])

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """The user's own settings."""
        self.recording.update(
            config={str(_to_plain_value(key)): _to_plain_value(value) for key, value in values.items()}
        )

    def finish(self) -> None:
        """The training is over."""
        self.recording.end()


def _to_plain_value(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None))) else try_call(str, value)


def _begin_prepared(recording: TrainingRun, accelerator: Any) -> None:
    _begin(recording, list(accelerator._models), accelerator._optimizers)


def _begin(recording: TrainingRun, models: list[Any], optimizers: list[Any]) -> None:
    states = import_library("accelerate.state", EXTRA)
    process = states.AcceleratorState()
    if not process.is_main_process:
        return
    recording.begin(
        models[0] if len(models) == 1 else models or None,
        optimizers,
        trainer={
            "library": "accelerate",
            "version": version_of(import_library("accelerate", EXTRA)),
            "accumulate": states.GradientState().num_steps,
            "processes": process.num_processes,
        },
        workload={"precision": _PRECISION.get(process.mixed_precision), "device": str(process.device)},
        steps="optimizer",
    )


__getattr__ = class_on_demand(
    Tracker, lambda: (import_library("accelerate.tracking", EXTRA).GeneralTracker,), "StepscopeTracker"
)

if TYPE_CHECKING:
    StepscopeTracker = Tracker
