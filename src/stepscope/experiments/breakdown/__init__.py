"""Time, memory and energy of one model or two by family of operators.

Here lies its request; study.py measures and judges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from stepscope.errors import UsageError
from stepscope.experiments.engine import (
    DEVICE,
    OPTIMIZER,
    SIMULATE,
    THREADS,
    TIME_LIMIT,
    StudyRequest,
    check_device,
    find_workload,
)
from stepscope.experiments.sweeps import QUICK, REPEATS, SEED, STEPS, TrainingRules, training_rules
from stepscope.request import option

if TYPE_CHECKING:
    from stepscope.experiments.engine.engine import Plan


@dataclass(frozen=True)
class Breakdown(StudyRequest):
    """Break training and inference down by operator: time, memory at the peak, and energy where measured.

    Two models are drawn side by side, with memory over the step of both, and it is said what the larger holds more of.
    """

    study: ClassVar[str] = "breakdown"

    models: tuple[str, ...] = option(
        ("mobilenet-v1-c32", "resnet18-c32"),
        "One workload or two. Default: mobilenet-v1-c32 and resnet18-c32.", stated=True, argument=True,
    )  # fmt: skip
    batch: int = option(16, "Batch size, the same for both.", least=1, example="4")
    optimizer: str | None = option(None, OPTIMIZER)
    threads: int | None = option(None, THREADS)
    device: str = option("cpu", DEVICE)
    repeats: int = option(3, REPEATS)
    steps: int | None = option(None, STEPS)
    simulate: str | None = option(None, SIMULATE)
    memory_only: bool = option(False, "Dry runs alone: nothing is trained, so that any size fits.")
    quick: bool = option(False, QUICK)
    seed: int = option(0, SEED)
    time_limit: float | None = option(None, TIME_LIMIT)

    @property
    def subject(self) -> str:
        return "-".join(self.models)

    @property
    def trainings(self) -> tuple[str, ...]:
        return self.models

    @property
    def rules(self) -> TrainingRules:
        """The facts that every training is made with."""
        return training_rules(self, default_steps=30)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "models", tuple(dict.fromkeys(self.models)))
        if len(self.models) > 2:
            raise UsageError(
                f"{len(self.models)} models are too many to be told apart in a picture", "give one or two"
            )  # fmt: skip

    def checked(self) -> StudyRequest:
        for model in self.models:
            find_workload(model, self.optimizer)
        check_device(self.device)
        return self

    def plan(self) -> Plan:
        from stepscope.experiments.breakdown.study import breakdown_plan
        from stepscope.footprint.jobs import workload_job

        return breakdown_plan(
            self, {model: workload_job(find_workload(model), self.optimizer) for model in self.models}
        )  # fmt: skip
