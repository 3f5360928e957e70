"""`stepscope study optimizers` in Python: train one workload with each optimizer, and compare what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.analysis.findings import Findings
from stepscope.studies.optimizers.kinds import Kind
from stepscope.studies.study_folder import StudyFolder
from stepscope.studies.sweet_spots.study import CHILD
from stepscope.studies.trainings.costs import JOULES, LEARNING, STATE, STEP
from stepscope.studies.trainings.found import Question, found
from stepscope.studies.trainings.learning import least
from stepscope.studies.trainings.measuring import Means, Trained, trained
from stepscope.studies.trainings.setting import Rules, Setting

NAME = "optimizers"


@dataclass(frozen=True)
class Asked:
    """All that a repetition needs. names: of the optimizers; lr: learning rates of the user's, by optimizer."""

    base: Setting
    names: tuple[str, ...]
    lr: dict[str, float] = field(default_factory=dict)
    rules: Rules = field(default_factory=lambda: Rules(steps=200, seconds=None))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def optimizers(
    out: str | Path, asked: Asked, kinds: Sequence[Kind], *, means: Means | None = None, command: str = ""
) -> Findings:
    """Train with each of `kinds` that can be had here; those that cannot are named with the reason.

    Unless a target is asked for, every optimizer makes the same number of steps, and the target is the highest of the
    lowest losses that they reach: the loss that all of them reach.
    """
    folder = StudyFolder(Path(out), NAME, asked.to_dict())
    judged = (STATE, STEP, *JOULES.values(), *LEARNING)
    question = Question(NAME, f"Optimizers for {asked.base.workload}", "optimizer", lambda s: str(s.optimizer), judged)
    missing = {kind.name: kind.missing for kind in kinds}
    settings = [
        replace(asked.base, optimizer=kind.name, lr=asked.lr.get(kind.name)) for kind in kinds if not missing[kind.name]
    ]
    with folder.locked():
        runs = trained(folder, settings, asked.rules, means or Means(CHILD), question.called)
    rules, notes = _with_target(asked.rules, runs)
    notes += [f"{name} was left out: {why}" for name, why in missing.items() if why]
    notes.append("learning rates are the workload's own or follow from them; another rate may change who is first")
    said = command or f"stepscope study {NAME} {asked.base.workload} --out {out}"
    return found(question, runs, rules, asked.to_dict(), said, notes=notes)


def _with_target(rules: Rules, runs: Sequence[Trained]) -> tuple[Rules, list[str]]:
    """The rules with the target that was asked for, or with one that every optimizer has reached."""
    if rules.target_loss is not None:
        return rules, []
    lowest = [value for one in runs if one.losses and (value := least(one.losses)) is not None]
    if not lowest:
        return rules, ["no target: a loss is smoothed over ten steps, and no training made so many"]
    target = float(np.max(lowest))
    notes = [f"target: a loss of {target:.4g}, the lowest that all of them reached"]
    if len(lowest) < len(runs):
        uncounted = f"{len(runs) - len(lowest)} of {len(runs)} trainings have no loss to count"
        notes.append(f"{uncounted}: the target is without them")
    return replace(rules, target_loss=target), notes
