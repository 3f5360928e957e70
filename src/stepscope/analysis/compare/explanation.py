"""Parts of a step that explain a difference in time, memory or energy.

Times of parts are those that the report of each run states, from one function: they add up to the step time as it runs
without the profiler, and so the differences of parts add up to the difference that is stated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from stepscope.analysis.compare.run_groups import TOTAL, pooled_step_time, total_supplies
from stepscope.analysis.energy.mean_step import samples_per_step
from stepscope.analysis.estimate import Estimate, mean_of_repeats
from stepscope.analysis.memory.events import UNATTRIBUTED, Peak
from stepscope.analysis.run import Run
from stepscope.analysis.summary import COMPUTED, memory_is_computed
from stepscope.analysis.time.operators import CPU, FRAMEWORK_OVERHEAD, OUTSIDE
from stepscope.analysis.time.steps import profiled_steps
from stepscope.analysis.time.tables import framework_overhead_of_step, module_tree, parts_of_step

TIME_BY = {"module": "module", "type": "type", "kind": "name", "phase": "phase"}
PART_SCHEMA = {
    "name": pl.String,
    **dict.fromkeys(("first", "other", "difference", "low", "high", "share"), pl.Float64),
}
RESIDUAL = "(residual)"
UNATTRIBUTED_PARTS = (FRAMEWORK_OVERHEAD, RESIDUAL, "(not attributed)")
_NOTE = "as each run's report states them: of a step that runs without the profiler"
_BY_SAMPLES = ", over its samples"
_LEAST_LEFT = 1e-6  # of the whole: below it is what numbers are rounded by


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


Parts = dict[str, Estimate]  # of one side, by name; without a CI where too little was measured


def explain_time(
    first: Sequence[Run], other: Sequence[Run], by: str, kernels: bool = False, per_sample: bool = False
) -> Explanation:
    """The difference in step time, ns, by `BY`; with `kernels`, in time on accelerators in the profiled steps."""
    what = "kernels" if kernels else "time"
    sides = [_time_side(runs, by, kernels, per_sample) for runs in (first, other)]
    if sides[0] is None or sides[1] is None:
        text = "no kernel ran on an accelerator" if kernels else "no operator was recorded after the warm-up"
        return Explanation(what, by, "ns", reason=f"{text} in {'the first' if sides[0] is None else 'the other'}")
    if kernels:
        note = "mean of the profiled steps" + _BY_SAMPLES * per_sample
        return explain_difference(what, by, "ns", sides[0], sides[1], note)
    wholes = [pooled_step_time(runs, per_sample) for runs in (first, other)]
    before, after = (
        _scaled_to_whole(parts, whole, [pooled_step_time([run], per_sample) for run in runs])
        for parts, whole, runs in zip((sides[0], sides[1]), wholes, (first, other), strict=True)
    )
    return explain_difference(what, by, "ns", before, after, _NOTE + _BY_SAMPLES * per_sample, wholes)


def _scaled_to_whole(parts: Parts, whole: Estimate, repeats: Sequence[Estimate]) -> Parts:
    """Return means of parts scaled to the geometric mean of the repeats, which is what is stated for the whole."""
    factor = whole.value * len(repeats) / sum(repeat.value for repeat in repeats)
    return {name: part.times(factor) for name, part in parts.items()}


def explain_difference(
    what: str, by: str, unit: str, first: Parts, other: Parts, note: str, wholes: Sequence[Estimate] = ()
) -> Explanation:
    """The parts of two sides, matched by name; what only one side has counts as 0 in the difference.

    wholes: what is stated for each side; what its parts lack of it is a part of its own.
    """
    sums = [sum(part.value for part in parts.values()) for parts in (first, other)]
    stated = wholes or [Estimate(value) for value in sums]
    lacking = [whole.value - value for whole, value in zip(stated, sums, strict=True)]
    if any(abs(part) > _LEAST_LEFT * whole.value for part, whole in zip(lacking, stated, strict=True)):
        first, other = (
            {**parts, RESIDUAL: Estimate(part)} for parts, part in zip((first, other), lacking, strict=True)
        )
    whole = stated[1] - stated[0]
    rows = [_part_row(name, first.get(name), other.get(name)) for name in dict.fromkeys((*first, *other))]
    frame = pl.DataFrame(rows, schema=PART_SCHEMA, orient="row").with_columns(
        share=pl.col("difference") / whole.value if whole.value else None
    )
    last = pl.col("name").is_in(UNATTRIBUTED_PARTS).cast(pl.Int8) + (pl.col("name") == RESIDUAL)
    ordered = frame.sort(last, pl.col("difference").abs(), "name", descending=[False, True, False])
    return Explanation(what, by, unit, stated[0].value, stated[1].value, whole.low, whole.high, ordered, note)


def _part_row(name: str, first: Estimate | None, other: Estimate | None) -> tuple[object, ...]:
    """Return a part of two sides as `SCHEMA` has it, without its share."""
    none = Estimate(0.0, 0.0, 0.0)
    values = tuple(None if part is None else part.value for part in (first, other))
    return (name, *values, *((other or none) - (first or none)).row, None)


def _time_side(runs: Sequence[Run], by: str, kernels: bool, per_sample: bool) -> Parts | None:
    repeats = [_time_parts(run, by, kernels, per_sample) for run in runs]
    sides = [parts for parts in repeats if parts is not None]
    return _pool_parts(sides) if len(sides) == len(repeats) else None


def _time_parts(run: Run, by: str, kernels: bool, per_sample: bool) -> Parts | None:
    times = run.step_times
    table = times.table.filter((pl.col("device") != CPU) if kernels else (pl.col("device") == CPU))
    if times.is_empty or table.is_empty() or profiled_steps(run).is_empty():
        return None
    column = TIME_BY[by]
    if by == "type":
        types = pl.col("module").replace_strict(module_types(run), default=OUTSIDE, return_dtype=pl.String)
        table = table.with_columns(type=types)
    frame = parts_of_step(times, table, (column,)).rename({column: "name"})
    if not kernels:
        frame = pl.concat([frame, pl.DataFrame({"name": [FRAMEWORK_OVERHEAD], **framework_overhead_of_step(times)})])
    per = (samples_per_step(run) or 1.0) if per_sample else 1.0
    rows = frame.select("name", "ns", "low_ns", "high_ns").fill_nan(None).iter_rows()
    return {name: Estimate(*ends).times(1 / per) for name, *ends in rows}


def module_types(run: Run) -> dict[str, str]:
    """Type of each module of a run."""
    return {module.name: module.type or "(module of unknown type)" for module in module_tree(run, run.self_times)}


def _pool_parts(repeats: Sequence[Parts]) -> Parts:
    """Mean of repeats with the interval between them; a part that one of them has not is 0 there."""
    names = dict.fromkeys(name for parts in repeats for name in parts)
    return {name: mean_of_repeats([parts.get(name, Estimate(0.0)) for parts in repeats]) for name in names}


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
    if why := reason_unlike_peaks(first, other):
        return Explanation("memory", by, "B", reason=why)
    how = COMPUTED.upper() if memory_is_computed(first[0]) else "counted, not sampled"
    note = f"bytes live at each side's own peak: {how}"
    return explain_difference("memory", by, "B", sides[0], sides[1], note)


def reason_unlike_peaks(first: Sequence[Run], other: Sequence[Run]) -> str:
    """Return why the live peaks of the two cannot be compared at all; empty where they can."""
    kinds = {memory_is_computed(run) for run in (*first, *other) if not run.allocations.is_empty()}
    return "" if len(kinds) < 2 else f"recorded memory is not compared with what was {COMPUTED}"


def _memory_side(runs: Sequence[Run], by: str) -> Parts | None:
    """Mean over repeats."""
    peaks = [peak for run in runs if (peak := run.peak()) is not None]
    if len(peaks) < len(runs):
        return None
    run_parts = [_live_at_peak(run, peak, by) for run, peak in zip(runs, peaks, strict=True)]
    whole = pl.concat(run_parts).group_by("name", maintain_order=True).agg(pl.col("bytes").sum() / len(run_parts))
    return {name: Estimate(size) for name, size in whole.select("name", "bytes").iter_rows()}


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
_WHOLE = (TOTAL, "device")  # components that stand for the whole


def explain_energy(first: Sequence[Run], other: Sequence[Run], by: str, per_sample: bool = False) -> Explanation:
    """The difference in energy a step, J, of the component that both sides measured alike (the whole device first)."""
    why = reason_unlike(first, other)
    component = None if why else _shared_component([*first, *other], by)
    if component is None:
        return Explanation("energy", by, "J", reason=why or "no supply line was measured on both sides and attributed")
    sides = [_energy_side(runs, by, component, per_sample) for runs in (first, other)]
    if sides[0] is None or sides[1] is None:
        return Explanation("energy", by, "J", reason="energy could not be attributed to operators on both sides")
    # The errors of parts cancel each other in their sum, which theirs do not tell: no interval of it.
    note = f"energy of '{component}' a {'sample' if per_sample else 'step'}, attributed"
    return explain_difference("energy", by, "J", sides[0], sides[1], note)


def reason_unlike(first: Sequence[Run], other: Sequence[Run]) -> str:
    """Return why the energy of the two cannot be compared at all; empty where it can."""
    kinds = {(run.simulated is not None, run.attribution == "model") for run in (*first, *other)}
    return "" if len(kinds) == 1 else "measured, simulated and estimated energy are not compared with each other"


def _shared_component(runs: Sequence[Run], by: str) -> str | None:
    """The component that all runs have values of: the whole device, else the one with most energy."""
    frames = [_energy_frame(run, by) for run in runs]
    shared = set.intersection(*(set(frame["component"]) for frame in frames)) if frames else set()
    shared -= {TOTAL} if len(total_supplies(runs)) > 1 else set()
    for name in _WHOLE:
        if name in shared:
            return name
    spent = frames[0].filter(pl.col("component").is_in(list(shared))).group_by("component")
    ordered = spent.agg(pl.col("joules_per_step").sum()).sort("joules_per_step", descending=True)
    return None if ordered.is_empty() else str(ordered["component"][0])


def _energy_frame(run: Run, by: str) -> pl.DataFrame:
    frame = run.energy(by="module" if by == "type" else by)
    return frame.filter(pl.col("joules_per_step").is_not_null())


def _energy_side(runs: Sequence[Run], by: str, component: str, per_sample: bool) -> Parts | None:
    """Parts of the one run, or the mean of the repeats."""
    repeats = []
    for run in runs:
        scale = samples_per_step(run) if per_sample else 1.0
        parts = _energy_parts(run, by, component, scale) if scale else None
        if parts is None:
            return None
        repeats.append(parts)
    return _pool_parts(repeats)


def _energy_parts(run: Run, by: str, component: str, scale: float) -> Parts | None:
    frame = _energy_frame(run, by).filter(pl.col("component") == component)
    if frame.is_empty():
        return None
    frame = frame.filter(pl.col("rail") == frame["rail"][0])  # two meters of one component are not added
    if by == "type":
        types = module_types(run)
        frame = frame.with_columns(pl.col("name").replace_strict(types, default=pl.col("name"), return_dtype=pl.String))
    # Intervals of the phases of a module are added up: that can only be too wide. Below 0 an end was cut off.
    half = pl.max_horizontal(pl.col("high") - pl.col("joules_per_step"), pl.col("joules_per_step") - pl.col("low"))
    certain = pl.when(pl.col("name") == RESIDUAL).then(0.0).otherwise(half)
    rows = frame.group_by("name", maintain_order=True).agg(pl.col("joules_per_step").sum(), certain.sum().alias("half"))
    all_known = frame.filter(pl.col("high").is_null(), pl.col("name") != RESIDUAL).is_empty()
    return {
        name: Estimate(joules, *((joules - half, joules + half) if all_known else ())).times(1 / scale)
        for name, joules, half in rows.iter_rows()
    }
