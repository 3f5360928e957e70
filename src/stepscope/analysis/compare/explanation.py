"""Parts of a step that explain a difference in time, memory or energy.

A run's parts are means over the middle half of its profiled steps by length: unlike medians they add up, and unlike
plain means they do not follow a single slow step. The step time that is stated is a median of the unprofiled steps:
what lies between the two is a part of its own, so that all of them add up to the difference stated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.compare.sides import TIMED, geometric_mean, timed_length
from stepscope.analysis.energy.rail_fits import Z_95
from stepscope.analysis.memory.events import UNATTRIBUTED, Peak
from stepscope.analysis.run import Run
from stepscope.analysis.time.operators import CPU, FRAMEWORK_OVERHEAD, OUTSIDE, framework_overhead_ns, per_step
from stepscope.analysis.time.steps import FEW, profiled_steps
from stepscope.analysis.time.tables import module_tree
from stepscope.arrays import Floats
from stepscope.units import row_label

TIME_BY = {"module": "module", "type": "type", "kind": "name", "phase": "phase"}
PART_SCHEMA = {
    "name": pl.String,
    **dict.fromkeys(("first", "other", "difference", "low", "high", "share"), pl.Float64),
}
UNATTRIBUTED_PARTS = (FRAMEWORK_OVERHEAD, "(residual)", "(not attributed)", TIMED)
_DRAWS = 300
_OF_KERNELS = "mean of the middle half of the profiled steps"
_OF_STEPS = f"{_OF_KERNELS}; {row_label(TIMED)}: from those to the step time, a median of unprofiled steps if enough"


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
    parts: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=PART_SCHEMA))
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


def explain_time(
    first: Sequence[Run], other: Sequence[Run], by: str, kernels: bool = False, per_sample: bool = False
) -> Explanation:
    """The difference in step time, ns, by `BY`; with `kernels`, in time on accelerators in the profiled steps.

    95 % CIs are drawn from the steps, and with repeats from the runs.
    """
    what = "kernels" if kernels else "time"
    sides = [_time_side(runs, by, kernels, per_sample) for runs in (first, other)]
    if sides[0] is None or sides[1] is None:
        said = "no kernel ran on an accelerator" if kernels else "no operator was recorded after the warm-up"
        return Explanation(what, by, "ns", reason=f"{said} in {'the first' if sides[0] is None else 'the other'}")
    return explain_difference(what, by, "ns", sides[0], sides[1], _OF_KERNELS if kernels else _OF_STEPS)


def explain_difference(what: str, by: str, unit: str, first: Parts, other: Parts, note: str) -> Explanation:
    """The parts of two sides, matched by name; what only one side has counts as 0 in the difference."""
    names = list(dict.fromkeys((*first.names, *other.names)))
    a, b = (_align(side, names) for side in (first, other))
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
        schema=PART_SCHEMA,
        nan_to_null=True,
    )
    last = pl.col("name").is_in(UNATTRIBUTED_PARTS).cast(pl.Int8) + (pl.col("name") == TIMED)
    ordered = frame.sort(last, pl.col("difference").abs(), "name", descending=[False, True, False])
    return Explanation(
        what, by, unit, float(values[0].sum()), float(values[1].sum()), total_low, total_high, ordered, note
    )


def _time_side(runs: Sequence[Run], by: str, kernels: bool, per_sample: bool) -> Parts | None:
    run_parts = [_time_parts(run, by, kernels, per_sample) for run in runs]
    known = [parts for parts in run_parts if parts is not None]
    if not known or len(known) < len(run_parts):
        return None
    return _pool_parts(known) if kernels else _pool_to_step_time(known)


def _time_parts(run: Run, by: str, kernels: bool, per_sample: bool) -> Parts | None:
    steps, table = profiled_steps(run), run.self_times
    own = table.filter((pl.col("device") != CPU) if kernels else (pl.col("device") == CPU))
    if steps.is_empty() or own.is_empty():
        return None
    column = TIME_BY[by]
    own = own.with_columns(type=_type_column(run, table)) if by == "type" else own
    found = per_step(own, steps["step"], (column,), "self_ns")
    names, values = found.keys[column].to_list(), found.values
    if not kernels:
        names, values = [*names, FRAMEWORK_OVERHEAD], np.column_stack([values, framework_overhead_ns(table, steps)])
    if per_sample:
        values = values / _mean_samples(steps)
    exact = _middle_half(steps["length_ns"].to_numpy().astype(np.float64)[None, :])
    drawn = _resampled(steps["length_ns"].to_numpy().astype(np.float64)) if len(steps) >= FEW else None
    parts = Parts(tuple(names), (exact @ values)[0], None if drawn is None else drawn @ values)
    return parts if kernels else _with_timed(parts, run, per_sample)


def _with_timed(parts: Parts, run: Run, per_sample: bool) -> Parts:
    """Return the parts with a last one that makes them add up to the step time: timed steps minus profiled ones."""
    length, sums = timed_length(run, per_sample, _DRAWS)
    values = np.append(parts.values, length - parts.values.sum())
    draws = None
    if parts.draws is not None and sums is not None:
        draws = np.column_stack([parts.draws, sums - parts.draws.sum(axis=1)])
    return Parts((*parts.names, TIMED), values, draws, sums)


def _type_column(run: Run, table: pl.DataFrame) -> pl.Expr:
    """Type of the module of each row; OUTSIDE for what lies in none."""
    of = {module.name: module.type or "(module of unknown type)" for module in module_tree(run, table)}
    return pl.col("module").replace_strict({**of, OUTSIDE: OUTSIDE}, default=OUTSIDE, return_dtype=pl.String)


def module_types(run: Run) -> dict[str, str]:
    """Type of each module of a run."""
    return {module.name: module.type or "(module of unknown type)" for module in module_tree(run, run.self_times)}


def samples_per_step(run: Run) -> float | None:
    """Training samples of a profiled step, the mean; None where they were not counted."""
    steps = profiled_steps(run)
    return None if steps["samples"].null_count() or steps.is_empty() else _mean_samples(steps)


def _mean_samples(steps: pl.DataFrame) -> float:
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
    """Return those weights for resamples of the steps."""
    picks = np.random.default_rng(0).integers(0, len(lengths), (_DRAWS, len(lengths)))
    return _middle_half(lengths[picks], picks)


def _pool_to_step_time(run_parts: Sequence[Parts]) -> Parts:
    """Repeats pooled, their sum the geometric mean that is stated as the step time of that side."""
    pooled = _pool_parts(run_parts)
    shift = geometric_mean([float(parts.values.sum()) for parts in run_parts]) - float(pooled.values.sum())
    at = np.array([name == TIMED for name in pooled.names])
    draws = None if pooled.draws is None else pooled.draws + shift * at
    return Parts(pooled.names, pooled.values + shift * at, draws, None if pooled.sums is None else pooled.sums + shift)


def _pool_parts(run_parts: Sequence[Parts]) -> Parts:
    """Mean of repeats; its draws resample the runs too."""
    if len(run_parts) == 1:
        return run_parts[0]
    names = list(dict.fromkeys(name for parts in run_parts for name in parts.names))
    aligned = [_align(parts, names) for parts in run_parts]
    values = np.mean([np.nan_to_num(parts.values) for parts in aligned], axis=0)
    sums = _mean_drawn([None if parts.sums is None else parts.sums[:, None] for parts in aligned])
    draws = _mean_drawn([parts.draws for parts in aligned])
    return Parts(tuple(names), values, draws, None if sums is None else sums[:, 0])


def _mean_drawn(drawn: Sequence[Floats | None]) -> Floats | None:
    """Mean of the repeats in each draw (draws, k); None where one of them has none."""
    known = [resample for resample in drawn if resample is not None]
    if len(known) < len(drawn):
        return None
    mean: Floats = np.mean(list(_runs_resampled(np.stack(known))), axis=0)
    return mean


def _runs_resampled(drawn: Floats) -> Iterator[Floats]:
    """Return, for each place among the repeats, the draws of a randomly picked run; drawn is (runs, draws, k)."""
    runs, draws, _ = drawn.shape
    random = np.random.default_rng(1)
    for _ in range(runs):
        yield drawn[random.integers(0, runs, draws), np.arange(draws)]


def _align(parts: Parts, names: Sequence[str]) -> Parts:
    """The parts in the order of `names`; NaN for those that it has not, whose draws are 0."""
    place = {name: index for index, name in enumerate(parts.names)}
    at = np.array([place.get(name, -1) for name in names])
    values = np.where(at >= 0, parts.values[at], np.nan)
    draws = None if parts.draws is None else np.where(at >= 0, parts.draws[:, at], 0.0)
    return replace(parts, names=tuple(names), values=values, draws=draws)


MEMORY_BY = ("module", "type", "kind", "category")
_UNATTRIBUTED = "(not attributed)"
_NO_OP = "(before the profiled steps)"


def explain_memory(first: Sequence[Run], other: Sequence[Run], by: str) -> Explanation:
    """The difference between the live peaks, B: what was live at each instant. Counted, so without an interval."""
    sides = [_memory_side(runs, by) for runs in (first, other)]
    if sides[0] is None or sides[1] is None:
        which = "the first" if sides[0] is None else "the other"
        return Explanation(
            "memory", by, "B", reason=f"no allocation was recorded in {which}: run it with --record-memory auto"
        )
    return explain_difference(
        "memory", by, "B", sides[0], sides[1], "bytes live at each side's own peak: counted, not sampled"
    )


def _memory_side(runs: Sequence[Run], by: str) -> Parts | None:
    """Mean over repeats."""
    peaks = [peak for run in runs if (peak := run.peak()) is not None]
    alike = len({peak.computed for peak in peaks}) < 2
    run_parts = [_live_at_peak(run, peak, by) for run, peak in zip(runs, peaks, strict=False)] if alike else []
    if len(run_parts) < len(runs):
        return None
    whole = pl.concat(run_parts).group_by("name", maintain_order=True).agg(pl.col("bytes").sum() / len(run_parts))
    return Parts(tuple(whole["name"]), np.asarray(whole["bytes"].to_numpy(), dtype=np.float64), None)


def _live_at_peak(run: Run, peak: Peak, by: str) -> pl.DataFrame:
    """Bytes live at the peak by name."""
    module = pl.col("module").fill_null(OUTSIDE)
    of = {
        "module": module,
        "type": module.replace_strict(module_types(run), default=OUTSIDE, return_dtype=pl.String),
        "kind": pl.col("op").fill_null(_NO_OP),
        "category": pl.col("category"),
    }[by]
    name = pl.when(UNATTRIBUTED).then(pl.lit(_UNATTRIBUTED)).otherwise(of).alias("name")
    return peak.tensors.group_by(name, maintain_order=True).agg(pl.col("bytes").sum().cast(pl.Float64))


ENERGY_BY = ("module", "type", "kind", "phase")
_WHOLE = ("total", "device")  # components that stand for the whole


@dataclass(frozen=True)
class _RunEnergy:
    """Energy of one run by name: value and half width of 95 %, NaN where it has none."""

    names: tuple[str, ...]
    joules: Floats
    half: Floats


def explain_energy(first: Sequence[Run], other: Sequence[Run], by: str, per_sample: bool = False) -> Explanation:
    """The difference in energy a step, J, of the component that both sides measured alike (the whole device first)."""
    why = reason_unlike(first, other)
    component = None if why else _shared_component([*first, *other], by)
    if component is None:
        return Explanation("energy", by, "J", reason=why or "no supply line was measured on both sides and attributed")
    sides = [_energy_side(runs, by, component, per_sample, seed) for seed, runs in enumerate((first, other))]
    if sides[0] is None or sides[1] is None:
        return Explanation("energy", by, "J", reason="energy could not be attributed to operators on both sides")
    found = explain_difference("energy", by, "J", sides[0], sides[1], f"energy of '{component}' a step, attributed")
    # The errors of parts cancel each other in their sum, which draws of each by itself do not know: no interval of it.
    return replace(found, low=None, high=None)


def reason_unlike(first: Sequence[Run], other: Sequence[Run]) -> str:
    """Return why the energy of the two cannot be compared at all; empty where it can."""
    kinds = {(run.simulated is not None, run.attribution == "model") for run in (*first, *other)}
    return "" if len(kinds) == 1 else "measured, simulated and estimated energy are not compared with each other"


def _shared_component(runs: Sequence[Run], by: str) -> str | None:
    """The component that all runs have values of: the whole device, else the one with most energy."""
    frames = [_energy_frame(run, by) for run in runs]
    shared = set.intersection(*(set(frame["component"]) for frame in frames)) if frames else set()
    for name in _WHOLE:
        if name in shared:
            return name
    spent = frames[0].filter(pl.col("component").is_in(list(shared))).group_by("component")
    ordered = spent.agg(pl.col("joules_per_step").sum()).sort("joules_per_step", descending=True)
    return None if ordered.is_empty() else str(ordered["component"][0])


def _energy_frame(run: Run, by: str) -> pl.DataFrame:
    frame = run.energy(by="module" if by == "type" else by)
    return frame.filter(pl.col("joules_per_step").is_not_null())


def _energy_side(runs: Sequence[Run], by: str, component: str, per_sample: bool, seed: int) -> Parts | None:
    """Mean of the repeats with draws from their intervals, and over the repeats where there are several."""
    run_parts = []
    for run in runs:
        scale = samples_per_step(run) if per_sample else 1.0
        found = _energy_parts(run, by, component, scale) if scale else None
        if found is None:
            return None
        run_parts.append(found)
    names = list(dict.fromkeys(name for parts in run_parts for name in parts.names))
    joules = np.stack([_values_in_order(parts.names, parts.joules, names) for parts in run_parts])
    half = np.stack([_values_in_order(parts.names, parts.half, names) for parts in run_parts])
    if np.isnan(half).any():
        return Parts(tuple(names), joules.mean(axis=0), None)
    random = np.random.default_rng(seed)
    picks = random.integers(0, len(run_parts), (_DRAWS, len(run_parts)))
    noise = random.standard_normal((_DRAWS, len(run_parts), len(names)))
    draws = (joules[picks] + noise * half[picks] / Z_95).mean(axis=1)
    return Parts(tuple(names), joules.mean(axis=0), draws)


def _values_in_order(names: Sequence[str], values: Floats, order: Sequence[str]) -> Floats:
    place = dict(zip(names, values.tolist(), strict=True))
    return np.array([place.get(name, 0.0) for name in order])


def _energy_parts(run: Run, by: str, component: str, scale: float) -> _RunEnergy | None:
    frame = _energy_frame(run, by).filter(pl.col("component") == component)
    if frame.is_empty():
        return None
    frame = frame.filter(pl.col("rail") == frame["rail"][0])  # two meters of one component are not added
    if by == "type":
        kept = module_types(run)
        frame = frame.with_columns(pl.col("name").replace_strict(kept, default=pl.col("name"), return_dtype=pl.String))
    # Intervals of the phases of a module are added up: that can only be too wide. Below 0 an end was cut off.
    half = pl.max_horizontal(pl.col("high") - pl.col("joules_per_step"), pl.col("joules_per_step") - pl.col("low"))
    certain = pl.when(pl.col("name") == "(residual)").then(0.0).otherwise(half)
    rows = frame.group_by("name", maintain_order=True).agg(pl.col("joules_per_step").sum(), certain.sum().alias("half"))
    unknown = frame.filter(pl.col("high").is_null(), pl.col("name") != "(residual)")
    halves = rows["half"].to_numpy() if unknown.is_empty() else np.full(len(rows), np.nan)
    return _RunEnergy(tuple(rows["name"]), rows["joules_per_step"].to_numpy() / scale, np.asarray(halves) / scale)
