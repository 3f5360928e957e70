"""`stepscope study partial`: train every way with every seed; accuracy against cost, beside published points."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.estimate import Estimate
from stepscope.analysis.results import Findings, ResultTable, Value
from stepscope.experiments.engine import TEST_SAMPLES
from stepscope.experiments.engine.engine import (
    AMOUNT,
    SHARE,
    Cell,
    Plan,
    Result,
    energy_name,
    energy_notes,
    evaluated_samples_text,
    load_notes,
    mean_of,
    mean_of_all,
    plan_of_seeds,
    split_trained_and_failed,
    value_and_bounds,
)
from stepscope.experiments.partial import PartialTraining
from stepscope.units import estimate

TASK = "stepscope.experiments.partial.training:train_point"
FRACTIONAL = ("layers", "filters", "cumulative", "sparse")


@dataclass(frozen=True)
class PartialSetting:
    """One line of the result: a way at a fraction; its trainings differ by their seed."""

    way: str
    fraction: float

    @property
    def name(self) -> str:
        """Return the name for people and files: `filters-60` for 60 % of the filters."""
        return f"{self.way} {100 * self.fraction:g} %" if self.way in FRACTIONAL else self.way

    @property
    def id(self) -> str:
        return self.name.removesuffix(" %").replace(" ", "-").replace(".", "_")


def partial_settings(request: PartialTraining) -> list[PartialSetting]:
    """Return the settings in the requested order. 100 % of anything is replaced by the training of all."""
    settings = []
    for way in request.ways:
        if way not in FRACTIONAL:
            settings.append(PartialSetting(way, 1.0))
            continue
        settings += [
            PartialSetting(way, fraction) if fraction < 1 else PartialSetting("all", 1.0)
            for fraction in request.fractions
        ]
    return list(dict.fromkeys(settings))


@dataclass(frozen=True)
class PartialTrainingOrders:
    """The part of a request that the process of some trainings gets; the fields that a training depends on."""

    way: str
    fraction: float
    each: str
    steps: int | None
    epochs: int
    batch: int | None
    optimizer: str | None
    lr: float | None
    data: str | None
    device: str
    transfer: bool
    classes: tuple[int, ...]
    checkpoint: str | None
    pretrained: bool = False
    test_samples: int = TEST_SAMPLES


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


def partial_plan(request: PartialTraining) -> Plan:
    """Train a workload in parts, with every seed. UsageError where no training came about, with the reason."""
    stored = request.to_dict()
    shared = {field.name: stored[field.name] for field in fields(PartialTrainingOrders) if field.name in stored}

    def orders(setting: PartialSetting) -> Mapping[str, Any]:
        return {"lesson": {**shared, "way": setting.way, "fraction": setting.fraction}}

    return plan_of_seeds(
        request, TASK, partial_settings(request), orders, lambda results: build_findings(results, request)
    )


def build_findings(of_setting: Mapping[PartialSetting, Sequence[Result]], request: PartialTraining) -> Findings:
    """The findings from the results of the seeds of each setting."""
    from stepscope.experiments.partial.methods import WAYS

    cells, failures = split_trained_and_failed(of_setting, "way", "way")
    outcomes = [setting_outcome(setting, of) for setting, of in cells.items()]
    kinds = {cell["energy_kind"] for outcome in outcomes for cell in outcome.cells}
    kind = next(iter(kinds)) if len(kinds) == 1 else None
    tables = [way_table(outcomes, kind), saving_table(outcomes)]
    before = pretrained_loss_table(outcomes)
    tables += [before] if before is not None else []
    tables += [reference_table(outcomes)] if request.preset else []
    tables += failures
    ways = {setting.way for setting in partial_settings(request)}
    meaning = tuple((name, way.trains, way.saves) for name, way in WAYS.items() if name in ways)
    return Findings(
        title=f"Training only a part of {request.workload}",
        answer=_answer(outcomes),
        tables=(*tables, ResultTable("meaning", "What each way trains", ("way", "trains", "can save"), meaning)),
        notes=tuple(_notes(outcomes, request)),
        frames=figure_frames(outcomes),
    )


def _answer(outcomes: Sequence[SettingOutcome]) -> str:
    """Return what all of it gives, and the parts that nothing beats in time or memory."""
    if len(outcomes) == 1:
        (alone,) = outcomes
        gives = f"{alone.setting.name} gives {estimate(*alone.accuracy.row, '%')} in {alone.time_s.value:.3g} s"
        return f"{gives}; nothing else was measured to compare it with (--ways)."
    whole = next((outcome for outcome in outcomes if outcome.setting.way == "all"), None)
    sentences = (
        []
        if whole is None
        else [f"Training all gives {estimate(*whole.accuracy.row, '%')} in {whole.time_s.value:.3g} s."]
    )
    for cost, word in (("time_s", "time"), ("peak_mb", "memory")):
        names = [outcome for outcome in outcomes if outcome.setting.name in pareto_front(outcomes, cost)]
        if names:
            listed = ", ".join(f"{name.setting.name} ({name.accuracy.value:.1f} %)" for name in names)
            of_one_seed = names[0].accuracy.low is None
            unsure = [] if of_one_seed else maybe_unbeaten(outcomes, cost)
            others = f"; by the intervals perhaps also {', '.join(unsure)}" if unsure else " by one seed" * of_one_seed
            sentences.append(f"For its {word} unbeaten: {listed}{others}.")
    return " ".join(sentences)


def _notes(outcomes: Sequence[SettingOutcome], request: PartialTraining) -> Iterator[str]:
    cell = outcomes[0].cells[0]
    data = cell["data"]
    tested = evaluated_samples_text(data["test_size"], request.test_samples)
    yield f"data: {data['name']} ({data['kind']}), {data['train_size']} to train, {tested} to test"
    yield f"{cell['steps']} steps of {cell['batch']} samples, {cell['optimizer']}; the time of looking is not counted"
    seeds = {len(outcome.cells) for outcome in outcomes}
    if min(seeds) < 2:
        yield "one seed gives no CI: --seeds 5"
    cells = [cell for outcome in outcomes for cell in outcome.cells]
    yield from energy_notes(cells)
    yield from load_notes(cells)
    if 1.0 in request.fractions and set(FRACTIONAL) & set(request.ways):
        yield "100 % of layers or filters is the same training as all, and is shown as such"
    yield from dict.fromkeys(
        f"{outcome.setting.name}: {note}"
        for outcome in outcomes
        for training in outcome.cells
        for note in training["notes"]
    )


Row = tuple[Value, ...]
COSTS = {"time_s": "training time, s", "energy_j": "energy, J", "peak_mb": "peak of live tensors, MB"}


def costs_by_axis(outcome: SettingOutcome) -> dict[str, Estimate]:
    """Return the cost of a setting by the name of the axis; without those that are not known."""
    costs = {"time_s": outcome.time_s, "energy_j": outcome.energy_j}
    if outcome.peak_bytes is not None:
        costs["peak_mb"] = Estimate(outcome.peak_bytes / 1e6, None, None)
    return {name: mean for name, mean in costs.items() if mean is not None}


def pareto_front(outcomes: Sequence[SettingOutcome], cost: str) -> set[str]:
    """Return the settings for which no other costs no more and gains no less, and is better in one, by the means."""
    points = {
        outcome.setting.name: (costs_by_axis(outcome)[cost].value, outcome.accuracy.value)
        for outcome in outcomes
        if cost in costs_by_axis(outcome)
    }
    return {
        name
        for name, own in points.items()
        if not any(other[0] <= own[0] and other[1] >= own[1] and other != own for other in points.values())
    }


def maybe_unbeaten(outcomes: Sequence[SettingOutcome], cost: str) -> list[str]:
    """Settings that others beat in accuracy and this cost, but none of them beyond the intervals."""
    comparable = [outcome for outcome in outcomes if cost in costs_by_axis(outcome)]
    best = pareto_front(outcomes, cost)
    return [
        own.setting.name
        for own in comparable
        if own.setting.name not in best and not any(_surely_beats(other, own, cost) for other in comparable)
    ]


def _surely_beats(other: SettingOutcome, own: SettingOutcome, cost: str) -> bool:
    """Return whether it costs no more and gains no less, whatever lies in the intervals; memory is exact."""
    gain, less = other.accuracy, own.accuracy
    if other is own or gain.low is None or less.high is None or gain.low < less.high:
        return False
    ours, others = costs_by_axis(own)[cost], costs_by_axis(other)[cost]
    if cost == "peak_mb":
        return others.value <= ours.value
    return others.high is not None and ours.low is not None and others.high <= ours.low


WAY_COLUMNS: tuple[str, ...] = (
    "way", "seeds", "trained %", "accuracy %", "low", "high", "time s", "low ", "high ", "peak MB",
)  # fmt: skip
SAVING_COLUMNS = (
    "way", "forward MFLOP", "backward MFLOP", "saved %", "ms a step", "low", "high", "saved % ",
    "activations MB", "saved %  ", "of peak saved %",
)  # fmt: skip


def way_table(outcomes: Sequence[SettingOutcome], energy_kind: str | None) -> ResultTable:
    cost_names = [name for name in COSTS if any(name in costs_by_axis(outcome) for outcome in outcomes)]
    best = {name: pareto_front(outcomes, name) for name in cost_names}
    rows: list[Row] = []
    for outcome in outcomes:
        costs = costs_by_axis(outcome)
        unbeaten_in = ", ".join(name.partition("_")[0] for name in cost_names if outcome.setting.name in best[name])
        peak = costs.get("peak_mb")
        row: Row = (outcome.setting.name, len(outcome.cells), 100 * outcome.trained_share)
        row += (*value_and_bounds(outcome.accuracy), *value_and_bounds(outcome.time_s))
        row += (None if peak is None else peak.value,)
        if energy_kind:
            row = (*row, *value_and_bounds(outcome.energy_j))
        rows.append((*row, unbeaten_in or None))
    columns = WAY_COLUMNS
    if energy_kind:
        columns = (*columns, f"{energy_name(energy_kind)} J", "low  ", "high  ")
    note = (
        "Means over seeds with Student's 95 % CI. Unbeaten: by the means no other way is as accurate for less. "
        "Peak: live tensors of a step, counted on a dry run, at its most over the training."
    )
    return ResultTable("ways", "Accuracy and what it cost", (*columns, "unbeaten in"), tuple(rows), note)


def saving_table(outcomes: Sequence[SettingOutcome]) -> ResultTable:
    """Return what each way really saves in a step, next to training all."""
    whole = next((outcome for outcome in outcomes if outcome.setting.way == "all"), None)
    rows: list[Row] = [
        (
            outcome.setting.name,
            _scale_or_none(outcome.flops_forward, 1e-6),
            _scale_or_none(outcome.flops_backward, 1e-6),
            _saved(outcome, whole, "flops_backward"),
            *value_and_bounds(outcome.step_ms),
            _step_saved(outcome, whole),
            _scale_or_none(outcome.saved_bytes, 1e-6),
            _saved(outcome, whole, "saved_bytes"),
            _saved(outcome, whole, "peak_bytes"),
        )
        for outcome in outcomes
    ]
    note = (
        "Of one step, against training all; negative is more. FLOPs and activations: means over steps spread over the "
        "training, counted on tensors without numbers; the peak is that of the worst step. "
        "Where a mask is all there is, no work is saved, and masking costs time."
    )
    return ResultTable("savings", "What freezing saves", SAVING_COLUMNS, tuple(rows), note)


def pretrained_loss_table(outcomes: Sequence[SettingOutcome]) -> ResultTable | None:
    """Return how much of what was pre-trained remains."""
    rows = tuple(
        (
            outcome.setting.name,
            *value_and_bounds(outcome.start),
            *value_and_bounds(outcome.before[0]),
            *value_and_bounds(outcome.before[1]),
        )
        for outcome in outcomes
        if outcome.before is not None
    )
    columns = (
        "way", "new classes before %", "low", "high", "old classes before %", "low ", "high ", "old classes after %",
        "low  ", "high  ",
    )  # fmt: skip
    note = "Old classes were pre-trained and are not trained any more: what they lose is forgotten."
    return ResultTable("before", "What the pre-trained classes lose", columns, rows, note) if rows else None


def reference_table(outcomes: Sequence[SettingOutcome]) -> ResultTable:
    """Our seeds beside the known points; they agree where the ranges of the seeds overlap."""
    rows: list[Row] = []
    for outcome in outcomes:
        published = POINTS.get((outcome.setting.way, outcome.setting.fraction))
        if published is None:
            continue
        ours = [100 * cell["curve"][-1]["accuracy"] for cell in outcome.cells]
        agree = min(ours) <= max(published) and min(published) <= max(ours)
        bounds = (min(ours), max(ours), min(published), max(published))
        rows.append((outcome.setting.name, outcome.accuracy.value, *bounds, "agree" if agree else "differ"))
    columns = ("way", "accuracy %", "least seed", "best seed", "known, least", "known, best", "ranges of seeds")
    note = (
        "Known: LeNet of the second paper on the same 5,000 digits, two seeds. Agree: the ranges of the seeds overlap."
    )
    return ResultTable("reference", "Beside the known points", columns, tuple(rows), note)


def figure_frames(outcomes: Sequence[SettingOutcome]) -> dict[str, pl.DataFrame]:
    """Return the frames by figure name."""
    frames = {"accuracy-over-time": _curves(outcomes, "time_s"), "accuracy-over-energy": _curves(outcomes, "energy_j")}
    frames["accuracy-and-cost"] = pl.DataFrame(list(_cost_gain_points(outcomes)), schema=_POINT)
    frames["savings"] = pl.DataFrame(
        list(_shares(outcomes)), schema={"way": pl.String, "what": pl.String, "percent": pl.Float64}
    )
    return {name: frame for name, frame in frames.items() if not frame.is_empty()}


_CURVE = {"way": pl.String, "title": pl.String, **dict.fromkeys(("step", "cost", "percent", "low", "high"), pl.Float64)}
_NUMBERS = ("value", "value_low", "value_high", "percent", "low", "high")
_POINT = {"way": pl.String, "cost": pl.String, "unbeaten": pl.Boolean, **dict.fromkeys(_NUMBERS, pl.Float64)}


def _curves(outcomes: Sequence[SettingOutcome], cost: str) -> pl.DataFrame:
    rows: list[dict[str, Any]] = []
    for outcome in outcomes:
        for evaluations in zip(*(cell["curve"] for cell in outcome.cells), strict=True):
            at = mean_of([evaluation[cost] for evaluation in evaluations])
            gain = mean_of([evaluation["accuracy"] for evaluation in evaluations], 100, SHARE)
            if at is not None and gain is not None:
                row = {"way": outcome.setting.name, "title": _title(cost, outcome), "step": evaluations[0]["step"]}
                rows.append({**row, "cost": at.value, "percent": gain.value, "low": gain.low, "high": gain.high})
    return pl.DataFrame(rows, schema=_CURVE)


def _title(cost: str, outcome: SettingOutcome) -> str:
    """The title of the axis: energy that is not measured says so."""
    return COSTS[cost].replace("energy", energy_name(outcome.cells[0]["energy_kind"]))


def _cost_gain_points(outcomes: Sequence[SettingOutcome]) -> Iterator[dict[str, Any]]:
    for cost in COSTS:
        best = pareto_front(outcomes, cost)
        for outcome in outcomes:
            mean = costs_by_axis(outcome).get(cost)
            if mean is not None:
                name = outcome.setting.name
                own = {"way": name, "cost": _title(cost, outcome), "unbeaten": name in best}
                gain = {"percent": outcome.accuracy.value, "low": outcome.accuracy.low, "high": outcome.accuracy.high}
                yield {**own, **gain, "value": mean.value, "value_low": mean.low, "value_high": mean.high}


def _shares(outcomes: Sequence[SettingOutcome]) -> Iterator[dict[str, Any]]:
    whole = next((outcome for outcome in outcomes if outcome.setting.way == "all"), None)
    for outcome in outcomes if whole else ():
        values = {
            "backward FLOPs": _saved(outcome, whole, "flops_backward"),
            "time of a step": _step_saved(outcome, whole),
            "activation bytes": _saved(outcome, whole, "saved_bytes"),
            "peak of live tensors": _saved(outcome, whole, "peak_bytes"),
        }
        yield from (
            {"way": outcome.setting.name, "what": what, "percent": 100 - saved}
            for what, saved in values.items()
            if saved is not None
        )


def _saved(outcome: SettingOutcome, whole: SettingOutcome | None, name: str) -> float | None:
    """Return the saving in % of what training all takes; null where either is unknown."""
    ours, all_of_it = getattr(outcome, name), None if whole is None else getattr(whole, name)
    return None if ours is None or not all_of_it else 100 * (1 - ours / all_of_it)


def _step_saved(outcome: SettingOutcome, whole: SettingOutcome | None) -> float | None:
    return None if whole is None else 100 * (1 - outcome.step_ms.value / whole.step_ms.value)


def _scale_or_none(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


@dataclass(frozen=True)
class SettingOutcome:
    """One setting. Accuracies in %, times in s, energies in J of the whole training, memory in B; null: not known.

    before: accuracy on what was pre-trained, as the training begins and ends.
    """

    setting: PartialSetting
    cells: tuple[Cell, ...]
    accuracy: Estimate
    start: Estimate
    time_s: Estimate
    step_ms: Estimate
    energy_j: Estimate | None
    before: tuple[Estimate, Estimate] | None
    flops_forward: float | None
    flops_backward: float | None
    peak_bytes: float | None
    saved_bytes: float | None
    trained_share: float


def setting_outcome(setting: PartialSetting, cells: Sequence[Cell]) -> SettingOutcome:
    """Return the outcome of a setting from its cells, at least one."""

    def at(name: str, place: int = -1) -> Estimate | None:
        factor, possible = (1.0, AMOUNT) if name in ("time_s", "energy_j") else (100.0, SHARE)
        return mean_of([cell["curve"][place].get(name) for cell in cells], factor, possible)

    def cost(name: str, join: Callable[[Any], Any] = np.mean) -> float | None:
        values = [cell["cost"][name] for cell in cells]
        return None if any(value is None for value in values) else float(join(values))

    first, end = at("before", 0), at("before")
    return SettingOutcome(
        setting,
        tuple(cells),
        mean_of_all((100 * cell["curve"][-1]["accuracy"] for cell in cells), SHARE),
        mean_of_all((100 * cell["curve"][0]["accuracy"] for cell in cells), SHARE),
        mean_of_all(cell["curve"][-1]["time_s"] for cell in cells),
        mean_of_all(1000 * cell["step_s"] for cell in cells),
        at("energy_j"),
        None if first is None or end is None else (first, end),
        cost("flops_forward"),
        cost("flops_backward"),
        cost("peak_bytes", max),
        cost("saved_bytes"),
        float(np.mean([cell["cost"]["trained_share"] for cell in cells])),
    )
