"""The findings of a sweep (`stepscope study batch`, `threads`, `precision`): the cost of each setting over its repeats.

For each quantity (speed, energy, cost to a target loss) they name the best setting.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from stepscope.analysis.estimate import Estimate, geometric_mean_of_repeats, mean_interval, null_if_nan
from stepscope.analysis.results import Findings, ResultTable
from stepscope.arrays import Floats
from stepscope.experiments.engine.engine import Plan, overlap
from stepscope.experiments.sweeps import TrainingRules, TrainingSetting, TrainingSweep
from stepscope.experiments.sweeps.trainings import ENERGY, TrainingRun, training_plan

FRAME = "by-setting"
CURVES = "loss-by-step"
_MOST_POINTS = 200
_NUMBER = r"\d+(?:\.\d+)?"
Label = Callable[[TrainingSetting], str]


@dataclass(frozen=True)
class SweepQuestion:
    """The request of a study. axis: what its settings differ in; judged: what one can be best for.
    place: where a setting lies on a numeric axis.
    """

    study: str
    title: str
    axis: str
    label: Label
    judged: tuple[Quantity, ...]
    place: Callable[[TrainingSetting], float | None] = lambda setting: None


def build_findings(
    question: SweepQuestion, trainings: Sequence[TrainingRun], rules: TrainingRules,
    notes: Sequence[str] = (), tables: Sequence[ResultTable] = (), answer: str = "",
) -> Findings:  # fmt: skip
    """The findings; `answer`, `tables` and `notes` are what the study adds of its own."""
    every = setting_costs(trainings, rules.target_loss)
    sweets = best_settings(every, question.judged)
    best = "; ".join(best_sentences(sweets, question.label))
    return Findings(
        title=question.title,
        answer=" ".join(
            part for part in (answer, f"Best by {best}." if best else "Nothing could be compared.") if part
        ),
        tables=(_sweet_table(question, sweets), cost_table(question, every), *tables),
        notes=(*notes, *_limit_notes(question, every, trainings, rules)),
        simulated=rules.simulate,
        frames=_frames(question, every, trainings),
    )


def cost_table(question: SweepQuestion, every: Sequence[SettingCost]) -> ResultTable:
    """A row for each quantity of each setting, with its interval."""
    quantities = [quantity for quantity in QUANTITIES if any(quantity in cost.values for cost in every)]
    rows = tuple(
        (question.label(cost.setting), quantity.column, *value.row, cost.repeats)
        for quantity in quantities
        for cost in every
        if (value := cost.values.get(quantity)) is not None
    )
    columns = (question.axis, "quantity", "value", "low", "high", "repeats")
    note = "Geometric means over the repeats, with Student's 95 % CI; of one repeat, the interval within it."
    return ResultTable("settings", "What each costs", columns, rows, note)


def _sweet_table(question: SweepQuestion, sweets: Sequence[BestSetting]) -> ResultTable:
    rows = tuple(
        (
            sweet.quantity.column,
            question.label(sweet.best.setting),
            sweet.best.values[sweet.quantity].value,
            "no intervals: not known" if sweet.alike is None
            else ", ".join(question.label(cost.setting) for cost in sweet.alike) or "none",
        )
        for sweet in sweets
    )  # fmt: skip
    columns = ("for", "best", "value", "not distinguishable")
    note = "Not distinguishable: settings whose CI reaches into that of the best."
    return ResultTable("sweet-spots", "Sweet spots", columns, rows, note)


def _limit_notes(
    question: SweepQuestion, every: Sequence[SettingCost], trainings: Sequence[TrainingRun], rules: TrainingRules
) -> Iterator[str]:
    if not any(quantity in cost.values for cost in every for quantity in JOULES.values()):
        yield "energy cannot be judged: these runs have none of the whole device (what would give it: stepscope doctor)"
    if rules.target_loss is None:
        yield "energy and time to a target need a target: give --target with a loss"
    if any(cost.repeats == 1 for cost in every):
        yield "settings with a single repeat have the interval within their run alone"
    flagged: dict[str, list[str]] = {}
    for training in trainings:
        for flag in training.flags:
            flagged.setdefault(re.sub(_NUMBER, "", flag.partition(":")[0]), []).append(flag)
    for flags in flagged.values():
        yield f"{len(flags)} of {len(trainings)} runs: {_flag_summary(flags)}"
    for cost in every:
        if cost.status != OK:
            yield f"{question.label(cost.setting)}: {cost.status}: {cost.reason}"
        if cost.reached is not None and cost.reached < cost.repeats:
            yield f"{question.label(cost.setting)}: {cost.reached} of {cost.repeats} trainings reached the target"


def _flag_summary(flags: Sequence[str]) -> str:
    """Return what several runs are flagged for: "between 1.1 and 1.6 cores" where they differ in a number alone."""
    numbers = [re.findall(_NUMBER, flag) for flag in flags]
    if len(set(flags)) == 1 or any(len(match) != 1 for match in numbers):
        return flags[0] if len(set(flags)) == 1 else f"{flags[0]} (the first)"
    low, high = (pick((match[0] for match in numbers), key=float) for pick in (min, max))
    return re.sub(_NUMBER, f"between {low} and {high}", flags[0])


def _frames(
    question: SweepQuestion, every: Sequence[SettingCost], trainings: Sequence[TrainingRun]
) -> dict[str, pl.DataFrame]:
    rows = [
        (question.label(cost.setting), question.place(cost.setting), quantity.column, *value.row)
        for cost in every
        for quantity, value in cost.values.items()
    ]
    schema = {"label": pl.String, "at": pl.Float64, "quantity": pl.String, "value": pl.Float64, "low": pl.Float64,
              "high": pl.Float64}  # fmt: skip
    frames = {FRAME: pl.DataFrame(rows, schema=schema, orient="row"), CURVES: _curves(question, trainings)}
    return {name: frame for name, frame in frames.items() if not frame.is_empty()}


def _curves(question: SweepQuestion, trainings: Sequence[TrainingRun]) -> pl.DataFrame:
    """Smoothed loss of the first repeat of each setting: label, step, loss; thinned to _MOST_POINTS.

    A loss that nobody told, as of most scripts, or that is no number has no point.
    """
    rows: list[tuple[str, int, float]] = []
    for training in trainings:
        if training.repeat == 0:
            losses = smoothed(training.losses)
            every = max(1, len(losses) // _MOST_POINTS)
            label = question.label(training.setting)
            places = (place for place in range(0, len(losses), every) if math.isfinite(losses[place]))
            rows += [(label, WINDOW + place, float(losses[place])) for place in places]
    return pl.DataFrame(rows, schema={"label": pl.String, "step": pl.Int64, "loss": pl.Float64}, orient="row")


OK = "ok"


@dataclass(frozen=True)
class Quantity:
    """A number of a setting: how it is called, in which unit, and whether more of it is better."""

    name: str
    title: str
    unit: str
    more_is_better: bool = False

    @property
    def column(self) -> str:
        return f"{self.title}, {self.unit}"


SPEED = Quantity("samples_per_s", "throughput", "samples/s", True)
STEP = Quantity("step_time_ms", "median step", "ms")
MEMORY = Quantity("peak_process_bytes", "peak memory", "MB")
STATE = Quantity("state_bytes", "optimizer state", "MB")
STEPS = Quantity("steps_to_target", "way to the target", "steps")
TIME = Quantity("seconds_to_target", "time to the target", "s")
JOULES = {
    ENERGY[0]: Quantity("energy_per_sample_mj", "energy a sample", "mJ"),
    ENERGY[1]: Quantity("estimated_energy_per_sample_mj", "estimated energy a sample", "mJ"),
    ENERGY[2]: Quantity("simulated_energy_per_sample_mj", "simulated energy a sample", "mJ"),
}
TO_TARGET = {
    name: Quantity(
        f"{of.name.removesuffix('_per_sample_mj')}_to_target_j", f"{of.title.split(' a ')[0]} to target", "J"
    )
    for name, of in JOULES.items()
}
LEARNING = (STEPS, TIME, *TO_TARGET.values())
QUANTITIES = (SPEED, STEP, *JOULES.values(), STATE, MEMORY, *LEARNING)
_MB = 1e6


@dataclass(frozen=True)
class SettingCost:
    """A setting over its repeats; a quantity that was not measured in any of them is not there.

    reached: how many of the repeats reached the target; quantities to the target are of those alone, and given only
    where all did.
    """

    setting: TrainingSetting
    repeats: int
    status: str
    reason: str | None
    values: Mapping[Quantity, Estimate] = field(default_factory=dict)
    reached: int | None = None


@dataclass(frozen=True)
class BestSetting:
    """The best setting for a quantity, and those whose intervals do not tell them from it; null: no intervals."""

    quantity: Quantity
    best: SettingCost
    alike: tuple[SettingCost, ...] | None


def setting_costs(trainings: Sequence[TrainingRun], target_loss: float | None = None) -> list[SettingCost]:
    """One for each setting, in their order."""
    groups: dict[TrainingSetting, list[TrainingRun]] = {}
    for training in trainings:
        groups.setdefault(training.setting, []).append(training)
    return [_summary_of_setting(setting, group, target_loss) for setting, group in groups.items()]


def best_settings(costs: Sequence[SettingCost], quantities: Sequence[Quantity] = QUANTITIES) -> list[BestSetting]:
    """Return the best setting for each quantity in which settings differ."""
    result = []
    for quantity in quantities:
        having = [cost for cost in costs if quantity in cost.values]
        if len({cost.values[quantity].value for cost in having}) > 1:
            best = (max if quantity.more_is_better else min)(having, key=lambda c: c.values[quantity].value)
            result.append(BestSetting(quantity, best, _settings_tied_with_best(best, having, quantity)))
    return result


def _settings_tied_with_best(
    best: SettingCost, having: Sequence[SettingCost], quantity: Quantity
) -> tuple[SettingCost, ...] | None:
    top, others = best.values[quantity], [cost for cost in having if cost is not best]
    if top.low is None or top.high is None or any(cost.repeats < 2 for cost in having):
        return None  # of a single run the interval does not hold how much runs differ
    return tuple(cost for cost in others if overlap(cost.values[quantity], top))


def _summary_of_setting(setting: TrainingSetting, group: Sequence[TrainingRun], target: float | None) -> SettingCost:
    well = [training for training in group if training.status == OK]
    counted = Counter(training.status for training in group)
    status = OK if len(well) == len(group) else ", ".join(f"{name} {count}" for name, count in counted.items())
    reason = next((training.reason for training in group if training.reason and training.status != OK), None)
    to_target = [None if target is None else steps_to(training.losses, target) for training in well]
    reached = None if target is None or not well else sum(steps is not None for steps in to_target)
    values = {
        quantity: value
        for quantity, of in _MEASURED.items()
        if (value := _over_repeats([of(training, steps) for training, steps in zip(well, to_target, strict=True)]))
        is not None
    }
    return SettingCost(setting, len(well), status, reason, values, reached)


Ends = tuple[float | None, float | None, float | None]
Measure = Callable[[TrainingRun, "int | None"], "Ends | None"]


def _over_repeats(repeats: Sequence[Ends | None]) -> Estimate | None:
    """A quantity over the repeats; null where one of them lacks it."""
    known_ones = [repeat for repeat in repeats if repeat is not None and repeat[0] is not None and repeat[0] >= 0]
    if not repeats or len(known_ones) < len(repeats):
        return None
    return geometric_mean_of_repeats([Estimate(float(value or 0), low, high) for value, low, high in known_ones])


def _number_measure(name: str, factor: float = 1.0) -> Measure:
    def of(training: TrainingRun, _: int | None) -> Ends | None:
        number = training.numbers.get(name)
        ends = [None if number is None or number[end] is None else float(number[end] or 0) * factor for end in _ENDS]
        return None if number is None else (ends[0], ends[1], ends[2])

    return of


def _energy_to_target(name: str) -> Measure:
    """Energy of a step times the steps that it took, J."""
    per_step = _number_measure(name.replace("per_sample", "per_step"))

    def of(training: TrainingRun, steps: int | None) -> Ends | None:
        ends = per_step(training, None)
        if ends is None or steps is None:
            return None
        value, low, high = (None if end is None else end * steps for end in ends)
        return value, low, high

    return of


_ENDS = ("value", "low", "high")
_MEASURED: dict[Quantity, Measure] = {
    SPEED: _number_measure("samples_per_s"),
    STEP: _number_measure("step_time_ms"),
    **{quantity: _number_measure(name, 1e3) for name, quantity in JOULES.items()},
    STATE: lambda run, _: None if run.state_bytes is None else (run.state_bytes / _MB,) * 3,
    MEMORY: _number_measure("peak_process_bytes", 1 / _MB),
    STEPS: lambda _, steps: None if steps is None else (float(steps), None, None),
    TIME: lambda run, steps: None if steps is None else (run.times_s[steps - 1], None, None),
    **{quantity: _energy_to_target(name) for name, quantity in TO_TARGET.items()},
}


def best_sentences(sweets: Sequence[BestSetting], label: Callable[[TrainingSetting], str]) -> Iterator[str]:
    """A sentence for each quantity, for the answer."""
    for sweet in sweets:
        value = sweet.best.values[sweet.quantity].value
        unsure = "" if sweet.alike is not None else " (without a CI: more repeats)"
        others = f", not distinguishable from {', '.join(label(c.setting) for c in sweet.alike)}" if sweet.alike else ""
        unit = sweet.quantity.unit
        yield f"{sweet.quantity.title}: {label(sweet.best.setting)} with {value:.3g} {unit}{others}{unsure}"


WINDOW = 10  # steps: the loss of one batch alone says little


def smoothed(losses: Sequence[float]) -> Floats:
    """Mean of each step's loss and those of the WINDOW - 1 before it; the first has WINDOW steps behind it."""
    values = np.asarray(losses, dtype=np.float64)
    if len(values) < WINDOW:
        return np.empty(0)
    return np.convolve(values, np.full(WINDOW, 1 / WINDOW), mode="valid")


