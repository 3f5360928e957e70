"""Makes trainings one after the other, each in a process of its own, and reads what they cost."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stepscope.analysis.run import Run
from stepscope.errors import UsageError
from stepscope.studies.study_folder import StudyFolder
from stepscope.studies.suite.measured import measured as read_run
from stepscope.studies.suite.run_one import run_one
from stepscope.studies.trainings.setting import Point, Rules, Setting, points

FOUND = "found.json"  # what the child says beside its run
ENERGY = ("energy_per_sample_j", "estimated_energy_per_sample_j", "simulated_energy_per_sample_j")


class SettingRefused(UsageError):
    """The device cannot be brought into a setting."""


Tell = Callable[[int, int, str], None]
Around = Callable[[Setting], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Trained:
    """One training as it ended. numbers: value, low and high by name, as the suite has them; times_s: end of each step.

    state_bytes: what the optimizer keeps beside the parameters, B. run: the run folder.
    """

    point: Point
    status: str
    reason: str | None = None
    numbers: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    losses: Sequence[float] = ()
    times_s: Sequence[float] = ()
    state_bytes: int | None = None
    flags: Sequence[str] = ()
    run: Path | None = None


@dataclass(frozen=True)
class Means:
    """How trainings are made: the child's command, who is told, what is done around each, and in which order.

    `around` may raise SettingRefused: the training is not made then.
    """

    child: Sequence[str]
    tell: Tell = lambda place, count, what: None
    around: Around = lambda setting: contextlib.nullcontext()
    order: Callable[[list[Point]], list[Point]] = lambda points: points


def trained(
    folder: StudyFolder, settings: Sequence[Setting], rules: Rules, means: Means, called: Callable[[Setting], str]
) -> list[Trained]:
    """Every training as it was made before, or made now, in the order of the settings and their repeats.

    An interrupted one leaves nothing and is made again; so is one whose setting was refused.
    """
    todo, result = means.order(points(settings, rules)), dict[Point, Trained]()
    for place, point in enumerate(todo):
        known = folder.cell(point.id)
        try:
            if known is None:
                means.tell(place, len(todo), f"{called(point.setting)}, repeat {point.repeat + 1}")
                with means.around(point.setting):
                    known = folder.answered(point.id, lambda point=point: _made(folder, point, rules, means))  # type: ignore[misc]
            result[point] = _of(folder, point, known)
        except SettingRefused as error:
            result[point] = Trained(point, "refused", str(error))
    return [result[Point(setting, repeat)] for setting in settings for repeat in range(rules.repeats)]


def _made(folder: StudyFolder, point: Point, rules: Rules, means: Means) -> dict[str, Any]:
    where = folder.path / "runs" / point.id
    orders = {**asdict(point.setting), **rules.to_dict(), "seed": rules.seed + point.repeat}
    outcome = run_one(means.child, orders, where, rules.time_limit_s)
    found: dict[str, Any] = {"status": outcome.status, "reason": outcome.reason, "wall_s": outcome.wall_s}
    if outcome.run is None:
        return found
    found |= {"run": str(outcome.run.relative_to(folder.path)), **_said(where)}
    if outcome.status == "ok":
        of_run = read_run(outcome.run, True)
        steps = Run(outcome.run).steps
        began = steps["t0_ns"][0] if len(steps) else 0
        found |= {name: of_run[name] for name in ("numbers", "flags")}
        found |= {"losses": steps["loss"].to_list(), "times_s": ((steps["t1_ns"] - began) / 1e9).to_list()}
    return found


def _said(where: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        said = json.loads((where / FOUND).read_text(encoding="utf-8"))
        return {"state_bytes": said.get("state_bytes")} if isinstance(said, dict) else {}
    return {}


def _of(folder: StudyFolder, point: Point, known: Mapping[str, Any]) -> Trained:
    names = ("numbers", "losses", "times_s", "state_bytes", "flags")
    run = folder.path / known["run"] if known.get("run") else None
    return Trained(
        point,
        known["status"],
        known.get("reason"),
        **{name: known[name] for name in names if known.get(name) is not None},
        run=run,
    )
