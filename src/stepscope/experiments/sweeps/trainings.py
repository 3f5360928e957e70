"""The settings of a sweep of trainings, and each training made in a process of its own."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stepscope.analysis.run import Run
from stepscope.errors import UsageError
from stepscope.experiments.engine.folder import StudyFolder
from stepscope.experiments.engine.process import run_child
from stepscope.experiments.suite.sweep import read_run
from stepscope.experiments.sweeps.request import TrainingRules, TrainingSetting


@dataclass(frozen=True)
class TrainingPoint:
    """One training: a setting and which repeat of it."""

    setting: TrainingSetting
    repeat: int

    @property
    def id(self) -> str:
        return f"{self.setting.id}-r{self.repeat}"


def training_points(settings: Sequence[TrainingSetting], rules: TrainingRules) -> list[TrainingPoint]:
    """Rounds of all settings, each shuffled, so that what drifts hits all alike."""
    shuffle, order = random.Random(rules.seed), list[TrainingPoint]()
    for repeat in range(rules.repeats):
        round_ = [TrainingPoint(setting, repeat) for setting in settings]
        shuffle.shuffle(round_)
        order += round_
    return order


STATE_FILE = "found.json"  # what the child says beside its run
ENERGY = ("energy_per_sample_j", "estimated_energy_per_sample_j", "simulated_energy_per_sample_j")


class SettingRefused(UsageError):
    """The device cannot be brought into a setting."""


ProgressCallback = Callable[[int, int, str], None]
Around = Callable[[TrainingSetting], AbstractContextManager[Any]]


@dataclass(frozen=True)
class TrainingRun:
    """One training as it ended. numbers: value, low and high by name, as the suite has them; times_s: end of each step.

    state_bytes: what the optimizer keeps beside the parameters, B. run: the run folder.
    """

    point: TrainingPoint
    status: str
    reason: str | None = None
    numbers: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    losses: Sequence[float] = ()
    times_s: Sequence[float] = ()
    state_bytes: int | None = None
    flags: Sequence[str] = ()
    run: Path | None = None


@dataclass(frozen=True)
class TrainingContext:
    """Means to make trainings: the child's command, the listener, what is done around each, and in which order.

    `around` may raise SettingRefused: the training is not made then.
    """

    child: Sequence[str]
    tell: ProgressCallback = lambda place, count, what: None
    around: Around = lambda setting: contextlib.nullcontext()
    order: Callable[[list[TrainingPoint]], list[TrainingPoint]] = lambda points: points


def run_trainings(
    folder: StudyFolder,
    settings: Sequence[TrainingSetting],
    rules: TrainingRules,
    means: TrainingContext,
    called: Callable[[TrainingSetting], str],
) -> list[TrainingRun]:
    """Every training as it was made before, or made now, in the order of the settings and their repeats.

    An interrupted one leaves nothing and is made again; so is one whose setting was refused.
    """
    todo, result = means.order(training_points(settings, rules)), dict[TrainingPoint, TrainingRun]()
    for place, point in enumerate(todo):
        known = folder.cell(point.id)
        try:
            if known is None:
                means.tell(place, len(todo), f"{called(point.setting)}, repeat {point.repeat + 1}")
                with means.around(point.setting):
                    known = folder.answered(point.id, lambda point=point: _run_training(folder, point, rules, means))  # type: ignore[misc]
            result[point] = _result_of_cell(folder, point, known)
        except SettingRefused as error:
            result[point] = TrainingRun(point, "refused", str(error))
    return [result[TrainingPoint(setting, repeat)] for setting in settings for repeat in range(rules.repeats)]


def _run_training(
    folder: StudyFolder, point: TrainingPoint, rules: TrainingRules, means: TrainingContext
) -> dict[str, Any]:
    where = folder.path / "runs" / point.id
    orders = {**asdict(point.setting), **rules.to_dict(), "seed": rules.seed + point.repeat}
    outcome = run_child(means.child, orders, where, rules.time_limit_s)
    found: dict[str, Any] = {"status": outcome.status, "reason": outcome.reason, "wall_s": outcome.wall_s}
    if outcome.run is None:
        return found
    found |= {"run": str(outcome.run.relative_to(folder.path)), **_optimizer_state(where)}
    if outcome.status == "ok":
        of_run = read_run(outcome.run, True)
        steps = Run(outcome.run).steps
        began = steps["t0_ns"][0] if len(steps) else 0
        found |= {name: of_run[name] for name in ("numbers", "flags")}
        found |= {"losses": steps["loss"].to_list(), "times_s": ((steps["t1_ns"] - began) / 1e9).to_list()}
    return found


def _optimizer_state(where: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        said = json.loads((where / STATE_FILE).read_text(encoding="utf-8"))
        return {"state_bytes": said.get("state_bytes")} if isinstance(said, dict) else {}
    return {}


def _result_of_cell(folder: StudyFolder, point: TrainingPoint, known: Mapping[str, Any]) -> TrainingRun:
    names = ("numbers", "losses", "times_s", "state_bytes", "flags")
    run = folder.path / known["run"] if known.get("run") else None
    return TrainingRun(
        point,
        known["status"],
        known.get("reason"),
        **{name: known[name] for name in names if known.get(name) is not None},
        run=run,
    )
