"""`stepscope.check`: a gate for CI, that puts a run or repeats of it to limits against a baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.analysis.compare import supply_notes
from stepscope.analysis.compare.run_groups import TOTAL, RunGroup, quantities, run_group, setting_differences
from stepscope.analysis.run import Run
from stepscope.errors import RunError, UnknownName, UsageError
from stepscope.quantities import simulated_badge
from stepscope.request import parse_amount, refuse_bare_share

REGRESSION, NONE, UNSURE = "regression", "no regression", "cannot tell"
# What each limit is put to, the first that both sides have with an interval.
_METRICS = {
    "time": ("step_time",),
    "memory": ("live_peak", "peak_memory", "resident_memory"),
    "energy": ("energy_per_step", "simulated_energy_per_step", "estimated_energy_per_step"),
}
LIMITS = {"time": 0.05, "memory": 0.03, "energy": 0.05}  # growth that is allowed where none is given


@dataclass(frozen=True)
class Judged:
    """One limit: the quantity that it was put to, baseline and run, their ratio with its interval, and the outcome.

    limit: the growth that is allowed, a share; `why` says what an outcome rests on, or what is missing. component: of
    energy without a total, the one that it is of.
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
    component: str | None = None

    @property
    def of_component(self) -> str:
        """Return " of gpu" for a component; empty for a whole."""
        return f" of {self.component}" if self.component else ""


@dataclass(frozen=True)
class Check:
    """A run, or repeats of it, against a baseline: rows of limits, what was excluded as not measured, and notes."""

    run: str
    baseline: str
    runs: tuple[int, int]
    judged: tuple[Judged, ...]
    not_judged: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def outcome(self) -> str:
        """A regression if any limit shows one, else cannot tell if any does not, else no regression."""
        outcomes = {result.outcome for result in self.judged}
        return next((outcome for outcome in (REGRESSION, UNSURE) if outcome in outcomes), NONE if outcomes else UNSURE)


def check(
    run: str | Path | Run,
    against: str | Path | Run,
    limits: Mapping[str, float | str] | None = None,
    optional: Sequence[str] = (),
    anyway: bool = False,
) -> Check:
    """Put a run, or a folder of its repeats, to limits against a baseline: a path, a name in `runs`, "last", or a Run.

    limits: growth allowed of "time", "memory" and "energy", as shares or texts (0.05 and "5%" are the same); those
    named in `optional` are excluded where a side does not have them. Unless given 5 %, 3 % and 5 %, and energy is
    optional. UsageError for a limit that is none, and where the two did not train the same on the same device, unless
    `anyway`; RunError where a run did not end well.
    """
    if limits is None:
        limits, optional = LIMITS, ("energy",)
    for what in limits:
        if what not in _METRICS:
            raise UnknownName("limit", what, _METRICS)
    shares = {what: _parse_limit(what, limit) for what, limit in limits.items()}
    sides = [run_group(given_runs) for given_runs in (run, against)]
    for side in sides:
        _refuse_failed(side)
    if not anyway:
        _refuse_unlike(*sides)
    table = quantities([sides[1].runs, sides[0].runs])
    judged, unjudged = [], []
    for what, limit in shares.items():
        rows = _ratio_rows(table, what)
        judged += [_judge_limit(what, limit, row, sides) for row in rows]
        if not rows and what in optional:
            unjudged.append(what)
        elif not rows:
            judged.append(_judge_limit(what, limit, None, sides))
    counts = len(sides[0].runs), len(sides[1].runs)
    notes = (*_simulated_notes(sides), *supply_notes([sides[1].runs, sides[0].runs]))
    return Check(sides[0].name, sides[1].name, counts, tuple(judged), tuple(unjudged), notes)


def _simulated_notes(sides: Sequence[RunGroup]) -> Iterator[str]:
    for side, name in zip(sides, ("the run", "the baseline"), strict=True):
        boards = dict.fromkeys(run.simulated for run in side.runs if run.simulated is not None)
        if boards:
            yield f"{simulated_badge(', '.join(boards))} (of {name})"


def _parse_limit(what: str, limit: float | str) -> float:
    refuse_bare_share(f"limit of {what}", limit)
    share = parse_amount(what, limit, "share", "%", "5%") if isinstance(limit, str) else limit
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= _MOST_GROWTH:
        raise UsageError(f"limit of {what}: {limit!r} is not a growth", 'a share or a text: 0.05 or "5%"')
    return float(share)


_MOST_GROWTH = 10.0  # 1,000 %


def _refuse_failed(side: RunGroup) -> None:
    for run in side.runs:
        if run.status != "ok":
            raise RunError(f"'{run.id}' ended as {run.status}: it cannot be judged", "give a run that has ended well")


def _refuse_unlike(side: RunGroup, baseline: RunGroup) -> None:
    """Runs of several settings in one folder are refused too: they are no repeats."""
    first = baseline.runs[0]
    for run in (*baseline.runs[1:], *side.runs):
        differences = {name: pair for name, pair in setting_differences(first, run).items() if name != "data"}
        if differences:
            pairs = ((name, before or "none", after or "none") for name, (before, after) in differences.items())
            text = ", ".join(f"{name} {before} and {after}" for name, before, after in pairs)
            raise UsageError(
                f"'{first.id}' and '{run.id}' differ in more than the code: {text}",
                "record both alike on one device, or give --anyway",
            )


def _ratio_rows(table: pl.DataFrame, what: str) -> list[dict[str, Any]]:
    """Return the first metric of its kind with a ratio that has an interval, else with a ratio; empty: neither.

    Energy without a total is that of every component: one alone would not tell of the others.
    """
    rows = table.filter(pl.col("metric").is_in(_METRICS[what]), pl.col("side") == 1, pl.col("ratio").is_not_null())
    first = table.filter(pl.col("side") == 0).select("metric", "scope", baseline="value")
    order = {name: index for index, name in enumerate(_METRICS[what])}
    ranked = sorted(
        rows.join(first, on=["metric", "scope"]).to_dicts(),
        key=lambda row: (row["ratio_low"] is None, row["scope"] != TOTAL, order[row["metric"]]),
    )
    if what != "energy" or not ranked or ranked[0]["scope"] == TOTAL:
        return ranked[:1]
    return [{**row, "component": row["scope"]} for row in ranked if row["metric"] == ranked[0]["metric"]]


def _judge_limit(what: str, limit: float, row: dict[str, Any] | None, sides: Sequence[RunGroup]) -> Judged:
    if row is None:
        why = f"{what} was not measured on both sides"
        return Judged(what, None, "", limit, None, None, None, None, None, UNSURE, why)
    outcome, why = _outcome(row, limit, sides)
    inputs = (row["metric"], row["unit"], limit, row["baseline"], row["value"])
    ratio = (row["ratio"], row["ratio_low"], row["ratio_high"])
    return Judged(what, *inputs, *ratio, outcome, why, row.get("component"))


def _outcome(row: dict[str, Any], limit: float, sides: Sequence[RunGroup]) -> tuple[str, str]:
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
