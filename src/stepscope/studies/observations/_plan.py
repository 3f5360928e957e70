"""What the study measures: trainings of a few models with several batch sizes, a dry run of each, daily training."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from stepscope.errors import UnknownName, UsageError
from stepscope.studies.observations import every
from stepscope.studies.observations._days import Daily
from stepscope.studies.suite.grid import Point

QUICK_WORKLOADS = ("lenet", "squeezenet-c32", "char-lstm-80", "dqn-2013-84")
PAPER_WORKLOADS = (
    "densenet40-12-c32", "resnet50-c32", "squeezenet-c32", "inception-v1-c32", "dcgan-32", "char-lstm-80", "dqn-2013-84"
)  # fmt: skip
QUICK_BATCHES, PAPER_BATCHES = (4, 16, 64), (4, 8, 16, 32, 64)
LEAST_STEPS = 12  # three of them warm-up; nine are enough for the interval of a median
_TIME_LIMIT_S = 900.0


@dataclass(frozen=True)
class Asked:
    """All that a repetition needs. `threads` null is torch's choice; `only` empty is every observation."""

    workloads: tuple[str, ...] = PAPER_WORKLOADS
    batches: tuple[int, ...] = PAPER_BATCHES
    repeats: int = 3
    seconds: float = 20.0
    device: str = "cpu"
    threads: int | None = None
    simulate: str | None = None
    sweeps: tuple[str, ...] = ()
    only: tuple[int, ...] = ()
    seed: int = 0
    time_limit_s: float = _TIME_LIMIT_S
    daily: Daily = field(default_factory=lambda: Daily(batches=(16, 32, 64)))

    def __post_init__(self) -> None:
        known = [each.number for each in every()]
        for number in self.only:
            if number not in known:
                raise UnknownName("observation", str(number), map(str, known))
        for name, value in (("--batch", min(self.batches, default=0)), ("--repeats", self.repeats)):
            if value < 1:
                raise UsageError(f"{name} {value}: must be 1 or more", f"for example {name} 4")
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"--threads {self.threads}: must be 1 or more", "for example --threads 1")
        if not self.seconds > 0:
            raise UsageError(f"--seconds {self.seconds:g}: must be above 0", "for example --seconds 20")

    @property
    def needs(self) -> set[str]:
        """The kinds of measurement: runs, memory, days."""
        return {each.needs for each in every() if not self.only or each.number in self.only}

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def quick(asked: Asked) -> Asked:
    """The same in minutes on two cores: small models, three batch sizes, two repeats, few days of one batch size."""
    daily = replace(asked.daily, days=10, batches=(16,), seeds=(0, 1, 2, 3))
    return replace(asked, workloads=QUICK_WORKLOADS, batches=QUICK_BATCHES, repeats=2, seconds=2.0, daily=daily)


@dataclass(frozen=True)
class Cell:
    """One measurement: its id in the study's folder, how it is called for people, and the orders for the child."""

    id: str
    called: str
    orders: Mapping[str, Any]


def cells(asked: Asked) -> list[Cell]:
    """What is measured, in order: runs shuffled within each round of repeats, so that repeats lie far apart."""
    found = [] if asked.sweeps or "runs" not in asked.needs else list(_runs(asked))
    shared: dict[str, Any] = {"threads": asked.threads, "simulate": asked.simulate}
    if "memory" in asked.needs:
        for name in asked.workloads:
            point = Point(name, 1, "own", "fp32", asked.threads, asked.device, 0)
            orders = {"what": "memory", "workload": name, "batches": list(asked.batches), **shared}
            found.append(Cell(f"memory-{point.id}", f"memory of {name}, counted on a dry run", orders))
    if "days" in asked.needs:
        for seed in asked.daily.seeds:
            scenario = replace(asked.daily, seeds=(seed,))
            orders = {**shared, "what": "days", "daily": asdict(scenario)}
            called = f"{scenario.days} days of {scenario.images} images, seed {seed}"
            found.append(Cell(f"days-{seed}", called, orders))
    return found


def _runs(asked: Asked) -> Iterator[Cell]:
    for point in _shuffled(asked):
        orders = {"what": "run", "workload": point.workload, "batch": point.batch, "device": asked.device}
        orders |= {"threads": asked.threads, "simulate": asked.simulate, "seed": asked.seed + point.repeat}
        orders |= {"steps": LEAST_STEPS, "seconds": asked.seconds}
        called = f"{point.workload} batch {point.batch}, repeat {point.repeat + 1} of {asked.repeats}"
        yield Cell(point.id, called, orders)


def _shuffled(asked: Asked) -> Sequence[Point]:
    shuffle, order = random.Random(asked.seed), list[Point]()
    for repeat in range(asked.repeats):
        round_ = [
            Point(name, batch, "own", "fp32", asked.threads, asked.device, repeat)
            for name in dict.fromkeys(asked.workloads)
            for batch in dict.fromkeys(asked.batches)
        ]
        shuffle.shuffle(round_)
        order += round_
    return order
