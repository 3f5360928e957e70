"""A setting in which a workload is trained, and the rules that every training of a study keeps."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

TRAINING, INFERENCE = "training", "inference"


@dataclass(frozen=True)
class Setting:
    """What differs between the trainings of a study; null is the workload's or torch's own choice.

    lr: learning rate. mode: a power mode of the board, by its number.
    """

    workload: str
    batch: int | None = None
    optimizer: str | None = None
    precision: str = "fp32"
    threads: int | None = None
    device: str = "cpu"
    kind: str = TRAINING
    lr: float | None = None
    mode: int | None = None

    @property
    def id(self) -> str:
        """A name for files."""
        said = [f"{name}-{value}" for name, value in asdict(self).items() if value is not None]
        return re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(said))


@dataclass(frozen=True)
class Rules:
    """How every training is made: it ends after so many steps or seconds, or where its loss has reached a target.

    With a target, `steps` is the most that are made. simulate: a board whose sensors are simulated.
    """

    repeats: int = 3
    steps: int | None = None
    seconds: float | None = 10.0
    target_loss: float | None = None
    time_limit_s: float = 900.0
    seed: int = 0
    simulate: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Point:
    """One training: a setting and which repeat of it."""

    setting: Setting
    repeat: int

    @property
    def id(self) -> str:
        return f"{self.setting.id}-r{self.repeat}"


def points(settings: Sequence[Setting], rules: Rules) -> list[Point]:
    """Rounds of all settings, each shuffled, so that what drifts hits all alike."""
    shuffle, order = random.Random(rules.seed), list[Point]()
    for repeat in range(rules.repeats):
        round_ = [Point(setting, repeat) for setting in settings]
        shuffle.shuffle(round_)
        order += round_
    return order
