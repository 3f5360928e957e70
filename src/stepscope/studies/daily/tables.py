"""The findings of daily training as tables and as the numbers behind the figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from stepscope.analysis.findings import FoundTable, Value
from stepscope.studies.daily.lives import Lives, by_day
from stepscope.studies.daily.routine import Asked
from stepscope.studies.seed_means import energy_called, in_three

Row = tuple[Value, ...]


def accuracy_table(made: Sequence[Lives]) -> FoundTable:
    rows: list[Row] = []
    for each in made:
        begin: Row = (each.setting.batch, each.setting.replay, len(each.cells), each.start.value, *each.end.row)
        rows.append((*begin, *each.gain.row, *each.slope.row, each.lowest.value))
    columns = (
        "batch", "replay", "seeds", "at first %", "at the end %", "low", "high", "gain, points", "low ", "high ",
        "points a day", "low  ", "high  ", "lowest evening %",
    )  # fmt: skip
    note = (
        "Means over seeds with Student's interval of 95 %. Points a day: least-squares slope of each seed. "
        "An interval of the slope above 0: accuracy surely rises; below 0: the model forgets faster than it learns."
    )
    return FoundTable("accuracy", "Accuracy", columns, tuple(rows), note)


def cost_table(made: Sequence[Lives], asked: Asked) -> FoundTable:
    """What the longest day takes, and whether that fits."""
    kind = next((each.energy_kind for each in made if each.day_j is not None), None)
    with_energy = kind is not None and all(each.energy_kind in (kind, None) for each in made)
    rows: list[Row] = []
    for each in made:
        images = max(day["trained_on"] for day in each.cells[0]["days"])
        row: Row = (each.setting.batch, each.setting.replay, images * asked.passes, *each.day_s.row)
        if asked.charging_s is not None:
            row = (*row, *_fitting(each, asked.charging_s))
        if with_energy:
            row = (*row, *in_three(each.day_j))
            if asked.battery_j is not None:
                row = (*row, None if each.day_j is None else 100 * each.day_j.value / asked.battery_j)
        rows.append(row)
    columns: tuple[str, ...] = ("batch", "replay", "images trained", "s a day", "low", "high")
    if asked.charging_s is not None:
        columns = (*columns, "% of the charging time", "fits while charging")
    if with_energy:
        columns = (*columns, "J a day" if kind == "measured" else f"{kind} J a day", "low ", "high ")
        columns = (*columns, "% of the battery") if asked.battery_j is not None else columns
    note = "Of the longest day: with replay of all images every day is longer than the one before."
    return FoundTable("cost", "What a day takes", columns, tuple(rows), note)


def _fitting(each: Lives, charging_s: float) -> Row:
    answers = {True: "yes", False: "no", None: "cannot be judged: the interval spans it, or there is none"}
    return 100 * each.day_s.value / charging_s, answers[each.fits(charging_s)]


_DAY = {"title": pl.String, "setting": pl.String, "batch": pl.String, "replay": pl.String} | dict.fromkeys(
    ("day", "value", "low", "high"), pl.Float64
)


def frames(made: Sequence[Lives], asked: Asked) -> dict[str, pl.DataFrame]:
    """By the figure's name; what was not measured has none."""
    found = {
        figure: pl.DataFrame(list(_by_day(made, name, first, asked.days)), schema=_DAY)
        for figure, name, first in (
            ("accuracy-by-day", "accuracy", 0),
            ("time-by-day", "time_s", 1),
            ("energy-by-day", "energy_j", 1),
        )
    }
    return {name: frame for name, frame in found.items() if not frame.is_empty()}


_TITLES = {
    "accuracy": "accuracy on the test data, %",
    "time_s": "training time, s a day",
    "energy_j": "energy, J a day",
}


def _titled(name: str, each: Lives) -> str:
    """The title of the axis: energy that is not measured says so."""
    return _TITLES[name].replace("energy", energy_called(each.energy_kind))


def _by_day(made: Sequence[Lives], name: str, first: int, days: int) -> Iterator[dict[str, Any]]:
    for each in made:
        about = {
            "title": _titled(name, each),
            "setting": each.setting.name,
            "batch": str(each.setting.batch),
            "replay": each.setting.replay,
        }
        for day in range(first, days + 1):
            mean = by_day(each, name, day)
            if mean is not None:
                yield {**about, "day": day, "value": mean.value, "low": mean.low, "high": mean.high}
