"""What the study of partial training is asked, and the trainings that answer it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from stepscope.errors import UnknownName, UsageError
from stepscope.studies.watch import Job

WAYS = ("all", "layers", "filters", "cumulative", "last", "bias", "batch-norm", "lora", "sparse", "gradual")
FRACTIONAL = ("layers", "filters", "cumulative", "sparse")
EACH = ("step", "epoch")
MOST_SEEDS = 100


@dataclass(frozen=True)
class Asked:
    """All that a repetition needs. Null is the workload's own default; `steps` goes before `epochs`.

    classes: train on these alone; with `transfer` the others are pre-trained on. preset: where the settings are from.
    """

    workload: str = "lenet"
    ways: tuple[str, ...] = WAYS
    fractions: tuple[float, ...] = (0.2, 0.4, 0.6, 1.0)
    each: str = "step"
    transfer: bool = False
    classes: tuple[int, ...] = ()
    checkpoint: str | None = None
    checkpoint_sha256: str | None = None
    seeds: int = 5
    steps: int | None = None
    epochs: int = 5
    batch: int | None = None
    optimizer: str | None = None
    lr: float | None = None
    data: str | None = None
    device: str = "cpu"
    threads: int | None = None
    simulate: str | None = None
    preset: str | None = None
    time_limit_s: float = 3600.0

    def __post_init__(self) -> None:
        for way in self.ways:
            if way not in WAYS:
                raise UnknownName("way", way, WAYS)
        if self.each not in EACH:
            raise UnknownName("choice for --each", self.each, EACH)
        for fraction in self.fractions:
            if not (math.isfinite(fraction) and 0 < fraction <= 1):
                raise UsageError(
                    f"--fractions: {100 * fraction:g} % cannot be trained", "give percents from 1 to 100: 20,40,60,100"
                )
        for name, value in (("--seeds", self.seeds), ("--steps", self.steps or 1), ("--epochs", self.epochs)):
            if value < 1:
                raise UsageError(f"{name} {value}: must be 1 or more", f"for example {name} 5")
        if self.steps == 0:
            raise UsageError("--steps 0: must be 1 or more", "for example --steps 100")
        if self.seeds > MOST_SEEDS:
            raise UsageError(f"--seeds {self.seeds}: at most {MOST_SEEDS}", "5 give an interval")
        if not self.ways or not self.fractions:
            raise UsageError("no way or no fraction is asked for", "leave --ways and --fractions out for all of them")
        if self.transfer and self.checkpoint is not None:
            raise UsageError(
                "--transfer pre-trains here, --checkpoint brings weights", "give one of them; both are transfer"
            )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Setting:
    """One line of the result: a way at a fraction; its trainings differ by their seed."""

    way: str
    fraction: float

    @property
    def name(self) -> str:
        """For people and for files: `filters 60 %` is `filters-60`."""
        return f"{self.way} {100 * self.fraction:g} %" if self.way in FRACTIONAL else self.way

    @property
    def id(self) -> str:
        return self.name.removesuffix(" %").replace(" ", "-").replace(".", "_")


def settings(asked: Asked) -> list[Setting]:
    """In the order asked for. 100 % of anything is the same training as all, which is then made in its place."""
    found = []
    for way in asked.ways:
        if way not in FRACTIONAL:
            found.append(Setting(way, 1.0))
            continue
        found += [Setting(way, fraction) if fraction < 1 else Setting("all", 1.0) for fraction in asked.fractions]
    return list(dict.fromkeys(found))


def jobs(asked: Asked) -> list[Job]:
    """A process for each setting, which makes its seeds one after the other."""
    shared = {each.name: getattr(asked, each.name) for each in fields(Asked) if each.name in _TOLD}
    return [
        Job(
            setting.id,
            f"{asked.workload}: {setting.name}",
            {seed: f"{setting.id}-s{seed}" for seed in range(asked.seeds)},
            {
                "what": "partial",
                "workload": asked.workload,
                "threads": asked.threads,
                "simulate": asked.simulate,
                "lesson": {**shared, "way": setting.way, "fraction": setting.fraction},
            },
        )
        for setting in settings(asked)
    ]


_TOLD = frozenset(
    ("each", "steps", "epochs", "batch", "optimizer", "lr", "data", "device", "transfer", "classes", "checkpoint")
)


def quick(given: Mapping[str, Any]) -> dict[str, Any]:
    """The same in minutes: two seeds, one epoch, one fraction; what is given stays."""
    return {"seeds": 2, "epochs": 1, "fractions": (0.6,), **given}
