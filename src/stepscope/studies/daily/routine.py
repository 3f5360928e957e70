"""What the study of daily training is asked, and the trainings that answer it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from stepscope.errors import UnknownName, UsageError
from stepscope.studies.watch import Job

REPLAYS = ("none", "reservoir", "all")
ORDERS = ("shuffled", "classes")


@dataclass(frozen=True)
class Asked:
    """The scenario: pre-trained to `start`, then `images` new ones each day, gone through `passes` times.

    replay: what older images are trained on again: none, as many as the new ones out of a reservoir of `keep`, or all.
    order: days alike, or class after class. charging_s: what a night gives; battery_j: its energy; null is not asked.
    """

    workload: str = "lenet"
    days: int = 17
    images: int = 64
    start: float = 0.6
    batches: tuple[int, ...] = (16, 64)
    replays: tuple[str, ...] = REPLAYS
    keep: int = 256
    passes: int = 1
    order: str = "shuffled"
    seeds: int = 5
    optimizer: str | None = None
    lr: float | None = None
    data: str | None = None
    device: str = "cpu"
    threads: int | None = None
    simulate: str | None = None
    charging_s: float | None = None
    battery_j: float | None = None
    time_limit_s: float = 3600.0

    def __post_init__(self) -> None:
        for replay in self.replays:
            if replay not in REPLAYS:
                raise UnknownName("replay", replay, REPLAYS)
        if self.order not in ORDERS:
            raise UnknownName("order", self.order, ORDERS)
        for name in ("days", "images", "keep", "passes", "seeds"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} {getattr(self, name)}: must be 1 or more", f"for example --{name} 5")
        if not 0 < self.start < 1:
            raise UsageError(f"--start: {100 * self.start:g} % cannot be pre-trained to", "for example --start 60")
        if not self.batches or min(self.batches) < 1 or not self.replays:
            raise UsageError("a batch has at least one image", "for example --batch 16,64")
        for option, value in (("--charging", self.charging_s), ("--battery", self.battery_j)):
            if value is not None and not value > 0:
                raise UsageError(f"{option}: must be more than nothing", "for example --charging 1h --battery 10Wh")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Routine:
    """What one process is told of the trainings that it makes: the fields of `Asked` that a training depends on."""

    days: int
    images: int
    start: float
    batch: int
    replay: str
    keep: int
    passes: int
    order: str
    optimizer: str | None
    lr: float | None
    data: str | None
    device: str


@dataclass(frozen=True)
class Setting:
    """One line of the result; its trainings differ by their seed."""

    batch: int
    replay: str

    @property
    def name(self) -> str:
        return f"batch {self.batch}, replay {self.replay}"

    @property
    def id(self) -> str:
        return f"b{self.batch}-{self.replay}"


def settings(asked: Asked) -> list[Setting]:
    """Every batch size with every replay."""
    return [Setting(batch, replay) for batch in dict.fromkeys(asked.batches) for replay in dict.fromkeys(asked.replays)]


def jobs(asked: Asked) -> list[Job]:
    """A process for each setting, which makes its seeds one after the other."""
    told = {each.name for each in fields(Routine)} - {"batch", "replay"}
    shared = {name: getattr(asked, name) for name in sorted(told)}
    return [
        Job(
            setting.id,
            f"{asked.workload}: {asked.days} days, {setting.name}",
            {seed: f"{setting.id}-s{seed}" for seed in range(asked.seeds)},
            {
                "what": "daily",
                "workload": asked.workload,
                "threads": asked.threads,
                "simulate": asked.simulate,
                "routine": {**shared, "batch": setting.batch, "replay": setting.replay},
            },
        )
        for setting in settings(asked)
    ]


def quick(given: dict[str, Any]) -> dict[str, Any]:
    """The same in minutes: fewer days and seeds of one batch size; what is given stays."""
    return {"days": 5, "seeds": 3, "batches": (16,), **given}
