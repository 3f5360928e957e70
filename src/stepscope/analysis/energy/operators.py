"""Energy and utilisation by module, operator, phase or component, with intervals and verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from scipy import sparse  # type: ignore[import-untyped]

from stepscope.analysis.channels import Series, core_busy_time, series_of
from stepscope.analysis.energy import rail_fits
from stepscope.analysis.energy.attribution import Attribution, FitOptions, attribute_energy
from stepscope.analysis.energy.calibration import Calibration
from stepscope.analysis.energy.calibration_store import SensorCalibration, store_calibrations, stored_calibrations
from stepscope.analysis.energy.fit_inputs import RunTimeline, RunTimelines
from stepscope.analysis.energy.rail_fits import GroupEnergies, RailFit, group_energies, identifiability
from stepscope.analysis.energy.readings import Readings, from_counter, from_gauge
from stepscope.analysis.energy.sensor_model import SensorModel
from stepscope.analysis.process_scopes import WATCHED, writer_scope
from stepscope.analysis.result_cache import ResultCache
from stepscope.analysis.time.steps import profiled_steps, steps_after_warmup
from stepscope.arrays import Floats
from stepscope.errors import UnknownName
from stepscope.quantities import CHANNELS, SCOPE
from stepscope.runfolder import RunReader

BY = {"module": ("module", "phase"), "op": ("name", "module", "phase"), "kind": ("name",), "phase": ("phase",)}
METHODS = ("fit", "overlap", "nearest", "model")
WHOLE = "component"
MEASURED = "(whole)"
ENDS = ("low", "high")
ENERGY_SCHEMA: dict[str, Any] = {
    **dict.fromkeys(("component", "rail", "name", "module", "phase"), pl.String),
    "joules_per_step": pl.Float64,
    "joules_per_sample": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "share": pl.Float64,
    "watts": pl.Float64,
    "seconds_per_step": pl.Float64,
    "above_idle": pl.Float64,
    "verdict": pl.String,
    "reason": pl.String,
    "method": pl.String,
    **dict.fromkeys(("during_per_step", "during_low", "during_high"), pl.Float64),
}
RESOLUTION_SCHEMA = {
    "component": pl.String,
    "rail": pl.String,
    "steps": pl.Int64,
    "readings": pl.Int64,
    "shortest_op_s": pl.Float64,
    "resolved_share": pl.Float64,
    "more_steps": pl.Int64,
    "expected_error": pl.Float64,
    "unsampled_s": pl.Float64,
    "locked": pl.Boolean,
    "lag_s": pl.Float64,
    "width_s": pl.Float64,
    "rc_s": pl.Float64,
    "smear_s": pl.Float64,
    "closure_gap": pl.Float64,
    "stuck_s": pl.Float64,
    "note": pl.String,
}


def energy_by(
    rails: Sequence[RailFit], by: str = "module", method: str = "fit", samples: float | None = None
) -> pl.DataFrame:
    """Energy per step, J, largest first within a rail; 95 % CIs. Columns as `SCHEMA`.

    samples: mean of a step, for `joules_per_sample`; null where they were not counted.

    Rows of a rail and its rows for time between ops and steps add up to its measured total (`by="component"`).
    `above_idle` is what is left of `joules_per_step` without the idle power, null where idle was not seen.
    """
    check_grouping(by, method)
    chosen = [rail for rail in rails if rail.line.estimated == (method == "model")]
    frames = [_rail_rows(rail, by, method) for rail in chosen]
    whole = pl.concat(frames) if frames else pl.DataFrame(schema=ENERGY_SCHEMA)
    return whole.with_columns(joules_per_sample=pl.col("joules_per_step") / samples) if samples else whole


def check_grouping(by: str, method: str) -> None:
    """UnknownName for what is no way to divide energy or no method."""
    if by not in (*BY, WHOLE):
        raise UnknownName("way to divide energy", by, (*BY, WHOLE))
    if method not in METHODS:
        raise UnknownName("attribution method", method, METHODS)


def resolution_table(rails: Sequence[RailFit]) -> pl.DataFrame:
    """Return the resolution of each rail, the sensor model that was fitted, and how many more steps would do."""
    rows = [_resolution_row(rail) for rail in rails if not rail.line.estimated]
    return pl.DataFrame(rows, schema=RESOLUTION_SCHEMA) if rows else pl.DataFrame(schema=RESOLUTION_SCHEMA)


def _rail_rows(rail: RailFit, by: str, method: str) -> pl.DataFrame:
    not_divided = by != WHOLE and rail.ops.reason_not_divided
    if not_divided or len(rail.readings.watts) < 1 or (rail.fit is None and method == "fit" and by != WHOLE):
        return _rail_frame(rail, method, [_unknown_row(rail, not_divided or rail.reason)])
    if by == WHOLE:
        return _rail_frame(rail, method, [_measured_total_row(rail, method)])
    names, gather = group_keys(rail.ops, BY[by])
    if method == "fit" and rail.fit is not None:
        return _fitted_rows(rail, names, gather)
    if method == "nearest":
        joules = gather @ rail_fits.energy_by_nearest_reading(rail.ops.timeline, rail.readings)
    else:
        joules = gather @ rail_fits.energy_by_overlap(rail.ops.timeline, rail.readings, rail.lag)
    return _rail_frame(rail, method, _rows_without_interval(rail, names, joules, gather, float(joules.sum())))


def group_keys(ops: RunTimeline, columns: tuple[str, ...]) -> tuple[list[dict[str, Any]], Any]:
    """Names of the groups, and the share of each key that belongs to each (G, P): by time within the key."""
    table = ops.ops
    # The time between ops and between steps has no module and no phase: its own name stands for it everywhere.
    own = pl.when(pl.col("phase").is_null()).then("name").alias("_apart")
    numbers = table.select(pl.struct(*columns, own).rank("dense")).to_series().to_numpy().astype(np.int64) - 1
    first = np.unique(numbers, return_index=True)[1]
    rows = table[first.tolist()]
    named = [_group_name(row, columns) for row in rows.iter_rows(named=True)]
    key, seconds = table["key"].to_numpy(), ops.seconds
    whole = np.bincount(key, seconds, ops.timeline.keys.count)
    share = np.where(whole[key] > 0, seconds / np.maximum(whole[key], 1e-300), 0.0)
    shape = (len(named), ops.timeline.keys.count)
    return named, sparse.csr_matrix((share, (numbers, key)), shape=shape)


def _group_name(row: dict[str, Any], columns: tuple[str, ...]) -> dict[str, Any]:
    apart = row["phase"] is None
    first = row["name"] if apart or columns[0] == "name" else row[columns[0]]
    identity = {name: row[name] if name in columns and not apart else None for name in ("module", "phase")}
    return {"name": first, **identity}


def _fitted_rows(rail: RailFit, names: list[dict[str, Any]], gather: Any) -> pl.DataFrame:
    fit = rail.fit
    assert fit is not None, "only fitted rails come here"
    whole = group_energies(fit, gather)
    labels = [" ".join(str(value) for value in name.values() if value) for name in names]
    judged = rail_fits.part_verdicts(fit, whole, labels)
    steps, against = rail.ops.timeline.steps, rail_fits.reason_unresolvable(fit)
    rows = _rows_without_interval(rail, names, whole.joules, gather, fit.total.joules, fit.time_factor)
    for index, row in enumerate(rows):
        half = float(whole.half_width[index]) / steps
        row |= {"during_per_step": float(whole.meanwhile[index]) / steps}
        if not against:  # a number that is disowned has no interval
            row |= {"low": max(row["joules_per_step"] - half, 0.0), "high": row["joules_per_step"] + half}
            row |= {
                f"during_{end}": float(during[index]) / steps for end, during in zip(ENDS, whole.during, strict=True)
            }
        row |= {"verdict": judged.verdict[index], "reason": judged.reason[index] or None}
    return _rail_frame(rail, "fit", [*rows, *_unattributed_row(rail, whole)])


def _unattributed_row(rail: RailFit, whole: GroupEnergies) -> list[dict[str, Any]]:
    """Yield the unattributed part of the measured total, where there is any."""
    assert rail.fit is not None, "only fitted rails come here"
    unattributed = rail.fit.total.joules - float(whole.joules.sum())
    if abs(unattributed) < 1e-9 * rail.fit.total.joules:
        return []
    steps = rail.ops.timeline.steps
    return [
        {
            "name": "(residual)",
            "joules_per_step": unattributed / steps,
            "share": unattributed / rail.fit.total.joules,
            "verdict": "not identifiable",
            "reason": "measured, but in none of the parts",
        }
    ]


def _rows_without_interval(
    rail: RailFit, names: list[dict[str, Any]], joules: Floats, gather: Any, total: float, time_factor: float = 1.0
) -> list[dict[str, Any]]:
    """Rows without an interval; time and energy of a step. What runs beside other work has no idle power of its own."""
    timeline, idle = rail.ops.timeline, rail.idle_w
    seconds = timeline.seconds * time_factor
    steps, first = timeline.steps, gather @ (seconds * ~timeline.keys.beside)
    return [
        {
            **name,
            "joules_per_step": energy / steps,
            "share": energy / total if total > 0 else None,
            "watts": energy / time if time > 0 else None,
            "seconds_per_step": time / steps,
            "above_idle": None if idle is None else (energy - idle * alone) / steps,
            "verdict": "no interval",
            "reason": "this method cannot say how wrong it is",
        }
        for name, energy, time, alone in zip(names, joules, gather @ seconds, first, strict=True)
    ]


def _measured_total_row(rail: RailFit, method: str) -> dict[str, Any]:
    """The rail's measured total."""
    timeline, fit = rail.ops.timeline, rail.fit if method == "fit" else None
    factor = 1.0 if fit is None else fit.time_factor
    span = (timeline.end - timeline.begin) * factor
    watts = float(np.average(rail.readings.watts, weights=rail.readings.weight))
    if method == "fit" and rail.measured is not None and rail.measured.watts is not None:
        watts = rail.measured.watts
    joules = watts * span if fit is None else fit.total.joules
    own = ~timeline.keys.beside[None, :]
    row = _rows_without_interval(rail, [{"name": MEASURED}], np.array([joules]), own, joules, factor)[0]
    if method != "fit":
        return row
    if unknown := rail.reason_total_unknown:
        return row | {"verdict": "not identifiable", "reason": unknown}
    low, high = rail.total_ends(joules, span)
    verdict, reason = rail_fits.total_verdict(joules, max(joules - low, high - joules))
    steps = timeline.steps
    return row | {"low": low / steps, "high": high / steps, "verdict": verdict, "reason": reason or None}


