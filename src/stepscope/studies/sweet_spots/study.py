"""`stepscope study batch`, `threads` and `precision` in Python: one engine, an axis each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from stepscope.analysis.findings import Findings
from stepscope.studies.study_folder import StudyFolder
from stepscope.studies.trainings.costs import JOULES, LEARNING, MEMORY, SPEED, Cost, costs
from stepscope.studies.trainings.found import Question, found
from stepscope.studies.trainings.measuring import Means, trained
from stepscope.studies.trainings.setting import Rules, Setting

Axis = Literal["batch", "threads", "precision"]
CHILD = (sys.executable, "-m", "stepscope.commands._setting_child")
_TITLES = {
    "batch": "The batch size for {}",
    "threads": "The number of threads for {}",
    "precision": "The arithmetic for {}",
}
_ENOUGH = 0.95  # of the highest throughput: what more costs memory for little


@dataclass(frozen=True)
class Asked:
    """All that a repetition needs: the axis with its values, and the setting that they are put into."""

    axis: Axis
    values: tuple[Any, ...]
    base: Setting
    rules: Rules = field(default_factory=Rules)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def settings(self) -> list[Setting]:
        """One for each value, each once."""
        return [replace(self.base, **{self.axis: value}) for value in dict.fromkeys(self.values)]


def sweet_spot(out: str | Path, asked: Asked, *, means: Means | None = None, command: str = "") -> Findings:
    """Train in every setting, in a study's folder that is begun or gone on with, and say which is best for what."""
    folder = StudyFolder(Path(out), asked.axis, asked.to_dict())
    question = question_of(asked.axis, asked.base.workload)
    with folder.locked():
        runs = trained(folder, asked.settings, asked.rules, means or Means(CHILD), question.called)
    said = command or f"stepscope study {asked.axis} {asked.base.workload} --out {out}"
    answer = _knee(costs(runs)) if asked.axis == "batch" else ""
    return found(question, runs, asked.rules, asked.to_dict(), said, answer=answer)


def question_of(axis: Axis, workload: str) -> Question:
    """How the settings of an axis are called, and where they lie on it."""

    def called(setting: Setting) -> str:
        value = getattr(setting, axis)
        return str(value) if axis == "precision" else f"{axis} {value}"

    def place(setting: Setting) -> float | None:
        return None if axis == "precision" else float(getattr(setting, axis))

    judged = (SPEED, *JOULES.values(), MEMORY, *LEARNING)
    return Question(axis, _TITLES[axis].format(workload), axis, called, judged, place)


def _knee(every: Sequence[Cost]) -> str:
    """The smallest batch that nearly reaches the highest throughput."""
    fast = [cost for cost in every if SPEED in cost.values]
    if len(fast) < 2:
        return ""
    most = max(cost.values[SPEED].value for cost in fast)
    knee = min(
        (cost for cost in fast if cost.values[SPEED].value >= _ENOUGH * most), key=lambda cost: cost.setting.batch or 0
    )
    return f"From batch {knee.setting.batch} on, throughput is within {1 - _ENOUGH:.0%} of the highest."