def steps_to(losses: Sequence[float], target: float) -> int | None:
    """Steps until the smoothed loss is at the target or below; null where it never is."""
    reached = np.flatnonzero(smoothed(losses) <= target)
    return int(reached[0]) + WINDOW if len(reached) else None


def lowest_loss(losses: Sequence[float]) -> float | None:
    """The lowest smoothed loss; null where there are too few steps, or where it is no number."""
    losses_smoothed = smoothed(losses)
    losses_smoothed = losses_smoothed[np.isfinite(losses_smoothed)]
    return float(losses_smoothed.min()) if len(losses_smoothed) else None


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
        answer = _smallest_saturating_batch(setting_costs(trainings)) if request.axis == "batch" else ""
        tables = loss_tables(sweep, trainings) if request.axis == "precision" else ()
        return build_findings(sweep, trainings, request.rules, tables=tables, answer=answer)

    return training_plan(request.settings, request.rules, sweep.label, judge)


def axis_sweep(axis: str, workload: str) -> SweepQuestion:
    """Return the labels of the settings of an axis, and where they lie on it."""

    def label(setting: TrainingSetting) -> str:
        value = getattr(setting, axis)
        return str(value) if axis == "precision" else f"{axis} {value}"

    def place(setting: TrainingSetting) -> float | None:
        return None if axis == "precision" else float(getattr(setting, axis))

    judged = (SPEED, *JOULES.values(), MEMORY, *LEARNING)
    return SweepQuestion(axis, _TITLES[axis].format(workload), axis, label, judged, place)


