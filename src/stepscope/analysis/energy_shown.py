"""Energy of ops and modules as a report shows it: one row a name, phases side by side, and what the rails can tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.analysis.attribution.from_run import BETWEEN, PAUSES
from stepscope.units import duration, number, percent, si

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

METHODS_SAID = {
    "fit": "regression of the readings on the operations",
    "nearest": "the sample nearest in time (the 2019 paper's way): blurs what is shorter than the sensor's period",
    "overlap": "power held between samples: blurs what is shorter than the sensor's period",
    "model": "ESTIMATED by the power model that was given, not measured",
}
VERDICTS = {
    "resolved": "resolved",
    "coarse": "coarse",
    "not identifiable": "not resolved",
    "no interval": "no interval",
}
_WORTH_SAYING = 0.01  # of a rail's energy
_PHASES = ("forward", "backward", "optimizer")


def stamp(run: Run) -> str:
    """What a reader must know of every number: SIMULATED, ESTIMATED, or "" for what was measured here."""
    simulated = "" if run.simulated is None else f"SIMULATED sensors ({run.simulated})"
    return " · ".join(filter(None, (simulated, "ESTIMATED" if run.attribution == "model" else "")))


def main_rail(frame: pl.DataFrame) -> str | None:
    """The rail that stands for the whole device: that of the total, or else the one with most energy."""
    if frame.is_empty():
        return None
    whole = frame.filter(pl.col("component").is_in(["total", "device"]))
    known = (whole if len(whole) else frame).group_by("rail", maintain_order=True)
    spent = known.agg(pl.col("joules_per_step").sum()).sort("joules_per_step", descending=True, nulls_last=True)
    return str(spent["rail"][0])


def module_rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Modules of one rail, most energy first: their J a step by phase beside the sum over phases.

    The interval of a sum is that of its phases added up: it can only be too wide.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in frame.iter_rows(named=True):
        groups.setdefault(row["name"], []).append(row)
    rows = [_summed(name, parts) for name, parts in groups.items()]
    return sorted(rows, key=lambda row: -(row["joules_per_step"] or 0.0))


def _summed(name: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    joules, seconds = _sum(parts, "joules_per_step"), _sum(parts, "seconds_per_step")
    by_phase = {part["phase"]: part["joules_per_step"] for part in parts}
    worst = max(parts, key=lambda part: part["joules_per_step"] or 0.0)
    low, high = _sum(parts, "low"), _sum(parts, "high")
    return {
        "name": name,
        **{phase: by_phase.get(phase) for phase in _PHASES},
        "joules_per_step": joules,
        "low": low,
        "high": high,
        "share": _sum(parts, "share"),
        "watts": joules / seconds if joules is not None and seconds else None,
        "above_idle": _sum(parts, "above_idle"),
        "verdict": _verdict(joules, low, high, worst),
        "reason": worst["reason"],
    }


def _verdict(joules: float | None, low: float | None, high: float | None, worst: dict[str, Any]) -> str:
    """Of the sum: no better than its interval, and than its dearest phase."""
    if joules is None or low is None or high is None or not joules or worst["verdict"] == "not identifiable":
        return str(worst["verdict"])
    half = (high - low) / 2 / joules
    return "resolved" if half <= 0.10 else "coarse" if half <= 0.30 else "not identifiable"


def _sum(parts: list[dict[str, Any]], name: str) -> float | None:
    known = [part[name] for part in parts if part[name] is not None]
    return sum(known) if len(known) == len(parts) else None


def between_sentences(kinds: pl.DataFrame, rail: str) -> list[str]:
    """What of a rail's energy lies between steps: tables of operations hold it, the total of a step does not."""
    own = kinds.filter((pl.col("rail") == rail) & pl.col("joules_per_step").is_not_null())
    outside = float(own.filter(pl.col("name").is_in([BETWEEN, PAUSES]))["joules_per_step"].sum())
    whole = float(own["joules_per_step"].sum())
    if not whole or outside < _WORTH_SAYING * whole:
        return []
    return [f"{rail}: {si(outside, 'J')} of {si(whole, 'J')} a step lie between the steps (evaluation, saving, pauses)"]


def resolution_sentences(resolution: pl.DataFrame) -> list[str]:
    """What each rail can tell apart and what it would take; a lock of sampler and step is said. The total first."""
    order = pl.col("component").is_in(["total", "device"])
    return [
        _sentence(row) + _stuck(row) for row in resolution.sort(order, descending=True, maintain_order=True).to_dicts()
    ]


def _sentence(row: dict[str, Any]) -> str:
    rail = row["rail"]
    if row["resolved_share"] is None:
        return f"{rail}: no energy per operation: {row['note']}"
    if row["note"]:
        locked = "PHASE LOCK: " if row["locked"] else ""
        return f"{rail}: nothing is resolved: {locked}{row['note']}"
    shortest = row["shortest_op_s"]
    reach = f", operations from {duration(shortest * 1e9)}" if shortest is not None else ""
    said = f"{rail}: {percent(row['resolved_share'], 0)} of the energy is resolved within 10 %{reach}"
    return f"{said}; {_more(row)}" if row["resolved_share"] < 0.9 else said


def _stuck(row: dict[str, Any]) -> str:
    stuck_s = row.get("stuck_s")
    return f"; it stood still for {number(stuck_s)} s, which is left out" if stuck_s else ""


def _more(row: dict[str, Any]) -> str:
    steps = row["more_steps"]
    if not steps:
        return "more steps of this kind would not resolve 90 %"
    return f"about {steps:,} more steps would resolve 90 %"


def energy_facts(run: Run) -> dict[str, Any]:
    """Of summary.json: energy by kind, module and phase, J a step, and what each rail can resolve."""
    resolution = run.energy_resolution()
    by = {name: run.energy(by=name).to_dicts() for name in ("kind", "module", "phase", "component")}
    return {
        "method": run.attribution,
        "stamp": stamp(run) or None,
        "resolution": resolution.to_dicts(),
        "sentences": resolution_sentences(resolution),
        **by,
    }
