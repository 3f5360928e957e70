"""Energy per step by module, op, kind, phase or component, with intervals and verdicts: `run.energy(...)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from scipy import sparse  # type: ignore[import-untyped]

from stepscope.analysis.attributed import AttributedRail
from stepscope.analysis.attribution.from_run import RunTimeline
from stepscope.analysis.attribution.parts import Parts, Z, parts
from stepscope.analysis.attribution.verdicts import RESOLVED, identifiability, judge
from stepscope.analysis.intervals import Floats
from stepscope.errors import UnknownName

BY = {"module": ("module", "phase"), "op": ("name", "module", "phase"), "kind": ("name",), "phase": ("phase",)}
METHODS = ("fit", "overlap", "nearest", "model")
WHOLE = "component"
MEASURED = "(whole)"
SCHEMA = {
    "component": pl.String,
    "rail": pl.String,
    "name": pl.String,
    "module": pl.String,
    "phase": pl.String,
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
}
RESOLUTION = {
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
    rails: Sequence[AttributedRail], by: str = "module", method: str = "fit", samples: float | None = None
) -> pl.DataFrame:
    """Energy per step, J, largest first within a rail; intervals of 90 %. Columns as `SCHEMA`.

    samples: mean of a step, for `joules_per_sample`; null where they were not counted.

    Rows of a rail and its rows for time between ops and steps add up to its measured total (`by="component"`).
    `above_idle` is what is left of `joules_per_step` without the idle power, null where idle was not seen.
    """
    refused(by, method)
    chosen = [rail for rail in rails if rail.line.estimated == (method == "model")]
    frames = [_rows(rail, by, method) for rail in chosen]
    whole = pl.concat(frames) if frames else pl.DataFrame(schema=SCHEMA)
    return whole.with_columns(joules_per_sample=pl.col("joules_per_step") / samples) if samples else whole


def refused(by: str, method: str) -> None:
    """UnknownName for what is no way to divide energy or no method."""
    if by not in (*BY, WHOLE):
        raise UnknownName("way to divide energy", by, (*BY, WHOLE))
    if method not in METHODS:
        raise UnknownName("attribution method", method, METHODS)


def resolution(rails: Sequence[AttributedRail]) -> pl.DataFrame:
    """What each rail can resolve, how its sensor was found to see, and how many more steps would do."""
    rows = [_resolution(rail) for rail in rails if not rail.line.estimated]
    return pl.DataFrame(rows, schema=RESOLUTION) if rows else pl.DataFrame(schema=RESOLUTION)


def _rows(rail: AttributedRail, by: str, method: str) -> pl.DataFrame:
    if len(rail.readings.watts) < 1 or (rail.fit is None and method == "fit"):
        return _frame(rail, method, [_unknown(rail)])
    if by == WHOLE:
        return _frame(rail, method, [_whole(rail, method)])
    names, gather = groups(rail.ops, BY[by])
    if method == "fit" and rail.fit is not None:
        return _fitted(rail, names, gather)
    keys = rail.by_nearest() if method == "nearest" else rail.by_overlap()
    joules = gather @ keys
    return _frame(rail, method, _plain(rail, names, joules, gather @ rail.ops.timeline.seconds, float(joules.sum())))


def groups(ops: RunTimeline, columns: tuple[str, ...]) -> tuple[list[dict[str, Any]], Any]:
    """Names of the groups, and the share of each key that belongs to each (G, P): by time within the key."""
    table = ops.ops
    # The time between ops and between steps has no module and no phase: its own name stands for it everywhere.
    own = pl.when(pl.col("phase").is_null()).then("name").alias("_apart")
    numbers = table.select(pl.struct(*columns, own).rank("dense")).to_series().to_numpy().astype(np.int64) - 1
    first = np.unique(numbers, return_index=True)[1]
    rows = table[first.tolist()]
    named = [_named(row, columns) for row in rows.iter_rows(named=True)]
    key, seconds = table["key"].to_numpy(), ops.seconds
    whole = np.bincount(key, seconds, ops.timeline.keys.count)
    share = np.where(whole[key] > 0, seconds / np.maximum(whole[key], 1e-300), 0.0)
    shape = (len(named), ops.timeline.keys.count)
    return named, sparse.csr_matrix((share, (numbers, key)), shape=shape)


def _named(row: dict[str, Any], columns: tuple[str, ...]) -> dict[str, Any]:
    apart = row["phase"] is None
    first = row["name"] if apart or columns[0] == "name" else row[columns[0]]
    kept = {name: row[name] if name in columns and not apart else None for name in ("module", "phase")}
    return {"name": first, **kept}


def _fitted(rail: AttributedRail, names: list[dict[str, Any]], gather: Any) -> pl.DataFrame:
    fit = rail.fit
    assert fit is not None, "only fitted rails come here"
    whole = parts(fit, gather)
    judged = judge(fit, whole, [" ".join(str(value) for value in name.values() if value) for name in names])
    steps = rail.ops.timeline.steps
    rows = _plain(rail, names, whole.joules, whole.seconds, fit.total.joules)
    for index, row in enumerate(rows):
        half = float(whole.half_width[index]) / steps
        row |= {"low": max(row["joules_per_step"] - half, 0.0), "high": row["joules_per_step"] + half}
        row |= {"verdict": judged.verdict[index], "reason": judged.reason[index] or None}
    return _frame(rail, "fit", [*rows, *_residual(rail, whole)])


def _residual(rail: AttributedRail, whole: Parts) -> list[dict[str, Any]]:
    """What the parts leave of the measured total, where that is anything."""
    assert rail.fit is not None, "only fitted rails come here"
    left = rail.fit.total.joules - float(whole.joules.sum())
    if abs(left) < 1e-9 * rail.fit.total.joules:
        return []
    steps = rail.ops.timeline.steps
    return [
        {
            "name": "(residual)",
            "joules_per_step": left / steps,
            "share": left / rail.fit.total.joules,
            "verdict": "not identifiable",
            "reason": "measured, but in none of the parts",
        }
    ]


def _plain(
    rail: AttributedRail, names: list[dict[str, Any]], joules: Floats, seconds: Floats, total: float
) -> list[dict[str, Any]]:
    """Rows without an interval; time and energy of a step."""
    steps = rail.ops.timeline.steps
    idle = rail.idle_w
    return [
        {
            **name,
            "joules_per_step": energy / steps,
            "share": energy / total if total > 0 else None,
            "watts": energy / time if time > 0 else None,
            "seconds_per_step": time / steps,
            "above_idle": None if idle is None else (energy - idle * time) / steps,
            "verdict": "no interval",
            "reason": "this method cannot say how wrong it is",
        }
        for name, energy, time in zip(names, joules.tolist(), seconds.tolist(), strict=True)
    ]


def _whole(rail: AttributedRail, method: str) -> dict[str, Any]:
    """The rail's measured total."""
    timeline = rail.ops.timeline
    span = timeline.end - timeline.begin
    if rail.fit is not None and method == "fit":
        hidden = rail.fit.floor * span
        joules, half = rail.fit.total.joules, Z * float(np.hypot(rail.fit.total.sd, hidden))
    else:
        joules, half = float(np.average(rail.readings.watts, weights=rail.readings.weight)) * span, None
    row = _plain(rail, [{"name": MEASURED}], np.array([joules]), np.array([span]), joules)[0]
    if half is None:
        return row
    low, high = ((joules + side * half) / timeline.steps for side in (-1, 1))
    return {
        **row,
        "low": low,
        "high": high,
        "verdict": "resolved" if half <= RESOLVED * joules else "coarse",
        "reason": None,
    }