def loss_tables(question: SweepQuestion, trainings: Sequence[TrainingRun]) -> tuple[ResultTable, ...]:
    """Return the loss of each setting less that of the first, after as many steps from the same seeds; or nothing."""
    groups: dict[TrainingSetting, dict[int, TrainingRun]] = {}
    for training in trainings:
        if training.status == OK:
            groups.setdefault(training.setting, {})[training.repeat] = training
    if not groups:
        return ()
    first, *others = groups
    rows = []
    for setting in others:
        pairs = [(groups[first][n], training) for n, training in groups[setting].items() if n in groups[first]]
        curves = [(smoothed(a.losses), smoothed(b.losses)) for a, b in pairs]
        steps = min((len(curve) for pair in curves for curve in pair), default=0)
        if steps == 0:
            continue
        ends = np.array([[a[steps - 1], b[steps - 1]] for a, b in curves])
        whole = np.isfinite(ends).all()  # the mean of those that did not diverge is that of chosen ones
        apart = mean_interval(ends[:, 1] - ends[:, 0]) if whole else (math.nan,) * 3
        numbers = (null_if_nan(value) for value in (float(ends[:, 1].mean()), *apart))
        rows.append((question.label(setting), steps + WINDOW - 1, *numbers, len(pairs)))
    if not rows:
        return ()
    name = question.label(first)
    columns = (question.axis, "steps", "loss", f"less that of {name}", "low", "high", "repeats")
    note = f"Losses are means of {WINDOW} steps, compared after as many steps from the same seeds; Student's 95 % CI."
    note += " A dash: the loss of a repeat is no number." if any(row[3] is None for row in rows) else ""
    return (ResultTable("loss", f"The loss beside {name}", columns, tuple(rows), note),)


