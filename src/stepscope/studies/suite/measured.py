"""What a run folder says for the table of a sweep: numbers, conditions at both ends, and what spoils them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.background import warning
from stepscope.analysis.change_points import change_points
from stepscope.analysis.measured import Measured
from stepscope.analysis.run import Run
from stepscope.analysis.steady import timed_steps
from stepscope.studies.suite.columns import ENERGY
from stepscope.units import plural

Numbers = dict[str, dict[str, float | None]]
_SLOWER = 1.05  # of the step time: a change that is worth a flag
_CLOCK_FELL = 0.95
_FEW_STEPS = 6
# (metric, scope, column, factor)
_TAKEN = (
    ("step_time", "run", "step_time_ms", 1e-6),
    ("throughput", "run", "samples_per_s", 1.0),
    ("mean_cpu_utilisation", "cpu", "cpu_utilisation", 1.0),
    ("process_cpu_utilisation", "process", "process_cores", 1.0),
)


def measured(path: Path, ended_well: bool) -> dict[str, Any]:
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
        "numbers": numbers(run),
        "flags": list(flags(run)),
    }


def numbers(run: Run) -> Numbers:
    """Value and interval of each column; a column that was not measured is left out."""
    frame = run.metrics()
    found: Numbers = {}
    for metric, scope, column, factor in _TAKEN:
        _take(found, column, frame.filter(metric=metric, scope=scope), factor)
    _take(found, "peak_process_bytes", frame.filter(metric="peak_memory", scope="process").sort("value").tail(1))
    _take(found, "gpu_utilisation", frame.filter(metric="accelerator_utilisation"))
    for column in ENERGY:  # the total comes first
        _take(found, column, frame.filter(metric=column.removesuffix("_j")))
    _exactly(found, "peak_live_bytes", _live_peak(run))
    reserved = (run.meta.get("recorder") or {}).get("reserved_bytes") or {}
    _exactly(found, "peak_reserved_bytes", max(reserved.values(), default=None))
    _exactly(found, "frames_per_s", ((run.meta.get("result") or {}).get("counters") or {}).get("frames_per_s"))
    return found


def flags(run: Run) -> Iterator[str]:
    """What makes the numbers of a run doubtful, a sentence each."""
    steps = timed_steps(run)[0]
    if len(steps) < _FEW_STEPS:
        yield f"only {plural(len(steps), 'step')} after the warm-up"
    slower = [c for c in change_points(steps["length_ns"].to_numpy().astype(np.float64)) if c.ratio >= _SLOWER]
    if slower:
        by = f"steps took {max(c.ratio for c in slower):.2f} times as long from step {steps['step'][slower[0].step]} on"
        yield f"throttled: {by}, and the clock fell" if _clock_fell(run) else f"slowed down: {by}"
    use = [Measured(**row) for row in run.metrics().filter(metric="background_cpu_use").to_dicts()]
    if warning(use):
        yield f"background load: other programs kept {use[0].value:.2g} cores busy"
    if run.simulated:
        yield f"the power of a simulated {run.simulated}, not of this machine"


def _clock_fell(run: Run) -> bool:
    """Whether a clock was lower at the end than at the start, by more than a step of its governor."""
    ends = [(run.device.get(end) or {}).get("frequencies_hz") or {} for end in ("at_start", "at_end")]
    pairs = [(ends[0][name], ends[1].get(name)) for name in ends[0] if ends[0][name]]
    return any(after is not None and after < _CLOCK_FELL * before for before, after in pairs)


def _live_peak(run: Run) -> float | None:
    """The most bytes of tensors that were alive at once in the recorded steps, B, of the device that held the most."""
    events = run.memory_events
    if events.is_empty():
        return None
    ordered = events.sort("t_ns", "bytes")  # of the same time, what is freed first
    alive = ordered.select(live=pl.col("bytes").cum_sum().over("device")).to_series().to_numpy()
    return float(alive.max())


def _take(found: Numbers, column: str, rows: pl.DataFrame, factor: float = 1.0) -> None:
    known = rows.drop_nulls("value")
    if not known.is_empty():
        row = known.row(0, named=True)
        bounds = {name: None if row[name] is None else row[name] * factor for name in ("value", "low", "high")}
        found[column] = bounds


def _exactly(found: Numbers, column: str, value: float | None) -> None:
    if value is not None:
        found[column] = {"value": float(value), "low": None, "high": None}
