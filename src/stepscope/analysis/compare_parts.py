"""Which parts of a step explain a difference in time: modules, types of module, kinds of op or phases.

A run's parts are means over the middle half of its recorded steps by length: unlike medians they add up, and unlike
plain means they do not follow a single slow step. The step time that is stated is a median of the unrecorded steps:
what lies between the two is a part of its own, so that all of them add up to the difference stated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.compare_timed import TIMED, geometric_mean, timed_length
from stepscope.analysis.intervals import Floats
from stepscope.analysis.module_tree import module_tree
from stepscope.analysis.own_time import CPU, OUTSIDE, RESIDUAL, per_step, residual_ns
from stepscope.analysis.run import Run
from stepscope.analysis.steady import FEW, recorded_steps

BY = {"module": "module", "type": "type", "kind": "name", "phase": "phase"}
SCHEMA = {
    "name": pl.String,
    **dict.fromkeys(("first", "other", "difference", "low", "high", "share"), pl.Float64),
}
RESIDUALS = (RESIDUAL, "(residual)", "(not attributed)", TIMED)
_DRAWS = 300
_OF_KERNELS = "mean of the middle half of the recorded steps"
_OF_STEPS = f"{_OF_KERNELS}; {TIMED}: from those to the step time, a median, of unrecorded steps where there are enough"


@dataclass(frozen=True)
class Explanation:
    """A difference and the parts that add up to it, largest first, the residual last; columns as `SCHEMA`.

    `first` and `other` of a part are null where that side has no such part. `reason` says why there are no parts.
    """

    what: str
    by: str
    unit: str
    first: float | None = None
    other: float | None = None
    low: float | None = None
    high: float | None = None
    parts: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=SCHEMA))
    note: str = ""
    reason: str = ""

    @property
    def difference(self) -> float | None:
        """other - first, in the unit."""
        return None if self.first is None or self.other is None else self.other - self.first


@dataclass(frozen=True)
class Parts:
    """Parts of one side: value of each (k,), and draws of it (draws, k), None where steps are too few.

    `sums`: draws of their sum (draws,), where that is known better than its parts are.
    """

    names: tuple[str, ...]
    values: Floats
    draws: Floats | None
    sums: Floats | None = None

    @property
    def drawn_sums(self) -> Floats | None:
        """Draws of the sum of the parts."""
        if self.sums is not None or self.draws is None:
            return self.sums
        sums: Floats = self.draws.sum(axis=1)
        return sums


def time_explained(
    first: Sequence[Run], other: Sequence[Run], by: str, kernels: bool = False, per_sample: bool = False
) -> Explanation:
    """The difference in step time, ns, by `BY`; with `kernels`, in time on accelerators in the recorded steps.

    Intervals of 95 % are drawn from the steps, and with repeats from the runs.
    """
    what = "kernels" if kernels else "time"
    sides = [_side(runs, by, kernels, per_sample) for runs in (first, other)]
    if sides[0] is None or sides[1] is None:
        said = "no kernel ran on an accelerator" if kernels else "no operation was recorded after the warm-up"
        return Explanation(what, by, "ns", reason=f"{said} in {'the first' if sides[0] is None else 'the other'}")
    return explained(what, by, "ns", sides[0], sides[1], _OF_KERNELS if kernels else _OF_STEPS)


def explained(what: str, by: str, unit: str, first: Parts, other: Parts, note: str) -> Explanation:
    """The parts of two sides, matched by name; what only one side has counts as 0 in the difference."""
    names = list(dict.fromkeys((*first.names, *other.names)))
    a, b = (_aligned(side, names) for side in (first, other))
    values = [np.nan_to_num(side.values) for side in (a, b)]
    change = values[1] - values[0]
    low = high = np.full(len(names), np.nan)
    total_low = total_high = None
    if a.draws is not None and b.draws is not None:
        draws = b.draws - a.draws
        low, high = np.quantile(draws, (0.025, 0.975), axis=0)
    sums = [side.drawn_sums for side in (first, other)]
    if sums[0] is not None and sums[1] is not None:
        total_low, total_high = (float(x) for x in np.quantile(sums[1] - sums[0], (0.025, 0.975)))
    total = float(change.sum())
    frame = pl.DataFrame(
        {
            **{"name": names, "first": a.values, "other": b.values, "difference": change, "low": low, "high": high},
            "share": change / total if total else np.full(len(names), np.nan),
        },
        schema=SCHEMA,
        nan_to_null=True,
    )
    last = pl.col("name").is_in(RESIDUALS).cast(pl.Int8) + (pl.col("name") == TIMED)
    ordered = frame.sort(last, pl.col("difference").abs(), "name", descending=[False, True, False])
    return Explanation(
        what, by, unit, float(values[0].sum()), float(values[1].sum()), total_low, total_high, ordered, note
    )


def _side(runs: Sequence[Run], by: str, kernels: bool, per_sample: bool) -> Parts | None:
    each = [_of_run(run, by, kernels, per_sample) for run in runs]
    known = [parts for parts in each if parts is not None]
    if not known or len(known) < len(each):
        return None
    return _pooled(known) if kernels else _pooled_to_stated(known)


def _of_run(run: Run, by: str, kernels: bool, per_sample: bool) -> Parts | None:
    steps, table = recorded_steps(run), run.own_times
    own = table.filter((pl.col("device") != CPU) if kernels else (pl.col("device") == CPU))
    if steps.is_empty() or own.is_empty():
        return None
    column = BY[by]
    own = own.with_columns(type=_types(run, table)) if by == "type" else own
    found = per_step(own, steps["step"], (column,), "self_ns")
    names, values = found.keys[column].to_list(), found.values
    if not kernels:
        names, values = [*names, RESIDUAL], np.column_stack([values, residual_ns(table, steps)])
    if per_sample:
        values = values / _samples(steps)
    exact = _middle_half(steps["length_ns"].to_numpy().astype(np.float64)[None, :])
    drawn = _resampled(steps["length_ns"].to_numpy().astype(np.float64)) if len(steps) >= FEW else None
    parts = Parts(tuple(names), (exact @ values)[0], None if drawn is None else drawn @ values)
    return parts if kernels else _with_timed(parts, run, per_sample)


def _with_timed(parts: Parts, run: Run, per_sample: bool) -> Parts:
    """With the part that makes them add up to the step time: what the timed steps take less the recorded ones."""
    length, sums = timed_length(run, per_sample, _DRAWS)
    values = np.append(parts.values, length - parts.values.sum())
    draws = None
    if parts.draws is not None and sums is not None:
        draws = np.column_stack([parts.draws, sums - parts.draws.sum(axis=1)])
    return Parts((*parts.names, TIMED), values, draws, sums)


def _types(run: Run, table: pl.DataFrame) -> pl.Expr:
    """Type of the module of each row; OUTSIDE for what lies in none."""
    of = {module.name: module.type or "(module of unknown type)" for module in module_tree(run, table)}
    return pl.col("module").replace_strict({**of, OUTSIDE: OUTSIDE}, default=OUTSIDE, return_dtype=pl.String)


def types_of(run: Run) -> dict[str, str]:
    """Type of each module of a run."""
    return {module.name: module.type or "(module of unknown type)" for module in module_tree(run, run.own_times)}


def samples_per_step(run: Run) -> float | None:
    """Training samples of a recorded step, the mean; None where they were not counted."""
    steps = recorded_steps(run)
    return None if steps["samples"].null_count() or steps.is_empty() else _samples(steps)


def _samples(steps: pl.DataFrame) -> float:
    return max(float(np.mean(steps["samples"].to_numpy())), 1.0)


def _middle_half(lengths: Floats, picks: Any = None) -> Floats:
    """Weights (draws, steps), each row adding up to 1: the steps between the quartiles of a draw by length."""
    draws, count = lengths.shape
    order = np.argsort(lengths, axis=1, kind="stable")
    cut = count // 4
    chosen = order[:, cut : count - cut]
    if picks is None:
        weights = np.zeros((draws, count))
        np.put_along_axis(weights, chosen, 1.0 / chosen.shape[1], axis=1)
        return weights
    weights = np.zeros((draws, count))
    rows = np.repeat(np.arange(draws), chosen.shape[1])
    np.add.at(weights, (rows, np.take_along_axis(picks, chosen, axis=1).ravel()), 1.0 / chosen.shape[1])
    return weights


def _resampled(lengths: Floats) -> Floats:
    """The same weights for resamples of the steps."""
    picks = np.random.default_rng(0).integers(0, len(lengths), (_DRAWS, len(lengths)))
    return _middle_half(lengths[picks], picks)


def _pooled_to_stated(each: Sequence[Parts]) -> Parts:
    """Repeats pooled, their sum the geometric mean that is stated as the step time of that side."""
    pooled = _pooled(each)
    shift = geometric_mean([float(parts.values.sum()) for parts in each]) - float(pooled.values.sum())
    at = np.array([name == TIMED for name in pooled.names])
    draws = None if pooled.draws is None else pooled.draws + shift * at
    return Parts(pooled.names, pooled.values + shift * at, draws, None if pooled.sums is None else pooled.sums + shift)


def _pooled(each: Sequence[Parts]) -> Parts:
    """Mean of repeats; its draws resample the runs too."""
    if len(each) == 1:
        return each[0]
    names = list(dict.fromkeys(name for parts in each for name in parts.names))
    aligned = [_aligned(parts, names) for parts in each]
    values = np.mean([np.nan_to_num(parts.values) for parts in aligned], axis=0)
    sums = _mean_drawn([None if parts.sums is None else parts.sums[:, None] for parts in aligned])
    draws = _mean_drawn([parts.draws for parts in aligned])
    return Parts(tuple(names), values, draws, None if sums is None else sums[:, 0])


def _mean_drawn(drawn: Sequence[Floats | None]) -> Floats | None:
    """Mean of the repeats in each draw (draws, k); None where one of them has none."""
    known = [one for one in drawn if one is not None]
    if len(known) < len(drawn):
        return None
    mean: Floats = np.mean(list(_runs_resampled(np.stack(known))), axis=0)
    return mean


def _runs_resampled(drawn: Floats) -> Iterator[Floats]:
    """For each place among the repeats, the draws of a run picked at random: drawn is (runs, draws, k)."""
    runs, draws, _ = drawn.shape
    random = np.random.default_rng(1)
    for _ in range(runs):
        yield drawn[random.integers(0, runs, draws), np.arange(draws)]


def _aligned(parts: Parts, names: Sequence[str]) -> Parts:
    """The parts in the order of `names`; NaN for those that it has not, whose draws are 0."""
    place = {name: index for index, name in enumerate(parts.names)}
    at = np.array([place.get(name, -1) for name in names])
    values = np.where(at >= 0, parts.values[at], np.nan)
    draws = None if parts.draws is None else np.where(at >= 0, parts.draws[:, at], 0.0)
    return replace(parts, names=tuple(names), values=values, draws=draws)
