"""Findings of a study that trained one workload in several settings: tables, notes, and the numbers of its figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from stepscope.analysis.findings import Findings, FoundTable
from stepscope.studies.here import device_name, versions
from stepscope.studies.trainings.costs import (
    JOULES,
    OK,
    Cost,
    Quantity,
    Sweet,
    costs,
    measured_quantities,
    sweet_spots,
    told,
)
from stepscope.studies.trainings.measuring import Trained
from stepscope.studies.trainings.setting import Rules, Setting

FRAME = "by-setting"
CURVES = "loss-by-step"
_MOST_POINTS = 200
Called = Callable[[Setting], str]


@dataclass(frozen=True)
class Question:
    """What a study asks. axis: what its settings differ in; judged: what one can be best for.
    place: where a setting lies on a numeric axis.
    """

    study: str
    title: str
    axis: str
    called: Called
    judged: tuple[Quantity, ...]
    place: Callable[[Setting], float | None] = lambda setting: None


def found(
    question: Question, trainings: Sequence[Trained], rules: Rules, settings: Mapping[str, Any], command: str,
    notes: Sequence[str] = (), tables: Sequence[FoundTable] = (), answer: str = "",
) -> Findings:  # fmt: skip
    """The findings; `answer`, `tables` and `notes` are what the study adds of its own."""
    every = costs(trainings, rules.target_loss)
    sweets = sweet_spots(every, question.judged)
    said = "; ".join(told(sweets, question.called))
    return Findings(
        study=question.study,
        title=question.title,
        answer=" ".join(
            part for part in (answer, f"Best by {said}." if said else "Nothing could be compared.") if part
        ),
        tables=(_sweet_table(question, sweets), cost_table(question, every), *tables),
        settings=settings,
        device=device_name(),
        versions=versions(),
        command=command,
        notes=(*notes, *_limits(question, every, trainings, rules)),
        simulated=rules.simulate,
        frames=_frames(question, every, trainings),
    )


def cost_table(question: Question, every: Sequence[Cost]) -> FoundTable:
    """A row for each quantity of each setting, with its interval."""
    quantities = measured_quantities(every)
    rows = tuple(
        (question.called(cost.setting), quantity.column, value.value, value.low, value.high, cost.repeats)
        for quantity in quantities
        for cost in every
        if (value := cost.values.get(quantity)) is not None
    )
    columns = (question.axis, "quantity", "value", "low", "high", "repeats")
    note = "Geometric means over the repeats, with Student's interval of 95 %; of one repeat, the interval within it."
    return FoundTable("settings", "What each costs", columns, rows, note)


def _sweet_table(question: Question, sweets: Sequence[Sweet]) -> FoundTable:
    rows = tuple(
        (
            sweet.quantity.column,
            question.called(sweet.best.setting),
            sweet.best.values[sweet.quantity].value,
            "no intervals: not known" if sweet.alike is None
            else ", ".join(question.called(cost.setting) for cost in sweet.alike) or "none",
        )
        for sweet in sweets
    )  # fmt: skip
    columns = ("for", "best", "value", "not told from it")
    note = "Not told from it: settings whose intervals reach into that of the best."
    return FoundTable("sweet-spots", "Sweet spots", columns, rows, note)


def _limits(question: Question, every: Sequence[Cost], trainings: Sequence[Trained], rules: Rules) -> Iterator[str]:
    if not any(quantity in cost.values for cost in every for quantity in JOULES.values()):
        yield "energy cannot be judged: no power was read in these runs (which sensors were tried: stepscope doctor)"
    if rules.target_loss is None:
        yield "energy and time to a target were not asked for: give --target with a loss"
    if any(cost.repeats == 1 for cost in every):
        yield "settings with a single repeat have the interval within their run alone"
    flagged = {flag.partition(":")[0]: flag for one in trainings for flag in one.flags}
    for kind, flag in flagged.items():
        count = sum(any(each.startswith(kind) for each in one.flags) for one in trainings)
        yield f"{count} of {len(trainings)} runs: {flag}"
    for cost in every:
        if cost.status != OK:
            yield f"{question.called(cost.setting)}: {cost.status}: {cost.reason}"
        if cost.reached is not None and cost.reached < cost.repeats:
            yield f"{question.called(cost.setting)}: {cost.reached} of {cost.repeats} trainings reached the target"


def _frames(question: Question, every: Sequence[Cost], trainings: Sequence[Trained]) -> dict[str, pl.DataFrame]:
    rows = [
        (
            question.called(cost.setting),
            question.place(cost.setting),
            quantity.column,
            value.value,
            value.low,
            value.high,
        )
        for cost in every
        for quantity, value in cost.values.items()
    ]
    schema = {"label": pl.String, "at": pl.Float64, "quantity": pl.String, "value": pl.Float64, "low": pl.Float64,
              "high": pl.Float64}  # fmt: skip
    frames = {FRAME: pl.DataFrame(rows, schema=schema, orient="row"), CURVES: _curves(question, trainings)}
    return {name: frame for name, frame in frames.items() if not frame.is_empty()}


def _curves(question: Question, trainings: Sequence[Trained]) -> pl.DataFrame:
    """Smoothed loss of the first repeat of each setting: label, step, loss; thinned to _MOST_POINTS."""
    from stepscope.studies.trainings.learning import WINDOW, smoothed

    rows: list[tuple[str, int, float]] = []
    for one in trainings:
        if one.point.repeat == 0:
            losses = smoothed(one.losses)
            every = max(1, len(losses) // _MOST_POINTS)
            label = question.called(one.point.setting)
            rows += [(label, WINDOW + place, float(losses[place])) for place in range(0, len(losses), every)]
    return pl.DataFrame(rows, schema={"label": pl.String, "step": pl.Int64, "loss": pl.Float64}, orient="row")