def _unknown(rail: AttributedRail) -> dict[str, Any]:
    return {"name": MEASURED, "verdict": "not identifiable", "reason": rail.reason}


def _frame(rail: AttributedRail, method: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    shared = {"component": rail.line.component, "rail": rail.line.name, "method": method}
    frame = pl.DataFrame([{**dict.fromkeys(SCHEMA), **row, **shared} for row in rows], schema=SCHEMA)
    return frame.sort("joules_per_step", descending=True, nulls_last=True)


def _resolution(rail: AttributedRail) -> dict[str, Any]:
    shared = {
        "component": rail.line.component,
        "rail": rail.line.name,
        "steps": rail.ops.timeline.steps,
        "readings": rail.readings.count,
        "stuck_s": rail.stuck_s,
    }
    if rail.fit is None:
        return {**dict.fromkeys(RESOLUTION), **shared, "note": rail.reason}
    _, gather = groups(rail.ops, BY["kind"])
    known = identifiability(rail.fit, parts(rail.fit, gather))
    model, phase = rail.fit.calibration.model, rail.fit.phase
    return {
        **shared,
        "shortest_op_s": known.shortest_op,
        "resolved_share": known.share,
        "more_steps": known.more_steps,
        "expected_error": known.expected_error,
        "unsampled_s": phase.unsampled,
        "locked": phase.locked,
        "lag_s": model.lag,
        "width_s": model.width,
        "rc_s": model.rc,
        "smear_s": model.smear,
        "closure_gap": rail.fit.gap_before,
        "note": known.trouble or None,
    }
