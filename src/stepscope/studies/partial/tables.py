"""The findings of partial training as tables and as the numbers behind the figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from stepscope.analysis.findings import FoundTable, Value
from stepscope.studies.partial.outcome import Outcome, unbeaten
from stepscope.studies.partial.reference import POINTS
from stepscope.studies.seed_means import SHARE, Mean, energy_called, in_three, mean_of

Row = tuple[Value, ...]
COSTS = {"time_s": "training time, s", "energy_j": "energy, J", "peak_mb": "peak of live tensors, MB"}


def cost_of(found: Outcome) -> dict[str, Mean]:
    """What a setting costs by the name of the axis; without those that are not known."""
    costs = {"time_s": found.time_s, "energy_j": found.energy_j}
    if found.peak_bytes is not None:
        costs["peak_mb"] = Mean(found.peak_bytes / 1e6, None, None)
    return {name: mean for name, mean in costs.items() if mean is not None}


def front(outcomes: Sequence[Outcome], cost: str) -> set[str]:
    """Settings that no other beats in accuracy and this cost."""
    return unbeaten(
        {
            each.setting.name: (cost_of(each)[cost].value, each.accuracy.value)
            for each in outcomes
            if cost in cost_of(each)
        }
    )


def way_table(outcomes: Sequence[Outcome], energy_kind: str | None) -> FoundTable:
    known = [name for name in COSTS if any(name in cost_of(each) for each in outcomes)]
    best = {name: front(outcomes, name) for name in known}
    rows: list[Row] = []
    for each in outcomes:
        costs = cost_of(each)
        unbeaten_in = ", ".join(name.partition("_")[0] for name in known if each.setting.name in best[name])
        row: Row = (each.setting.name, len(each.cells), 100 * each.trained_share, *in_three(each.accuracy))
        row = (*row, *in_three(each.time_s), *((None if m is None else m.value) for m in (costs.get("peak_mb"),)))
        if each.energy_j is not None or energy_kind:
            row = (*row, *in_three(each.energy_j))
        rows.append((*row, unbeaten_in or None))
    columns: tuple[str, ...] = (
        "way",
        "seeds",
        "trained %",
        "accuracy %",
        "low",
        "high",
        "time s",
        "low ",
        "high ",
        "peak MB",
    )
    if energy_kind:
        name = "energy J" if energy_kind == "measured" else f"{energy_kind} energy J"
        columns = (*columns, name, "low  ", "high  ")
    note = (
        "Means over seeds with Student's interval of 95 %. Unbeaten: no other way is as accurate for less of it. "
        "Peak: live tensors of a step, counted on a dry run, at its most over the training."
    )
    return FoundTable("ways", "Accuracy and what it cost", (*columns, "unbeaten in"), tuple(rows), note)


def saving_table(outcomes: Sequence[Outcome]) -> FoundTable:
    """What each way really saves in a step, next to training all."""
    whole = next((each for each in outcomes if each.setting.way == "all"), None)
    rows: list[Row] = [
        (
            each.setting.name,
            _scaled(each.flops_forward, 1e-6),
            _scaled(each.flops_backward, 1e-6),
            _saved(each, whole, "flops_backward"),
            *in_three(each.step_ms),
            _step_saved(each, whole),
            _scaled(each.saved_bytes, 1e-6),
            _saved(each, whole, "saved_bytes"),
            _saved(each, whole, "peak_bytes"),
        )
        for each in outcomes
    ]
    columns = (
        "way", "forward MFLOP", "backward MFLOP", "saved %", "ms a step", "low", "high", "saved % ",
        "kept for backward MB", "saved %  ", "of peak saved %",
    )  # fmt: skip
    note = (
        "Of one step, against training all; negative is more. FLOPs and bytes kept: means over steps spread over the "
        "training, counted on tensors without numbers; the peak is that of the worst step. "
        "Where a mask is all there is, no work is saved, and masking costs time."
    )
    return FoundTable("savings", "What freezing saves", columns, tuple(rows), note)


def before_table(outcomes: Sequence[Outcome]) -> FoundTable | None:
    """How much of what was pre-trained is left."""
    rows = tuple(
        (each.setting.name, *in_three(each.start), *in_three(each.before[0]), *in_three(each.before[1]))
        for each in outcomes
        if each.before is not None
    )
    columns = (
        "way", "new classes before %", "low", "high", "old classes before %", "low ", "high ", "old classes after %",
        "low  ", "high  ",
    )  # fmt: skip
    note = "Old classes were pre-trained and are not trained any more: what they lose is forgotten."
    return FoundTable("before", "What the pre-trained classes lose", columns, rows, note) if rows else None


def reference_table(outcomes: Sequence[Outcome]) -> FoundTable:
    """Our seeds beside the known points; they agree where the ranges of the seeds overlap."""
    rows: list[Row] = []
    for each in outcomes:
        known = POINTS.get((each.setting.way, each.setting.fraction))
        if known is None:
            continue
        ours = [100 * cell["curve"][-1]["accuracy"] for cell in each.cells]
        agree = min(ours) <= max(known) and min(known) <= max(ours)
        bounds = (min(ours), max(ours), min(known), max(known))
        rows.append((each.setting.name, each.accuracy.value, *bounds, "agree" if agree else "differ"))
    columns = ("way", "accuracy %", "least seed", "best seed", "known, least", "known, best", "ranges of seeds")
    note = (
        "Known: LeNet of the second paper on the same 5,000 digits, two seeds. Agree: the ranges of the seeds overlap."
    )
    return FoundTable("reference", "Beside the known points", columns, tuple(rows), note)


def frames(outcomes: Sequence[Outcome]) -> dict[str, pl.DataFrame]:
    """By the figure's name."""
    found = {"accuracy-over-time": _curves(outcomes, "time_s"), "accuracy-over-energy": _curves(outcomes, "energy_j")}
    found["accuracy-and-cost"] = pl.DataFrame(list(_points(outcomes)), schema=_POINT)
    found["savings"] = pl.DataFrame(
        list(_shares(outcomes)), schema={"way": pl.String, "what": pl.String, "percent": pl.Float64}
    )
    return {name: frame for name, frame in found.items() if not frame.is_empty()}