def _reaching(every: Sequence[SettingCost], below: int, speed: float) -> list[str]:
    """Return the batches below one whose throughput may be so high."""
    small = [cost for cost in every if SPEED in cost.values and (cost.setting.batch or 0) < below]
    highs = {cost.setting.batch or 0: (cost.values[SPEED].high, cost.repeats) for cost in small}
    return [str(batch) for batch, (high, n) in sorted(highs.items()) if high is None or n < 2 or high >= speed]


def _possibly_slower(every: Sequence[SettingCost], batches: Sequence[int], speed: float) -> list[str]:
    """Return those of the batches whose throughput may lie below, or of which a single run tells nothing."""
    costs = {cost.setting.batch or 0: cost for cost in every if SPEED in cost.values}
    unsure = (b for b in sorted(batches) if costs[b].repeats < 2 or (costs[b].values[SPEED].low or 0.0) < speed)
    return [str(batch) for batch in unsure]


def _smallest_saturating_batch(every: Sequence[SettingCost]) -> str:
    """The smallest batch that nearly reaches the highest throughput, and whether all larger ones do."""
    speeds = {cost.setting.batch or 0: cost.values[SPEED].value for cost in every if SPEED in cost.values}
    if len(speeds) < 2:
        return ""
    needed = _ENOUGH * max(speeds.values())
    near = {batch: speed >= needed for batch, speed in speeds.items()}
    knee = min(batch for batch in near if near[batch])
    slower = [str(batch) for batch in sorted(near) if batch > knee and not near[batch]]
    within = f"throughput is within {1 - _ENOUGH:.0%} of the highest"
    if unclear := _reaching(every, knee, needed):
        return f"Cannot tell from which batch on {within}: the CI of batch {', '.join(unclear)} reaches it as well."
    if knee == max(speeds):
        return ""
    if uncertain := _possibly_slower(every, [batch for batch in near if batch >= knee and near[batch]], needed):
        within += f" by the means alone (CIs of batch {', '.join(uncertain)})"
    if slower:
        return f"At batch {knee} {within}, and lower again at batch {', '.join(slower)}."
    return f"From batch {knee} on, {within}."
