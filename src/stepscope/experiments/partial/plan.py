"""The trainings of the study of partial training, and the published points to compare with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.experiments.engine.engine import Point
from stepscope.experiments.engine.points import in_rounds
from stepscope.experiments.partial.request import PartialTraining

TASK = "stepscope.experiments.partial.training:train_point"
FRACTIONAL = ("layers", "filters", "cumulative", "sparse")


@dataclass(frozen=True)
class PartialSetting:
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


def partial_settings(asked: PartialTraining) -> list[PartialSetting]:
    """In the order asked for. 100 % of anything is the same training as all, which is then made in its place."""
    found = []
    for way in asked.ways:
        if way not in FRACTIONAL:
            found.append(PartialSetting(way, 1.0))
            continue
        found += [
            PartialSetting(way, fraction) if fraction < 1 else PartialSetting("all", 1.0)
            for fraction in asked.fractions
        ]
    return list(dict.fromkeys(found))


def partial_points(asked: PartialTraining) -> list[Point]:
    """A training for each setting and seed, in shuffled rounds."""
    settings = asked.to_dict()
    shared = {name: settings[name] for name in sorted(_LESSON_FIELDS)}
    shared |= {"classes": tuple(settings["classes"])}
    orders = {"workload": asked.workload, "threads": asked.threads, "simulate": asked.simulate}
    return [
        Point(
            f"{setting.id}-s{seed}",
            f"{asked.workload}: {setting.name}, seed {seed}",
            TASK,
            {**orders, "seed": seed, "lesson": {**shared, "way": setting.way, "fraction": setting.fraction}},
            setting=setting.id,
        )
        for setting, seed in in_rounds(partial_settings(asked), asked.seeds, 0)
    ]


_LESSON_FIELDS = frozenset(
    ("each", "steps", "epochs", "batch", "optimizer", "lr", "data", "device", "transfer", "classes", "checkpoint")
)


# The second paper's code (github.com/dereklh4/project_744) masks the filters of LeNet's convolutions and never thaws
# one. The points are of that network on 4,000 digits to train and 1,000 to test, plain SGD with 0.01 (its optimizer is
# made anew at every step, so its momentum never acts), 5 epochs, two seeds. The batch of the points is not stated: 40
# images, 500 updates, repeat all of them at once; with the code's own 64, accuracies are lower throughout.

# By way and fraction: % right on the test digits, a value a seed.
POINTS: Mapping[tuple[str, float], tuple[float, ...]] = {
    ("all", 1.0): (87.5, 86.1),
    ("filters", 0.6): (83.3, 83.3),
    ("filters", 0.2): (66.0, 74.3),
    ("cumulative", 0.6): (58.1, 64.0),
    ("cumulative", 0.2): (58.4, 63.8),
}
