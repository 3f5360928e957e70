"""`stepscope study batch`, `threads` and `precision`: the best value of one axis for speed, energy or a target loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepscope.experiments.engine.engine import Plan
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
from stepscope.experiments.sweeps.trainings import TrainingRun, training_plan

if TYPE_CHECKING:
    from stepscope.analysis.results import Findings

_TITLES = {
    "batch": "The batch size for {}",
    "threads": "The number of threads for {}",
    "precision": "The arithmetic for {}",
}
_ENOUGH = 0.95  # of the highest throughput: what more costs memory for little


def axis_plan(request: TrainingSweep) -> Plan:
    """Train in every setting, and say which is best for what."""
    sweep = axis_sweep(request.axis, request.base.workload)

    def judge(trainings: list[TrainingRun]) -> Findings:
        answer = _knee(setting_costs(trainings)) if request.axis == "batch" else ""
        return build_findings(sweep, trainings, request.rules, answer=answer)

    return training_plan(request.settings, request.rules, sweep.label, judge)


def axis_sweep(axis: str, workload: str) -> Sweep:
    """Return the labels of the settings of an axis, and where they lie on it."""

    def label(setting: TrainingSetting) -> str:
        value = getattr(setting, axis)
        return str(value) if axis == "precision" else f"{axis} {value}"

    def place(setting: TrainingSetting) -> float | None:
        return None if axis == "precision" else float(getattr(setting, axis))

    judged = (SPEED, *JOULES.values(), MEMORY, *LEARNING)
    return Sweep(axis, _TITLES[axis].format(workload), axis, label, judged, place)


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
