"""Training on a few new images every day: accuracy, time and energy by day, with and without replay of older ones.

Here lies its request; study.py plans and judges, training.py is one training.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

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
from stepscope.request import option

if TYPE_CHECKING:
    from stepscope.experiments.engine.engine import Plan


REPLAYS = ("none", "reservoir", "all")


@dataclass(frozen=True)
class DailyTraining(StudyRequest):
    """Train a pre-trained model on a few new images every day: accuracy by day, time and energy, and whether it fits.

    Replay of older images works against forgetting, and takes time: `--order classes` shows both.
    It can be interrupted: the same command with the same --out continues where it stopped.
    """

    study: ClassVar[str] = "daily"

    workload: str = option("lenet", "A classifier. Default: lenet.", stated=True, argument=True)
    days: int = option(17, "Days: 17 (--quick: 5).", least=1, quick=5)
    images: int = option(64, "New images a day: 64.", least=1, stated=True)
    start: float | None = option(
        None, "Accuracy that it is pre-trained to, %. Default: the weights that ship, else till it rises no more.",
        above=0, unit="share", bare="%", example="60", stated=True,
    )  # fmt: skip
    batch: tuple[int, ...] = option((16, 64), "Batch sizes of the days: 16,64 (--quick: 16).", least=1, quick=(16,))
    replay: tuple[str, ...] = option(
        REPLAYS, "Older images again: none,reservoir,all. Default: all.", choices=REPLAYS, stated=True
    )
    keep: int = option(256, "Images that the reservoir keeps: 256.", least=1, stated=True)
    passes: int = option(1, "Times that a day's images are gone through: 1.", least=1, stated=True)
    order: str = option(
        "shuffled", "shuffled: days alike; classes: one class after the other.",
        choices=("shuffled", "classes"), stated=True,
    )  # fmt: skip
    charging: float | None = option(
        None, "How long the device charges, for example 1h or 30min.", above=0, unit="s", example="1h"
    )
    battery: float | None = option(
        None, "What its battery holds, for example 10Wh.", above=0, unit="J", bare="Wh", example="10Wh"
    )
    seeds: int = option(5, "Lives of each setting: 5 (--quick: 3).", least=1, quick=3)
    optimizer: str | None = option(None, OWN_OPTIMIZER)
    lr: float | None = option(None, LEARNING_RATE)
    data: str | None = option(None, DATA)
    test_samples: int = option(TEST_SAMPLES, LOOKED_AT, least=1)
    device: str = option("cpu", ANY_DEVICE)
    threads: int | None = option(None, "Threads. Default: torch's choice.", least=1, most=1024, example="4")
    simulate: str | None = option(None, SIMULATE)
    time_limit: float = option(DEFAULT_TIME_LIMIT_S, TIME_LIMIT)
    quick: bool = option(False, "Five days, three seeds, one batch size.", stored=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start is not None and not self.start < 1:
            raise UsageError(f"--start: {100 * self.start:g} % cannot be pre-trained to", "for example --start 60")
        if not self.batch or not self.replay:
            raise UsageError("no batch size or no replay was given", "leave --batch and --replay out for all")

    def checked(self) -> StudyRequest:
        check_classifier(self.workload, self.optimizer)
        return replace(self, data=pinned_data(self.workload, self.data))

    def plan(self) -> Plan:
        from stepscope.experiments.daily.study import daily_plan

        return daily_plan(self)
