"""The loop of a sweep: one run after the other, each read and written down when it ends."""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.device.occupancy import background_load_sentence
from stepscope.analysis.estimate import change_points
from stepscope.analysis.run import Run
from stepscope.analysis.time.steps import timed_steps
from stepscope.errors import StepscopeError
from stepscope.experiments.engine.engine import CHILD, ProgressCallbacks, Result, measure_points
from stepscope.experiments.engine.folder import SweepFolder, disk_full_error
from stepscope.experiments.engine.process import NO_FIT, Outcome, disk_was_full, finished_outcome, run_child
from stepscope.experiments.engine.sweep_points import SweepPoint
from stepscope.experiments.suite.best_changes import read_best_changes
from stepscope.experiments.suite.rules import RunRules, cool_down
from stepscope.quantities import SUITE_COLUMNS
from stepscope.units import plural

_LEAST_FREE_BYTES = 64_000_000
WOULD_NOT_FIT = "would not fit"
EndedRuns = Mapping[str, Mapping[str, Any]]


TASK = "stepscope.experiments.suite.plan:train_point"


def run_missing_points(
    folder: SweepFolder, child: Sequence[str] = CHILD, watch: ProgressCallbacks | None = None
) -> EndedRuns:
    """Run what has not ended yet, in the order of the plan; what became of every run, by the id of its point."""
    watch = watch or ProgressCallbacks()
    rules, order = RunRules(**folder.plan["rules"]), folder.order

    def measure(point: SweepPoint, ended: EndedRuns) -> Result:
        if shutil.disk_usage(folder.path).free < _LEAST_FREE_BYTES:
            raise disk_full_error(folder.path)
        result = skip_result(point, order, ended) or adopt_finished(folder, point)
        return result or _run_point(folder, child, point, rules, watch)

    with folder.locked():
        return measure_points(folder, order, measure, watch, again=lambda result: False)


def orders_of(point: SweepPoint, rules: Mapping[str, Any]) -> dict[str, Any]:
    """Return the orders of a run for its process."""
    return {**point.to_dict(), "task": TASK, "rules": dict(rules)}


def time_left_s(order: Sequence[SweepPoint], ended: EndedRuns) -> float | None:
    """Return how long the runs to come take, s: the mean of those alike that have ended, by setting, then by
    workload.
    """
    durations: dict[Any, list[float]] = defaultdict(list)  # by setting, by workload, and of all
    tuning: list[float] = []  # of first repeats alone
    for point in order:
        result = ended.get(point.id, {})
        tuning += [float((result.get("tune") or {}).get("wall_s") or 0.0)] if point.repeat == 0 and result else []
        seconds = result.get("total_s")
        if seconds is not None:
            for alike in (point.setting, point.workload, None):
                durations[alike].append(float(seconds) - (tuning[-1] if point.repeat == 0 else 0.0))
    if not durations:
        return None
    means = {alike: sum(lengths) / len(lengths) for alike, lengths in durations.items()}
    to_come = [point for point in order if point.id not in ended]
    tuning_s = sum(tuning) / max(1, len(tuning))
    return sum(
        means.get(point.setting, means.get(point.workload, means[None])) + (tuning_s if point.repeat == 0 else 0.0)
        for point in to_come
    )


def skip_result(point: SweepPoint, order: Sequence[SweepPoint], ended: EndedRuns) -> dict[str, Any] | None:
    """The result of a run that is not made, since one that needs no more did not fit; None where it is to be made.

    Memory that was short is short in every repeat; one run that was killed or slow may have had another reason, which
    is taken to hold for larger batches alone.
    """
    for other in order:
        status = str(ended.get(other.id, {}).get("status"))
        if status not in NO_FIT or not point.would_need_more_than(other):
            continue
        if status == "oom" or point.setting != other.setting:
            what = other.workload if other.batch is None else f"batch {other.batch}"
            return {"point": point.to_dict(), "status": WOULD_NOT_FIT, "reason": f"{what} {NO_FIT[status]}"}
    return None


def adopt_finished(folder: SweepFolder, point: SweepPoint) -> dict[str, Any] | None:
    """The result of a run that ended while the sweep was being killed; None where there is none."""
    outcome = finished_outcome(folder.run_folder(point))
    return None if outcome is None or disk_was_full(folder.run_folder(point)) else result_of(folder, point, outcome)


def _run_point(
    folder: SweepFolder, child: Sequence[str], point: SweepPoint, rules: RunRules, watch: ProgressCallbacks
) -> dict[str, Any]:
    cooled = cool_down(rules)
    where = folder.run_folder(point)
    outcome = run_child(child, orders_of(point, folder.plan["rules"]), where, rules.time_limit_s, watch.ticks)
    if disk_was_full(where):
        shutil.rmtree(where, ignore_errors=True)
        raise disk_full_error(folder.path)
    return add_cooling_facts(result_of(folder, point, outcome), cooled)


def add_cooling_facts(result: Mapping[str, Any], cooled: Mapping[str, Any]) -> dict[str, Any]:
    """A result with what was waited for before its run; a device that did not get cool is a flag."""
    celsius = cooled["to_celsius"]
    text = (
        "begun without cooling: no temperature was read" if celsius is None else f"begun at {celsius:g} degC, not cool"
    )
    flags = {} if cooled["reached"] else {"flags": [*result.get("flags", []), text]}
    total_s = cooled["waited_s"] + (result["wall_s"] or 0.0)
    return {**result, **flags, "cooled": dict(cooled), "total_s": total_s}


