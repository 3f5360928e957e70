"""`stepscope study daily`: train on new images every day with every seed; accuracy, time and energy by day."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.estimate import Estimate
from stepscope.analysis.results import Findings, ResultTable, Value
from stepscope.experiments.daily import DailyTraining
from stepscope.experiments.engine import TEST_SAMPLES, request_fields
from stepscope.experiments.engine.engine import (
    AMOUNT,
    ANY,
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
    overlap,
    plan_of_seeds,
    split_trained_and_failed,
    value_and_bounds,
)
from stepscope.units import estimate, plural

TASK = "stepscope.experiments.daily.training:train_point"


def daily_plan(request: DailyTraining) -> Plan:
    """Train day by day, with every seed. UsageError where no training came about, with the reason."""
    shared = request_fields(request, [field.name for field in fields(DailyTrainingOrders)])

    def orders(setting: DailySetting) -> Mapping[str, Any]:
        return {"routine": {**shared, "batch": setting.batch, "replay": setting.replay}}

    settings = [DailySetting(*pair) for pair in dict.fromkeys(itertools.product(request.batch, request.replay))]
    return plan_of_seeds(request, TASK, settings, orders, lambda results: build_findings(results, request))


def build_findings(of_setting: Mapping[DailySetting, Sequence[Result]], request: DailyTraining) -> Findings:
    """The findings from the results of the seeds of each setting."""
    cells, failures = split_trained_and_failed(of_setting, "day", "setting")
    outcomes = [setting_outcome(setting, of, request.days) for setting, of in cells.items()]
    tables = [accuracy_table(outcomes), cost_table(outcomes, request), *failures]
    return Findings(
        title=f"{request.workload} through {request.days} days of {request.images} new images",
        answer=_answer(outcomes, request),
        tables=tuple(tables),
        notes=tuple(_notes(outcomes, request)),
        frames=figure_frames(outcomes, request),
    )


def _answer(outcomes: Sequence[SettingOutcome], request: DailyTraining) -> str:
    best = max(outcomes, key=lambda outcome: outcome.end.value)
    slope = estimate(best.slope.value, best.slope.low, best.slope.high, "points a day")
    alike = [other.setting.name for other in outcomes if other is not best and overlap(other.end, best.end)]
    after = plural(request.days, "day") + ("" if best.end.low is not None else ", by one seed")
    text = (
        f"Best after {after}: {best.setting.name}, from {best.start.value:.1f} to {best.end.value:.1f} %, "
        f"{slope}, at {best.day_s.value:.3g} s of training on its longest day."
    )
    if alike and best.end.low is not None:
        text = f"{text} Not distinguishable from it: {'; '.join(alike)}."
    if request.charging is None:
        return text
    fits = [outcome.fits(request.charging) for outcome in outcomes]
    others = f"{fits.count(False)} do not, {fits.count(None)} cannot be judged"
    return f"{text} {fits.count(True)} of {len(outcomes)} settings fit while the device charges, {others}."


def _notes(outcomes: Sequence[SettingOutcome], request: DailyTraining) -> Iterator[str]:
    cell = outcomes[0].cells[0]
    data = cell["data"]
    tested = evaluated_samples_text(data["test_size"], request.test_samples)
    yield f"data: {data['name']} ({data['kind']}), judged each evening on {tested} test images"
    yield from dict.fromkeys(
        _pretraining_sentence(cell["pretrained"], request) for outcome in outcomes for cell in outcome.cells
    )
    yield "every setting of a seed begins with the same weights and gets the same images each day"
    if "shipped" in cell["pretrained"]:
        yield "all seeds begin with the same weights: CIs tell of the images that are drawn, not of other pre-trainings"
    yield "time and energy are those of the training steps; looking at the accuracy is not counted"
    if min(len(outcome.cells) for outcome in outcomes) < 2:
        yield "one seed gives no CI: --seeds 5"
    cells = [cell for outcome in outcomes for cell in outcome.cells]
    yield from energy_notes(cells)
    yield from load_notes(cells)
    if request.battery is not None and all(outcome.day_j is None for outcome in outcomes):
        yield "--battery cannot be judged without energy"


def _pretraining_sentence(pretraining: Mapping[str, Any], request: DailyTraining) -> str:
    if "shipped" in pretraining:
        right = f"{pretraining['accuracy']:.1%} of the {pretraining['looked_at']} test images"
        origin = f"begins with the weights that ship, of {pretraining['shipped']}"
        return f"{origin}, whose accuracy had ceased to rise: {right} right"
    reached = f"{pretraining['accuracy']:.1%} of {pretraining['looked_at']} images that it did not see were right"
    ended = f"pre-trained on {pretraining['images']} other images, {pretraining['steps']} steps: {reached}"
    if request.start is not None:
        return ended
    if not pretraining["plateau"]:
        return f"{ended}: NO plateau was reached, so that a rise by day is not the new images' alone"
    return f"{ended}, and in {PATIENCE} epochs no more (less than {RISE:.1%})"


RISE, PATIENCE = 0.005, 3  # of the images, and epochs in which the best accuracy must rise by so much to be trained on


@dataclass(frozen=True)
class DailyTrainingOrders:
    """Orders of one training: the fields of the request that it depends on."""

    days: int
    images: int
    start: float | None  # null: until its accuracy rises no more
    batch: int = 16
    replay: str = "none"
    keep: int = 256
    passes: int = 1
    order: str = "shuffled"
    optimizer: str | None = None
    lr: float | None = None
    data: str | None = None
    device: str = "cpu"
    test_samples: int = TEST_SAMPLES


@dataclass(frozen=True)
class DailySetting:
    """One line of the result; its trainings differ by their seed."""

    batch: int
    replay: str

    @property
    def name(self) -> str:
        return f"batch {self.batch}, replay {self.replay}"

    @property
    def id(self) -> str:
        return f"b{self.batch}-{self.replay}"


@dataclass(frozen=True)
class SettingOutcome:
    """One setting. Accuracies in %, slope in points a day, gain in points, of a day: time in s and energy in J.

    day_s and day_j are of the longest day: it is what must fit. day_j is null where energy was not read.
    """

    setting: DailySetting
    cells: tuple[Cell, ...]
    start: Estimate
    end: Estimate
    slope: Estimate
    gain: Estimate
    lowest: Estimate
    day_s: Estimate
    day_j: Estimate | None
    energy_kind: str | None

    def fits(self, seconds: float) -> bool | None:
        """Return whether the longest day is trained in so much time.

        Null where the interval spans it or is not known. Other processes only lengthen a training: what was too long
        beside them may fit without them.
        """
        if self.day_s.low is None or self.day_s.high is None:
            return None
        if self.day_s.high <= seconds:
            return True
        is_disturbed = any(cell.get("background") for cell in self.cells)
        return False if self.day_s.low > seconds and not is_disturbed else None


def setting_outcome(setting: DailySetting, cells: Sequence[Cell], days: int) -> SettingOutcome:
    """Return the outcome of a setting from its cells, at least one. Seeds repeat; the days of a seed are dependent."""
    accuracy = 100 * np.array([[day["accuracy"] for day in cell["days"]] for cell in cells])
    slopes = np.polyfit(np.arange(days + 1), accuracy.T, 1)[0]
    kinds = {cell["energy_kind"] for cell in cells}
    joules = [[day["energy_j"] for day in cell["days"][1:]] for cell in cells]
    most_joules = [None if None in of_days else max(of_days) for of_days in joules]
    return SettingOutcome(
        setting,
        tuple(cells),
        mean_of_all(accuracy[:, 0], SHARE),
        mean_of_all(accuracy[:, -1], SHARE),
        mean_of_all(slopes, ANY),
        mean_of_all(accuracy[:, -1] - accuracy[:, 0], ANY),
        mean_of_all(accuracy.min(axis=1), SHARE),
        mean_of_all([max(day["time_s"] for day in cell["days"][1:]) for cell in cells], AMOUNT),
        mean_of(most_joules) if len(kinds) == 1 else None,
        next(iter(kinds)) if len(kinds) == 1 else None,
    )


def mean_of_day(outcome: SettingOutcome, name: str, day: int) -> Estimate | None:
    """A quantity of a day over the seeds: accuracy in %, time_s, energy_j; null where it is not known."""
    values = [cell["days"][day][name] for cell in outcome.cells]
    return mean_of(values, 100, SHARE) if name == "accuracy" else mean_of(values)


Row = tuple[Value, ...]


def accuracy_table(outcomes: Sequence[SettingOutcome]) -> ResultTable:
    rows: list[Row] = []
    for outcome in outcomes:
        begin: Row = (
            outcome.setting.batch,
            outcome.setting.replay,
            len(outcome.cells),
            outcome.start.value,
            *outcome.end.row,
        )
        rows.append((*begin, *outcome.gain.row, *outcome.slope.row, outcome.lowest.value))
    columns = (
        "batch", "replay", "seeds", "at first %", "at the end %", "low", "high", "gain, points", "low ", "high ",
        "points a day", "low  ", "high  ", "lowest evening %",
    )  # fmt: skip
    note = (
        "Means over seeds with Student's 95 % CI. Points a day: least-squares slope of each seed. "
        "A CI of the slope above 0: accuracy surely rises; below 0: the model forgets faster than it learns."
    )
    return ResultTable("accuracy", "Accuracy", columns, tuple(rows), note)


def cost_table(outcomes: Sequence[SettingOutcome], request: DailyTraining) -> ResultTable:
    """Return what the longest day takes, and whether that fits."""
    kind = next((outcome.energy_kind for outcome in outcomes if outcome.day_j is not None), None)
    with_energy = kind is not None and all(outcome.energy_kind in (kind, None) for outcome in outcomes)
    rows: list[Row] = []
    for outcome in outcomes:
        images = max(day["trained_on"] for day in outcome.cells[0]["days"])
        row: Row = (outcome.setting.batch, outcome.setting.replay, images * request.passes, *outcome.day_s.row)
        if request.charging is not None:
            fits = _FITS[outcome.fits(request.charging)]
            row = (*row, 100 * outcome.day_s.value / request.charging, fits)
        if with_energy:
            row = (*row, *value_and_bounds(outcome.day_j))
            if request.battery is not None:
                row = (*row, None if outcome.day_j is None else 100 * outcome.day_j.value / request.battery)
        rows.append(row)
    columns: tuple[str, ...] = ("batch", "replay", "images trained", "s a day", "low", "high")
    if request.charging is not None:
        columns = (*columns, "% of the charging time", "fits while charging")
    if with_energy:
        kind_of = "" if kind == "measured" else f"{kind} "
        columns = (*columns, f"{kind_of}J a day", "low ", "high ")
        columns = (*columns, f"{kind_of}% of the battery") if request.battery is not None else columns
    note = "Of the longest day: with replay of all images every day is longer than the one before."
    return ResultTable("cost", "What a day takes", columns, tuple(rows), note)


_FITS = {
    True: "yes",
    False: "no",
    None: "cannot be judged: the interval spans it, there is none, or other processes made it longer",
}
_DAY = {"title": pl.String, "setting": pl.String, "batch": pl.String, "replay": pl.String} | dict.fromkeys(
    ("day", "value", "low", "high"), pl.Float64
)


def figure_frames(outcomes: Sequence[SettingOutcome], request: DailyTraining) -> dict[str, pl.DataFrame]:
    """Return the frames by figure name; nothing for what was not measured."""
    frames = {
        figure: pl.DataFrame(list(_rows_by_day(outcomes, name, first, request.days)), schema=_DAY)
        for figure, name, first in (
            ("accuracy-by-day", "accuracy", 0),
            ("time-by-day", "time_s", 1),
            ("energy-by-day", "energy_j", 1),
        )
    }
    return {name: frame for name, frame in frames.items() if not frame.is_empty()}


_TITLES = {
    "accuracy": "accuracy on the test data, %",
    "time_s": "training time, s a day",
    "energy_j": "energy, J a day",
}


def _rows_by_day(outcomes: Sequence[SettingOutcome], name: str, first: int, days: int) -> Iterator[dict[str, Any]]:
    for outcome in outcomes:
        about = {
            "title": _TITLES[name].replace("energy", energy_name(outcome.energy_kind)),
            "setting": outcome.setting.name,
            "batch": str(outcome.setting.batch),
            "replay": outcome.setting.replay,
        }
        for day in range(first, days + 1):
            mean = mean_of_day(outcome, name, day)
            if mean is not None:
                yield {**about, "day": day, "value": mean.value, "low": mean.low, "high": mean.high}
