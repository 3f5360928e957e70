"""What the instrument costs: recorded against unrecorded steps of the same run, and the sampler's own CPU time.

Compared are the few steps on either side of each change between the two, so that a machine that grows slower (heat)
does not pass for overhead; changes in both directions count alike, which cancels what drift is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.analysis.intervals import Floats, known, mean_interval
from stepscope.analysis.measured import Measured, frame_of
from stepscope.analysis.steady import span_ns, steady_steps
from stepscope.analysis.windows import resolved_ns, series_of, windows
from stepscope.runfolder import RunReader
from stepscope.units import plural

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

_NEAR = 5  # steps on either side of a change
_MOST_CHANGES = 400
_RESAMPLES = 1000
_FEW_STEPS = 3  # on each side of all changes together


def overhead(run: Run) -> pl.DataFrame:
    """Cost of recording a step (ns, and as a share of an unrecorded one), of recording over the whole run, of sampling.

    Columns as `metrics`; where there is nothing to compare with, value is null and `note` says why.
    """
    return frame_of([*_recording(run), *_sampling(run)])


@dataclass(frozen=True)
class _Change:
    """Step times, ns, on either side of a change between recorded and unrecorded steps."""

    recorded: Floats
    bare: Floats
    begins: bool  # recording starts here; else it ends


def _recording(run: RunReader) -> list[Measured]:
    steps = steady_steps(run)
    changes = _changes(steps)
    reason = _why_not(steps, changes)
    if reason:
        return [Measured(name, "run", None, unit, note=reason) for name, unit in _RECORDING_UNITS]
    cost, base = _cost(changes), float(np.median(np.concatenate([change.bare for change in changes])))
    count = min(sum(len(change.recorded) for change in changes), len(steps.filter("recorded")))
    note = f"{len(changes)} changes between recorded and unrecorded steps"
    if len({change.begins for change in changes}) == 1:
        note += ", all in one direction: drift of the step time is not cancelled"
    step = Measured("recorded_step_overhead", "run", cost[0], "ns", cost[1], cost[2], count, "steps", note)
    share = Measured("recorded_step_overhead_share", "run", *_over(base, step, "1"), count, "steps", note)
    return [step, share, _whole_run(run, step)]


_RECORDING_UNITS = (
    ("recorded_step_overhead", "ns"),
    ("recorded_step_overhead_share", "1"),
    ("run_overhead_share", "1"),
)


def _over(base_ns: float, step: Measured, unit: str) -> tuple[float | None, str, float | None, float | None]:
    value, low, high = (None if x is None else x / base_ns for x in (step.value, step.low, step.high))
    return value, unit, low, high


def _whole_run(run: RunReader, step: Measured) -> Measured:
    """Recorded steps times their cost, and the pauses to write them, as a share of the run without both."""
    steps = run.steps
    recorded = int(steps["recorded"].sum())
    paused_ns = float((run.meta.get("overhead") or {}).get("paused_ns") or 0)
    spent_ns = float(steps["t1_ns"][-1] - steps["t0_ns"][0])

    def share(cost_ns: float | None) -> float | None:
        total = None if cost_ns is None else recorded * cost_ns + paused_ns
        return None if total is None else total / max(spent_ns - total, 1)

    note = f"{recorded} recorded of {plural(len(steps), 'step')}, and {paused_ns / 1e6:.3g} ms to write them"
    values = share(step.value), "1", share(step.low), share(step.high)
    return Measured("run_overhead_share", "run", *values, len(steps), "steps", note)


def _why_not(steps: pl.DataFrame, changes: list[_Change]) -> str | None:
    if steps.is_empty():
        return "no steps after the warm-up"
    if steps["recorded"].all():
        return "every step was recorded: nothing to compare with"
    if not steps["recorded"].any():
        return "no step was recorded"
    few = min(sum(len(change.recorded) for change in changes), sum(len(change.bare) for change in changes))
    return f"only {plural(few, 'step')} to compare with" if few < _FEW_STEPS else None


def _changes(steps: pl.DataFrame) -> list[_Change]:
    """Every change of `recorded` with the steps next to it that lie in the same stretch."""
    lengths, recorded = steps["length_ns"].to_numpy().astype(np.float64), steps["recorded"].to_numpy()
    edges = np.flatnonzero(recorded[1:] != recorded[:-1]) + 1
    bounds = [0, *edges.tolist(), len(lengths)]
    chosen = np.arange(len(edges))
    if len(edges) > _MOST_CHANGES:
        chosen = np.unique(np.linspace(0, len(edges) - 1, _MOST_CHANGES).astype(np.int64))
    found = []
    for place in chosen.tolist():
        first, edge, last = bounds[place], bounds[place + 1], bounds[place + 2]
        begins = bool(recorded[edge])
        # The first step after a window ran on cold caches, whichever sort it is: it belongs to the pause.
        settled = edge if begins else min(edge + 1, last - 1)
        before, after = lengths[max(first, edge - _NEAR) : edge], lengths[settled : min(last, settled + _NEAR)]
        found.append(_Change(after, before, True) if begins else _Change(before, after, False))
    return found


def _cost(changes: list[_Change]) -> tuple[float, float | None, float | None]:
    """Mean difference of the medians, ns, with a bootstrap interval over the changes and over the steps of each."""
    random = np.random.default_rng(0)
    draws = [_drawn(change.recorded, random) - _drawn(change.bare, random) for change in changes]
    exact = [float(np.median(change.recorded) - np.median(change.bare)) for change in changes]
    value, resampled = 0.0, np.zeros(_RESAMPLES)
    directions = sorted({change.begins for change in changes})
    for begins in directions:
        mine = [index for index, change in enumerate(changes) if change.begins == begins]
        picks = random.integers(0, len(mine), (_RESAMPLES, len(mine)))
        drawn = np.column_stack([draws[index] for index in mine])
        value += float(np.mean([exact[index] for index in mine])) / len(directions)
        resampled += np.take_along_axis(drawn, picks, axis=1).mean(axis=1) / len(directions)
    low, high = np.quantile(resampled, (0.025, 0.975))
    return value, float(low), float(high)


def _drawn(values: Floats, random: np.random.Generator) -> Floats:
    """Medians of resamples of a few steps, (resamples,)."""
    picks = random.integers(0, len(values), (_RESAMPLES, len(values)))
    medians: np.ndarray[Any, np.dtype[np.float64]] = np.median(values[picks], axis=1)
    return medians


def _sampling(run: RunReader) -> list[Measured]:
    """CPU time of the sampling process, as a share of one core."""
    span = span_ns(run)
    found = list(series_of(run, "sampler_cpu_time"))
    if span is None or not found:
        return [Measured("sampler_cpu_share", "sampler", None, "1", note="the sampler's own time was not recorded")]
    parts = windows(found[0], *span, max(resolved_ns(found[0]), (span[1] - span[0]) / 200))
    value, low, high = (known(x) for x in mean_interval(parts.rates))
    note = "of one core" if value is not None else "the run is too short to tell what the sampler takes"
    return [Measured("sampler_cpu_share", "sampler", value, "1", low, high, len(parts.rates), found[0].source, note)]
