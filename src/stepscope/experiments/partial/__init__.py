"""Training only a part of a model: what it costs, what it saves, and how good the model becomes.

Here lies its request; study.py plans and judges, training.py is one training, methods.py what each trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stepscope.errors import UsageError
from stepscope.experiments.engine import (
    ANY_DEVICE,
    DATA,
    DEFAULT_TIME_LIMIT_S,
    LEARNING_RATE,
    LOOKED_AT,
    OWN_OPTIMIZER,
    SIMULATE,
    TEST_SAMPLES,
    TIME_LIMIT,
    StudyRequest,
    check_classifier,
    pinned_data,
)
from stepscope.files import sha256_of
from stepscope.request import option, parameters

if TYPE_CHECKING:
    from stepscope.experiments.engine.engine import Plan


WAYS = ("all", "layers", "filters", "cumulative", "last", "bias", "batch-norm", "lora", "sparse", "gradual")
SECOND_PAPER: Mapping[str, Any] = {
    "workload": "lenet", "data": "mnist-5k", "optimizer": "sgd", "lr": 0.01, "batch": 40, "epochs": 5, "each": "step",
    "ways": ("all", "filters", "cumulative"), "fractions": (0.2, 0.6),
}  # fmt: skip
PRESETS: Mapping[str, Mapping[str, Any]] = {"second-paper": SECOND_PAPER}


@dataclass(frozen=True)
class PartialTraining(StudyRequest):
    """Train only a part of a model, in every way: accuracy against time, energy and memory, over several seeds.

    Freezing saves what it can: no gradient is computed where none is needed, and the study counts how much that is.
    It can be interrupted: the same command with the same --out continues where it stopped.
    """

    study: ClassVar[str] = "partial"

    workload: str = option("lenet", "A classifier. Default: lenet.", stated=True, argument=True)
    ways: tuple[str, ...] = option(
        WAYS, "all,layers,filters,cumulative,last,bias,batch-norm,lora,sparse,gradual; all of them.",
        choices=WAYS, stated=True,
    )  # fmt: skip
    fractions: tuple[float, ...] = option(
        (0.2, 0.4, 0.6, 1.0), "Percents for layers, filters, cumulative, sparse.",
        above=0, most=1, unit="share", bare="%", example="20,40,60,100", stated=True, quick=(0.6,),
    )  # fmt: skip
    each: str = option("step", "A fresh choice each step or each epoch: step.", choices=("step", "epoch"), stated=True)
    transfer: bool = option(False, "Pre-train on some classes, then train on the others.")
    classes: tuple[int, ...] = option(
        (), "Train on these classes: 5,6,7. With --transfer: half.", least=0, example="5,6,7", stated=True
    )  # fmt: skip
    checkpoint: Path | None = option(None, "Begin with these weights: a file of plain tensors.")
    pretrained: bool = option(False, "Begin with the weights that ship for this workload, of other pictures.")
    preset: str | None = option(None, "second-paper: the settings of the known points.", choices=PRESETS)
    seeds: int = option(5, "Trainings of each way: 5 (--quick: 2).", least=1, most=100, quick=2)
    steps: int | None = option(None, "Steps of a training, instead of epochs.", least=1, example="100")
    epochs: int = option(5, "Epochs of a training: 5 (--quick: 1).", least=1, quick=1)
    batch: int | None = option(None, "Batch size. Default: the workload's own.", least=1, example="16")
    optimizer: str | None = option(None, OWN_OPTIMIZER)
    lr: float | None = option(None, LEARNING_RATE)
    data: str | None = option(None, DATA)
    test_samples: int = option(TEST_SAMPLES, LOOKED_AT, least=1)
    device: str = option("cpu", ANY_DEVICE)
    threads: int | None = option(None, "Threads. Default: torch's choice.", least=1, most=1024, example="4")
    simulate: str | None = option(None, SIMULATE)
    time_limit: float = option(DEFAULT_TIME_LIMIT_S, TIME_LIMIT)
    quick: bool = option(False, "Two seeds, one epoch, 60 % alone.", stored=False)
    checkpoint_sha256: str | None = option(None, "SHA-256 of the checkpoint, once it has been read.", typed=False)

    def __post_init__(self) -> None:
        if self.preset is not None and self.preset in PRESETS:
            self._apply_preset(self.preset, PRESETS[self.preset])
        super().__post_init__()
        if not self.ways or not self.fractions:
            raise UsageError("no way or no fraction was given", "leave --ways and --fractions out for all of them")
        if sum((self.transfer, self.pretrained, self.checkpoint is not None)) > 1:
            text = "--transfer pre-trains here, --checkpoint and --pretrained bring weights"
            raise UsageError(text, "give one of them; all are transfer")

    def _apply_preset(self, preset: str, fixed: Mapping[str, Any]) -> None:
        """Fill in what the preset fixes; UsageError where something else was given."""
        other = [name for name in sorted(fixed) if not self._is_unset_or_equal(name, fixed[name])]
        if other:
            options = ", ".join(f"--{name}" for name in other)
            raise UsageError(f"--preset {preset} fixes {options}", "leave them out, or leave the preset out")
        for name, value in fixed.items():
            object.__setattr__(self, name, value)

    def _is_unset_or_equal(self, name: str, value: Any) -> bool:
        setting = getattr(self, name)
        return setting is None or parameters(type(self))[name].parse(setting) == value

    def checked(self) -> StudyRequest:
        check_classifier(self.workload, self.optimizer)
        if self.pretrained:
            _check_weights(self.workload)
        pinned = replace(self, data=pinned_data(self.workload, self.data))
        if self.checkpoint is None or self.checkpoint_sha256 is not None:
            return pinned
        from stepscope.experiments.partial.training import read_weights

        read_weights(self.checkpoint)
        return replace(pinned, checkpoint=self.checkpoint.absolute(), checkpoint_sha256=sha256_of(self.checkpoint))

    def plan(self) -> Plan:
        from stepscope.experiments.partial.study import partial_plan

        return partial_plan(self)


def _check_weights(workload: str) -> None:
    """UsageError where no weights ship for this workload."""
    from stepscope.workloads.data.packaged import WEIGHTS

    if workload not in WEIGHTS:
        hint = f"--transfer pre-trains here, --checkpoint FILE brings yours; there are weights of {', '.join(WEIGHTS)}"
        raise UsageError(f"no weights ship for '{workload}'", hint)