_CURVE = {"way": pl.String, "title": pl.String, **dict.fromkeys(("step", "cost", "percent", "low", "high"), pl.Float64)}
_NUMBERS = ("value", "value_low", "value_high", "percent", "low", "high")
_POINT = {"way": pl.String, "cost": pl.String, "unbeaten": pl.Boolean, **dict.fromkeys(_NUMBERS, pl.Float64)}


def _curves(outcomes: Sequence[Outcome], cost: str) -> pl.DataFrame:
    rows: list[dict[str, Any]] = []
    for each in outcomes:
        for looks in zip(*(cell["curve"] for cell in each.cells), strict=True):
            at, gain = (
                mean_of([look[cost] for look in looks]),
                mean_of([look["accuracy"] for look in looks], 100, SHARE),
            )
            if at is not None and gain is not None:
                bounds = {"low": gain.low, "high": gain.high}
                rows.append(
                    {
                        "way": each.setting.name,
                        "title": _title(cost, each),
                        "step": looks[0]["step"],
                        "cost": at.value,
                        "percent": gain.value,
                        **bounds,
                    }
                )
    return pl.DataFrame(rows, schema=_CURVE)


def _title(cost: str, found: Outcome) -> str:
    """The title of the axis: energy that is not measured says so."""
    return COSTS[cost].replace("energy", energy_called(found.cells[0]["energy_kind"]))


def _points(outcomes: Sequence[Outcome]) -> Iterator[dict[str, Any]]:
    for cost in COSTS:
        best = front(outcomes, cost)
        for each in outcomes:
            mean = cost_of(each).get(cost)
            if mean is not None:
                own = {"way": each.setting.name, "cost": _title(cost, each), "unbeaten": each.setting.name in best}
                gain = {"percent": each.accuracy.value, "low": each.accuracy.low, "high": each.accuracy.high}
                yield {**own, **gain, "value": mean.value, "value_low": mean.low, "value_high": mean.high}


def _shares(outcomes: Sequence[Outcome]) -> Iterator[dict[str, Any]]:
    """What a step of each way costs in % of a step that trains all."""
    whole = next((each for each in outcomes if each.setting.way == "all"), None)
    for each in outcomes if whole else ():
        values = {
            "backward FLOPs": _saved(each, whole, "flops_backward"),
            "time of a step": _step_saved(each, whole),
            "bytes kept for backward": _saved(each, whole, "saved_bytes"),
            "peak of live tensors": _saved(each, whole, "peak_bytes"),
        }
        yield from (
            {"way": each.setting.name, "what": what, "percent": 100 - saved}
            for what, saved in values.items()
            if saved is not None
        )


def _saved(each: Outcome, whole: Outcome | None, name: str) -> float | None:
    """In % of what training all takes; null where one of them is not known."""
    ours, all_of_it = getattr(each, name), None if whole is None else getattr(whole, name)
    return None if ours is None or not all_of_it else 100 * (1 - ours / all_of_it)


def _step_saved(each: Outcome, whole: Outcome | None) -> float | None:
    return None if whole is None else 100 * (1 - each.step_ms.value / whole.step_ms.value)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