def result_of(folder: SweepFolder, point: SweepPoint, outcome: Outcome) -> dict[str, Any]:
    """Return the record of a run: how it ended, and the numbers of its run folder."""
    result: dict[str, Any] = {
        "point": point.to_dict(),
        "status": outcome.status,
        "reason": outcome.reason,
        "wall_s": outcome.wall_s,
        "ended_unix_ms": time.time_ns() // 1_000_000,
        "run": None if outcome.run is None else str(outcome.run.relative_to(folder.path)),
    }
    if folder.plan["rules"]["tune_s"] is not None and point.repeat == 0:
        result["tune"] = read_best_changes(folder.run_folder(point))
    if outcome.run is None:
        return result
    try:
        return {**result, **read_run(outcome.run, outcome.status == "ok")}
    except StepscopeError as error:  # broken off before its first words: its status says why
        return {**result, "flags": [str(error)]}


Numbers = dict[str, dict[str, float | None]]
_SLOWER = 1.05  # of the step time: a change that is worth a flag
_CLOCK_FELL = 0.95
_FEW_STEPS = 6


def read_run(path: Path, ended_well: bool) -> dict[str, Any]:
    """The part of a result that comes from its run folder; numbers only of a run that ended well."""
    run = Run(path)
    workload, whole = run.meta.get("workload") or {}, run.model.head(1)
    facts = {
        "data": workload.get("data"),
        "input_shape": workload.get("input_shape"),
        "parameters": workload.get("parameters"),
        "flops_forward": None if whole.is_empty() else whole["flops_forward"][0],
        "flops_backward": None if whole.is_empty() else whole["flops_backward"][0],
        "threads": run.meta.get("threads"),
        "versions": run.meta.get("versions"),
        "at_start": run.device.get("at_start"),
        "at_end": run.device.get("at_end"),
    }
    if not ended_well:
        return facts
    steps = run.steps
    return {
        **facts,
        "steps": len(steps),
        "warmup_steps": run.warmup_steps,
        "train_s": None if steps.is_empty() else (steps["t1_ns"][-1] - steps["t0_ns"][0]) / 1e9,
        "last_loss": None if steps.is_empty() else steps["loss"][-1],
        "numbers": run_numbers(run),
        "flags": list(run_flags(run)),
    }


def run_numbers(run: Run) -> Numbers:
    """Value and interval of each column; a column that was not measured is excluded."""
    frame = run.metrics()
    numbers: Numbers = {}
    for column in SUITE_COLUMNS:
        rows = frame.filter(metric=column.metric)
        _store_estimate(
            numbers, column.name, rows if column.scope is None else rows.filter(scope=column.scope), column.factor
        )
    _store_estimate(
        numbers, "peak_process_bytes", frame.filter(metric="peak_memory", scope="process").sort("value").tail(1)
    )
    _store_exact(numbers, "peak_live_bytes", _peak_live_bytes(run))
    reserved = (run.meta.get("recorder") or {}).get("reserved_bytes") or {}
    _store_exact(numbers, "peak_reserved_bytes", max(reserved.values(), default=None))
    _store_exact(numbers, "frames_per_s", ((run.meta.get("result") or {}).get("counters") or {}).get("frames_per_s"))
    return numbers


def run_flags(run: Run) -> Iterator[str]:
    """Yield what makes the numbers of a run doubtful, a sentence each."""
    steps = timed_steps(run)[0]
    if len(steps) < _FEW_STEPS:
        yield f"only {plural(len(steps), 'step')} after the warm-up"
    slower = [c for c in change_points(steps["length_ns"].to_numpy().astype(np.float64)) if c.ratio >= _SLOWER]
    if slower:
        by = f"steps took {max(c.ratio for c in slower):.2f}x the time from step {steps['step'][slower[0].step]} on"
        yield f"throttled: {by}, and the clock fell" if _did_clock_fall(run) else f"slowed down: {by}"
    if sentence := background_load_sentence(run):
        yield sentence
    if run.simulated:
        yield f"the power of a simulated {run.simulated}, not of this machine"


def _did_clock_fall(run: Run) -> bool:
    """Return whether a clock was lower at the end than at the start, by more than a step of its governor."""
    ends = [(run.device.get(end) or {}).get("frequencies_hz") or {} for end in ("at_start", "at_end")]
    pairs = [(ends[0][name], ends[1].get(name)) for name in ends[0] if ends[0][name]]
    return any(after is not None and after < _CLOCK_FELL * before for before, after in pairs)


def _peak_live_bytes(run: Run) -> float | None:
    """The most bytes of tensors that were live at once in the profiled steps, B, of the device that held the most."""
    events = run.memory_events
    if events.is_empty():
        return None
    ordered = events.sort("t_ns", "bytes")  # of the same time, what is freed first
    live = ordered.select(live=pl.col("bytes").cum_sum().over("device")).to_series().to_numpy()
    return float(live.max())


def _store_estimate(numbers: Numbers, column: str, rows: pl.DataFrame, factor: float = 1.0) -> None:
    estimates = rows.drop_nulls("value")
    if not estimates.is_empty():
        row = estimates.row(0, named=True)
        bounds = {name: None if row[name] is None else row[name] * factor for name in ("value", "low", "high")}
        numbers[column] = bounds


def _store_exact(numbers: Numbers, column: str, value: float | None) -> None:
    if value is not None:
        numbers[column] = {"value": float(value), "low": None, "high": None}
