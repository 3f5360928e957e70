"""Has a change made the training slower, larger or hungrier? Decided by intervals, for a gate in CI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.analysis.compare_quantities import quantities
from stepscope.analysis.compare_sides import Operand, differing, operand
from stepscope.analysis.run import Run
from stepscope.errors import RunError, UnknownName, UsageError

REGRESSION, NONE, UNSURE = "regression", "no regression", "cannot tell"
# What each limit is put to, the first that both sides have with an interval.
_METRICS = {
    "time": ("step_time",),
    "memory": ("live_peak", "peak_memory", "resident_memory"),
    "energy": ("energy_per_step", "simulated_energy_per_step", "estimated_energy_per_step"),
}
WHAT = tuple(_METRICS)
LIMITS = {"time": 0.05, "memory": 0.03, "energy": 0.05}  # growth that is allowed where none is given
_PROBABLE = "total"  # of several components of energy


@dataclass(frozen=True)
class Judged:
    """One limit: the quantity that it was put to, baseline and run, their ratio with its interval, and the outcome.

    limit: the growth that is allowed, a share; `why` says what an outcome rests on, or what is missing.
    """

    what: str
    metric: str | None
    unit: str
    limit: float
    baseline: float | None
    run: float | None
    ratio: float | None
    low: float | None
    high: float | None
    outcome: str
    why: str


@dataclass(frozen=True)
class Check:
    """A run, or repeats of it, against a baseline: a row a limit, and what was left out as not measured."""

    run: str
    baseline: str
    runs: tuple[int, int]
    judged: tuple[Judged, ...]
    not_judged: tuple[str, ...] = ()

    @property
    def outcome(self) -> str:
        """A regression if any limit shows one, else cannot tell if any does not, else no regression."""
        outcomes = {one.outcome for one in self.judged}
        return next((outcome for outcome in (REGRESSION, UNSURE) if outcome in outcomes), NONE if outcomes else UNSURE)


def check(
    run: str | Path | Run,
    against: str | Path | Run,
    limits: Mapping[str, float] | None = None,
    optional: Sequence[str] = (),
    anyway: bool = False,
) -> Check:
    """Put a run, or a folder of its repeats, to limits against a baseline: a path, a name in `runs`, "last", or a Run.

    limits: growth allowed of "time", "memory" and "energy", as shares (0.05 is 5 %); those named in `optional` are
    left out where a side does not have them. Unless given 5 %, 3 % and 5 %, and energy is optional. UsageError where
    the two did not train the same on the same device, unless `anyway`; RunError where a run did not end well.
    """
    if limits is None:
        limits, optional = LIMITS, ("energy",)
    for what in limits:
        if what not in _METRICS:
            raise UnknownName("limit", what, _METRICS)
    sides = [operand(one) for one in (run, against)]
    for side in sides:
        _refuse_failed(side)
    if not anyway:
        _refuse_unlike(*sides)
    table = quantities([sides[1].runs, sides[0].runs])
    judged, left = [], []
    for what, limit in limits.items():
        row = _pair(table, what)
        if row is None and what in optional:
            left.append(what)
        else:
            judged.append(_judged(what, limit, row, sides))
    counts = len(sides[0].runs), len(sides[1].runs)
    return Check(sides[0].name, sides[1].name, counts, tuple(judged), tuple(left))


def _refuse_failed(side: Operand) -> None:
    for run in side.runs:
        if run.status != "ok":
            raise RunError(f"'{run.id}' ended as {run.status}: it cannot be judged", "give a run that has ended well")


def _refuse_unlike(side: Operand, baseline: Operand) -> None:
    """Runs of several settings in one folder are refused too: they are no repeats."""
    first = baseline.runs[0]
    for run in (*baseline.runs[1:], *side.runs):
        found = {name: pair for name, pair in differing(first, run).items() if name != "data"}
        if found:
            said = ", ".join(f"{name} {before} and {after}" for name, (before, after) in found.items())
            raise UsageError(
                f"'{run.id}' and '{first.id}' differ in more than the code: {said}",
                "record both alike on one device, or give --anyway",
            )


def _pair(table: pl.DataFrame, what: str) -> dict[str, Any] | None:
    """The first metric of its kind with a ratio that has an interval, else with a ratio; None: neither."""
    rows = table.filter(pl.col("metric").is_in(_METRICS[what]), pl.col("side") == 1, pl.col("ratio").is_not_null())
    if rows.is_empty():
        return None
    order = {name: place for place, name in enumerate(_METRICS[what])}
    ranked = sorted(
        rows.to_dicts(),
        key=lambda row: (row["ratio_low"] is None, row["scope"] != _PROBABLE, order[row["metric"]]),
    )
    chosen = ranked[0]
    first = table.filter(pl.col("metric") == chosen["metric"], pl.col("scope") == chosen["scope"], pl.col("side") == 0)
    return {**chosen, "baseline": first["value"][0]}


def _judged(what: str, limit: float, row: dict[str, Any] | None, sides: Sequence[Operand]) -> Judged:
    if row is None:
        why = f"{what} was not measured on both sides"
        return Judged(what, None, "", limit, None, None, None, None, None, UNSURE, why)
    outcome, why = _outcome(row, limit, sides)
    kept = (row["metric"], row["unit"], limit, row["baseline"], row["value"])
    return Judged(what, *kept, row["ratio"], row["ratio_low"], row["ratio_high"], outcome, why)


def _outcome(row: dict[str, Any], limit: float, sides: Sequence[Operand]) -> tuple[str, str]:
    low, high, most = row["ratio_low"], row["ratio_high"], 1 + limit
    single = min(len(side.runs) for side in sides) == 1
    if low is None or high is None:
        more = "two or more runs a side give one" if single else "runs of more steps give one"
        return UNSURE, f"a value without an interval: {more}"
    if low > most:
        return REGRESSION, "even the lower end of the interval is above the limit"
    if high <= most:
        within = " (of the steps within one run; repeats would count differences between runs too)" if single else ""
        return NONE, f"even the upper end of the interval is within the limit{within}"
    return (
        UNSURE,
        f"the limit lies inside the interval: {'more steps, or repeats,' if single else 'more repeats'} would tell",
    )