def _unknown_row(rail: RailFit, reason: str | None) -> dict[str, Any]:
    return {"name": MEASURED, "verdict": "not identifiable", "reason": reason}


def _rail_frame(rail: RailFit, method: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    shared = {"component": rail.line.component, "rail": rail.line.name, "method": method}
    frame = pl.DataFrame([{**dict.fromkeys(ENERGY_SCHEMA), **row, **shared} for row in rows], schema=ENERGY_SCHEMA)
    return frame.sort("joules_per_step", descending=True, nulls_last=True)


def _resolution_row(rail: RailFit) -> dict[str, Any]:
    shared = {
        "component": rail.line.component,
        "rail": rail.line.name,
        "steps": rail.ops.timeline.steps,
        "readings": rail.readings.count,
        "stuck_s": rail.stuck_s,
    }
    if rail.fit is None:
        return {**dict.fromkeys(RESOLUTION_SCHEMA), **shared, "note": rail.reason}
    _, gather = group_keys(rail.ops, BY["kind"])
    resolution = identifiability(rail.fit, group_energies(rail.fit, gather))
    model, phase = rail.fit.calibration.model, rail.fit.phase
    return {
        **shared,
        "shortest_op_s": resolution.shortest_op,
        "resolved_share": resolution.share,
        "more_steps": None if rail.of_stretch and resolution.more_steps else resolution.more_steps,
        "expected_error": resolution.expected_error,
        "unsampled_s": phase.unsampled,
        "locked": phase.locked,
        "lag_s": model.lag,
        "width_s": model.width,
        "rc_s": model.rc,
        "smear_s": model.smear,
        "closure_gap": rail.fit.gap_before,
        "note": resolution.trouble or "; ".join(rail.fit.misfit.failed) or None,
    }


UTILISATION_SCHEMA = {
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
_EXACT = Calibration(SensorModel(0.0, None), 0.0, 0.0, 0.0)
_PROMPT = SensorCalibration(_EXACT, None, _EXACT)
_EXPLAINED_BY = {"gpu": "gpu", "emc": "memory", "memory": "memory"}  # component whose ops explain a scope


@dataclass(frozen=True)
class UtilisationFit:
    """One channel and what explains it: the fit's joules are core-seconds or busy seconds, its watts cores or shares.

    fit: None where too little was read; `reason` then says so.
    """

    quantity: str
    scope: str
    unit: str
    ops: RunTimeline
    fit: Attribution | None
    reason: str
    most: float  # all cores of the machine, a share of 1; of a rate, without end


def fit_utilisation(
    run: RunReader, timelines: RunTimelines | None = None, results: ResultCache | None = None
) -> list[UtilisationFit]:
    """Each channel of utilisation, fitted to the ops of the steps after warm-up."""
    if profiled_steps(run).is_empty() or steps_after_warmup(run).is_empty():
        return []
    of = timelines or RunTimelines(run)
    results = results or ResultCache(run)
    stored, calibrations = stored_calibrations(results, "calibration-utilisation"), dict[str, SensorCalibration]()
    fits = []
    for quantity, unit, component, series in _utilisation_channels(of.run):
        ops = of.for_component(component)
        if ops is None:
            continue
        place, (readings, options) = f"{quantity} of {series.scope}", _utilisation_readings(series, unit, of.origin_ns)
        # The kernel books a process's time when it is asked: that counter is neither late nor filtered.
        sensor = _PROMPT if unit == "cores" else stored.get(place)
        options = replace(options, known=sensor)
        fit = None if ops.reason_not_divided else attribute_energy(ops.timeline, readings, options)
        few = f"{readings.count} readings are too few, or all the same: train more steps"
        reason = "" if fit is not None else ops.reason_not_divided or few
        bounds = {"cores": float(len(core_busy_time(run)) or np.inf), "1": 1.0}
        fits.append(UtilisationFit(quantity, series.scope, unit, ops, fit, reason, bounds.get(unit, np.inf)))
        if fit is not None and sensor is not _PROMPT:
            calibrations[place] = fit.known
    if calibrations.keys() - stored.keys():
        store_calibrations(results, "calibration-utilisation", {**stored, **calibrations})
    return fits


def _utilisation_channels(run: RunReader) -> Iterator[tuple[str, str, str, Series]]:
    """Quantity, unit of its rate, component whose ops explain it, and what was read."""
    sampled = {channel.get("quantity") for channel in run.channels}
    own = writer_scope(run)
    for series in series_of(run, "process_cpu_time") if "process_cpu_time" in sampled else ():
        if series.scope == own:
            yield "cpu", "cores", "cpu", replace(series, scope=WATCHED)
    for quantity in CHANNELS:
        if quantity.explained_by and quantity.name in sampled:
            for series in series_of(run, quantity.name):
                beside = series.scope.partition(":")[0] if quantity.explained_by == SCOPE else quantity.explained_by
                yield quantity.name, quantity.unit, _EXPLAINED_BY.get(beside, "total"), series


def _utilisation_readings(series: Series, unit: str, origin_ns: int) -> tuple[Readings, FitOptions]:
    """A counter of busy time as core-seconds; a share as it is."""
    t = (series.t_ns - origin_ns) / 1e9
    refresh = series.refresh_ns / 1e9 or None
    if unit == "cores":
        gaps: Floats = (series.gaps_ns - origin_ns) / 1e9
        return from_counter(t, t, series.values / 1e9, gaps, refresh), FitOptions(refresh=refresh)
    return from_gauge(t, t, series.values, refresh), FitOptions(refresh=refresh)


def utilisation_by(uses: list[UtilisationFit], by: str = "kind") -> pl.DataFrame:
    """Mean use while each kind, op, module or phase runs: cores, or a share of 1; 95 % CIs. As `SCHEMA`."""
    check_utilisation_grouping(by)
    rows = [row for use in uses for row in _utilisation_rows(use, BY[by])]
    return pl.DataFrame(rows, schema=UTILISATION_SCHEMA)


def check_utilisation_grouping(by: str) -> None:
    """UnknownName for what is no way to divide utilisation."""
    if by not in BY:
        raise UnknownName("way to divide utilisation", by, tuple(BY))


def _utilisation_rows(use: UtilisationFit, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    shared = {"quantity": use.quantity, "scope": use.scope, "unit": use.unit}
    empty = dict.fromkeys(UTILISATION_SCHEMA) | shared
    if use.fit is None:
        return [empty | {"name": "(whole)", "verdict": "not identifiable", "reason": use.reason}]
    names, gather = group_keys(use.ops, columns)
    whole = group_energies(use.fit, gather)
    labels = [" ".join(str(part) for part in name.values() if part) for name in names]
    judged = rail_fits.part_verdicts(use.fit, whole, labels)
    total, steps, against = use.fit.total.joules, use.ops.timeline.steps, rail_fits.reason_unresolvable(use.fit)
    rows = []
    for index in np.argsort(-whole.joules, kind="stable").tolist():
        spent, seconds, half = (float(part[index]) for part in (whole.joules, whole.seconds, whole.half_width))
        ends: dict[str, float | None] = {"mean": spent, "low": max(spent - half, 0.0), "high": spent + half}
        verdict, reason = judged.verdict[index], judged.reason[index] or None
        impossible = against or _reason_uninformative(spent - half, spent + half, use.most * seconds)
        if impossible:
            ends, verdict, reason = {"mean": spent, "low": None, "high": None}, "not identifiable", impossible
        rates = {end: value and min(value / seconds, use.most) if seconds > 0 else None for end, value in ends.items()}
        rows.append(
            empty
            | names[index]
            | rates
            | {"share": spent / total if total > 0 else None, "seconds_per_step": seconds / steps}
            | {"verdict": verdict, "reason": reason}
        )
    return rows


def _reason_uninformative(low: float, high: float, most: float) -> str:
    """Why a CI says nothing of a use that lies between 0 and `most`; empty where it does."""
    if low >= most > 0:
        return "its CI lies above all that there is"
    return "its CI holds everything from none to all" if low <= 0 and high >= most else ""
