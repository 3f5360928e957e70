"""`stepscope study batch`, `threads` and `precision`: the best value of one axis for speed, energy or a target loss."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from stepscope.analysis.results import Findings
from stepscope.experiments.engine.folder import StudyFolder
from stepscope.experiments.sweeps.request import TrainingSetting, TrainingSweep
from stepscope.experiments.sweeps.results import (
    JOULES,
    LEARNING,
    MEMORY,
    SPEED,
    SettingCost,
    Sweep,
    build_findings,
    setting_costs,
)
from stepscope.experiments.sweeps.trainings import TrainingContext, run_trainings

CHILD = (sys.executable, "-m", "stepscope.experiments.sweeps.child")
_TITLES = {
    "batch": "The batch size for {}",
    "threads": "The number of threads for {}",
    "precision": "The arithmetic for {}",
}
_ENOUGH = 0.95  # of the highest throughput: what more costs memory for little


def axis_study(
    out: str | Path, asked: TrainingSweep, *, means: TrainingContext | None = None, command: str = ""
) -> Findings:
    """Train in every setting, in a study's folder that is begun or gone on with, and say which is best for what."""
    folder = StudyFolder(Path(out), asked.axis, asked.to_dict())
    question = axis_sweep(asked.axis, asked.base.workload)
    with folder.locked():
        runs = run_trainings(folder, asked.settings, asked.rules, means or TrainingContext(CHILD), question.called)
    said = command or f"stepscope study {asked.axis} {asked.base.workload} --out {out}"
    answer = _knee(setting_costs(runs)) if asked.axis == "batch" else ""
    return build_findings(question, runs, asked.rules, asked.to_dict(), said, answer=answer)


def axis_sweep(axis: str, workload: str) -> Sweep:
    """Return the labels of the settings of an axis, and where they lie on it."""

    def called(setting: TrainingSetting) -> str:
        value = getattr(setting, axis)
        return str(value) if axis == "precision" else f"{axis} {value}"

    def place(setting: TrainingSetting) -> float | None:
        return None if axis == "precision" else float(getattr(setting, axis))

    judged = (SPEED, *JOULES.values(), MEMORY, *LEARNING)
    return Sweep(axis, _TITLES[axis].format(workload), axis, called, judged, place)


def _knee(every: Sequence[SettingCost]) -> str:
    """The smallest batch that nearly reaches the highest throughput."""
    fast = [cost for cost in every if SPEED in cost.values]
    if len(fast) < 2:
        return ""
    most = max(cost.values[SPEED].value for cost in fast)
    knee = min(
        (cost for cost in fast if cost.values[SPEED].value >= _ENOUGH * most), key=lambda cost: cost.setting.batch or 0
    )
    return f"From batch {knee.setting.batch} on, throughput is within {1 - _ENOUGH:.0%} of the highest."
