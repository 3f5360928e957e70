"""Energy as rows of the metrics; an estimate or a simulation has a name of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stepscope.analysis.energy_rows import ESTIMATED, NO_INTERVAL, EnergyTables
from stepscope.analysis.measured import Measured
from stepscope.units import number


def energy_metrics(tables: EnergyTables) -> list[Measured]:
    """Energy, energy a step and a sample, mean and idle power: of each component (total first), then of each rail."""
    rows = [row for entry in tables.totals.iter_rows(named=True) for row in _component(entry)]
    for entry in tables.rails.iter_rows(named=True):
        rows += [_energy(entry, entry["scope"]), _mean_power(entry, entry["scope"])]
    return rows


def _component(row: dict[str, Any]) -> Iterator[Measured]:
    scope, step_j = row["component"], row["joules_per_step"]
    yield _energy(row, scope)
    yield _mean_power(row, scope)
    if step_j is None:
        return
    bounds = row["joules_per_step_low"], row["joules_per_step_high"]
    yield _of(row, "energy_per_step", scope, step_j, "J", *bounds, "mean power times mean length of a step")
    if row["joules_per_sample"] is not None:
        samples = step_j / row["joules_per_sample"] if row["joules_per_sample"] else None
        low, high = (bound / samples if samples and bound is not None else None for bound in bounds)
        yield _of(row, "energy_per_sample", scope, row["joules_per_sample"], "J", low, high, "a training sample")
    if row["idle_watts"] is not None:
        yield _of(row, "idle_power", scope, row["idle_watts"], "W", None, None, "before the first step")


def _energy(row: dict[str, Any], scope: str) -> Measured:
    missed = f"; {number(row['gap_s'])} s not covered" if row["gap_s"] else ""
    note = f"over {number(row['covered_s'])} s{missed}; {row['rail']}"
    return _of(row, "energy", scope, row["joules"], "J", row["low"], row["high"], note)


def _mean_power(row: dict[str, Any], scope: str) -> Measured:
    return _of(row, "mean_power", scope, row["watts_mean"], "W", row["watts_low"], row["watts_high"], row["rail"])


def _of(
    row: dict[str, Any],
    metric: str,
    scope: str,
    value: float | None,
    unit: str,
    low: float | None,
    high: float | None,
    note: str,
) -> Measured:
    name = metric if row["kind"] == "measured" else f"{row['kind']}_{metric}"
    note = f"{note}; {NO_INTERVAL}" if row["kind"] == ESTIMATED else note
    return Measured(name, scope, value, unit, low, high, row["windows"], row["source"], note)
