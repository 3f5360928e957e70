"""What each op makes of the CPU, the GPU and the memory controller, by the machinery that gives it its energy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.attribution.attribute import Attribution, Options, attribute
from stepscope.analysis.attribution.calibrate import Calibration
from stepscope.analysis.attribution.from_run import RunTimeline, RunTimelines
from stepscope.analysis.attribution.known import Known
from stepscope.analysis.attribution.parts import parts
from stepscope.analysis.attribution.readings import Readings, from_counter, from_gauge
from stepscope.analysis.attribution.sensor_model import SensorModel
from stepscope.analysis.attribution.verdicts import judge
from stepscope.analysis.energy_by import BY, groups
from stepscope.analysis.intervals import Floats
from stepscope.analysis.kept_calibrations import keep_calibrations, kept_calibrations
from stepscope.analysis.steady import recorded_steps
from stepscope.analysis.windows import Series, series_of
from stepscope.errors import UnknownName
from stepscope.runfolder import RunReader

SCHEMA = {
    "quantity": pl.String,
    "scope": pl.String,
    "unit": pl.String,
    "name": pl.String,
    "module": pl.String,
    "phase": pl.String,
    "mean": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "share": pl.Float64,
    "seconds_per_step": pl.Float64,
    "verdict": pl.String,
    "reason": pl.String,
}
_GAUGES = {"utilisation": "1", "memory_utilisation": "1"}
_EXACT = Calibration(SensorModel(0.0, None), 0.0, 0.0, 0.0)
_PROMPT = Known(_EXACT, None, _EXACT)
_EXPLAINED_BY = {"gpu": "gpu", "emc": "memory", "memory": "memory"}  # component whose ops explain a scope


@dataclass(frozen=True)
class UseOfOps:
    """One channel and what explains it: the fit's joules are core-seconds or busy seconds, its watts cores or shares.

    fit: None where too little was read; `reason` then says so.
    """

    quantity: str
    scope: str
    unit: str
    ops: RunTimeline
    fit: Attribution | None
    reason: str


def use_of_ops(run: RunReader, timelines: RunTimelines | None = None) -> list[UseOfOps]:
    """Each channel of utilisation, fitted to the ops of the steady steps."""
    if recorded_steps(run).is_empty():
        return []
    of = timelines or RunTimelines(run)
    kept, known, found = kept_calibrations(run), dict[str, Known](), []
    for quantity, unit, component, series in _channels(run):
        ops = of.of(component)
        if ops is None:
            continue
        place = f"{quantity} of {series.scope}"
        readings, options = _readings(series, unit, of.origin_ns)
        # The kernel books a process's time when it is asked: that counter is neither late nor filtered.
        told = _PROMPT if unit == "cores" else kept.get(place)
        fit = attribute(ops.timeline, readings, replace(options, known=told))
        reason = "" if fit is not None else f"{readings.count} readings are too few, or all the same: train more steps"
        found.append(UseOfOps(quantity, series.scope, unit, ops, fit, reason))
        if fit is not None and told is not _PROMPT:
            known[place] = fit.known
    if known.keys() - kept.keys():
        keep_calibrations(run, {**kept, **known})
    return found


def _channels(run: RunReader) -> Iterator[tuple[str, str, str, Series]]:
    """Quantity, unit of its rate, component whose ops explain it, and what was read."""
    sampled = {channel.get("quantity") for channel in run.channels}
    for series in series_of(run, "process_cpu_time") if "process_cpu_time" in sampled else ():
        if series.scope == "process":
            yield "cpu", "cores", "cpu", series
    for quantity, unit in _GAUGES.items():
        if quantity not in sampled:
            continue
        for series in series_of(run, quantity):
            beside = "memory" if quantity == "memory_utilisation" else series.scope.partition(":")[0]
            yield quantity, unit, _EXPLAINED_BY.get(beside, "total"), series


def _readings(series: Series, unit: str, origin_ns: int) -> tuple[Readings, Options]:
    """A counter of busy time as core-seconds; a share as it is."""
    t = (series.t_ns - origin_ns) / 1e9
    refresh = series.refresh_ns / 1e9 or None
    if unit == "cores":
        gaps: Floats = (series.gaps_ns - origin_ns) / 1e9
        return from_counter(t, t, series.values / 1e9, gaps, refresh), Options(refresh=refresh)
    return from_gauge(t, t, series.values, refresh), Options(refresh=refresh)


def utilisation_by(uses: list[UseOfOps], by: str = "kind") -> pl.DataFrame:
    """Mean use while each kind, op, module or phase runs: cores, or a share of 1; intervals of 90 %. As `SCHEMA`."""
    known_way(by)
    rows = [row for use in uses for row in _rows(use, BY[by])]
    return pl.DataFrame(rows, schema=SCHEMA)


def known_way(by: str) -> None:
    """UnknownName for what is no way to divide utilisation."""
    if by not in BY:
        raise UnknownName("way to divide utilisation", by, tuple(BY))


def _rows(use: UseOfOps, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    shared = {"quantity": use.quantity, "scope": use.scope, "unit": use.unit}
    empty = dict.fromkeys(SCHEMA) | shared
    if use.fit is None:
        return [empty | {"name": "(whole)", "verdict": "not identifiable", "reason": use.reason}]
    names, gather = groups(use.ops, columns)
    whole = parts(use.fit, gather)
    judged = judge(use.fit, whole, [" ".join(str(part) for part in name.values() if part) for name in names])
    total, steps = use.fit.total.joules, use.ops.timeline.steps
    rows = []
    for index in np.argsort(-whole.joules, kind="stable").tolist():
        spent, seconds, half = (float(part[index]) for part in (whole.joules, whole.seconds, whole.half_width))
        ends = {"mean": spent, "low": max(spent - half, 0.0), "high": spent + half}
        rows.append(
            empty
            | names[index]
            | {name: value / seconds if seconds > 0 else None for name, value in ends.items()}
            | {"share": spent / total if total > 0 else None, "seconds_per_step": seconds / steps}
            | {"verdict": judged.verdict[index], "reason": judged.reason[index] or None}
        )
    return rows
