"""A log of sensors without a training: what plain arithmetic on its readings gives, a row a channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analysis.channels import Series
from stepscope.analysis.energy.power_sources import integrate_power, power_sources
from stepscope.analysis.periodicity import period_of
from stepscope.analysis.results import ResultTable, Value
from stepscope.arrays import Floats
from stepscope.units import duration, number

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

CPU = "CPU, mean of its cores"
_QUANTITIES = ("power", "utilisation", "memory_used", "temperature", "frequency", "core_frequency")
_SHORTEST = 16  # readings in which a period is looked for
_NEARLY_ALL = 0.99  # of the time
_LONGEST = 262_144  # of a longer log the middle
NOTE = (
    "Means are of the readings. Energy is the trapezoid over the readings, at the middle of the time that each is of; "
    "two readings with a missing one between them count for no energy, nor does a silence of 20 readings and half a "
    "second, nor what no rail can draw; of a rail with a counter it is what that grew by. Idle is the share of "
    "readings that are 0."
)


def is_sensor_log(run: Run) -> bool:
    """Return whether a run is the import of a log that holds readings and no step, and was one before any damage."""
    imported = bool(run.meta.get("imported")) and not (run.meta.get("recorder") or {}).get("steps_from")
    return imported and run.steps.is_empty() and bool(run.channels)


def log_table(run: Run) -> ResultTable | None:
    """Return mean, least, most, energy, idle ratio and period of each channel; None of a run that is no sensor log."""
    if not is_sensor_log(run):
        return None
    units = {str(channel["quantity"]): str(channel["unit"]) for channel in run.channels}
    order = [name for name in _QUANTITIES if name in units] + [name for name in units if name not in _QUANTITIES]
    rows: list[tuple[Value, ...]] = []
    means = {name for name in run.coarser_sensors if len(run.sensor(name)) == len(run.sensor_between(name))}
    coarse = {str(channel["quantity"]) for channel in run.channels if str(channel["sensor"]) in means}
    counted = {part.scope: float(part.growth.known_growth[-1]) for part in power_sources(run) if part.kind == "counter"}
    for quantity in order:
        frame = run.samples(quantity, exact=True)
        of_scope = [(str(scope), part) for (scope,), part in frame.group_by(["scope"], maintain_order=True)]
        of_quantity = [_log_row(quantity, scope, units[quantity], part) for scope, part in of_scope]
        cores = frame.filter(pl.col("scope").str.starts_with("core:"))
        if quantity == "utilisation" and cores["scope"].n_unique() > 1:
            mean = cores.group_by("t0_ns", "t1_ns", maintain_order=True).agg(pl.col("value").mean())
            of_quantity.append(_log_row(quantity, CPU, units[quantity], mean))
        if quantity == "power":
            of_quantity = [(*row[:7], counted.get(str(row[1]), row[7]), *row[8:]) for row in of_quantity]
        # of means that stand for readings of a very long log, neither their zeros nor their times tell
        rows += [(*row[:-2], None, None) for row in of_quantity] if quantity in coarse else of_quantity
    columns = ("quantity", "of", "unit", "readings", "mean", "least", "most", "energy J", "idle", "period s")
    return ResultTable("sensor-log", "What the log holds", columns, tuple(rows), NOTE)


def log_sentence(run: Run) -> str:
    """Return the headline of a sensor log: its length, power and energy of the total, else of its first rail."""
    table = log_table(run)
    assert table is not None
    spans = [run.sensor(name).select("t0_ns", "t1_ns") for name in {str(channel["sensor"]) for channel in run.channels}]
    times = pl.concat(spans)
    if times.is_empty():
        return "A log of sensors without a training, of which no reading can be read."
    seconds = (int(times["t1_ns"].max()) - int(times["t0_ns"].min())) / 1e9  # type: ignore[arg-type]  # not empty
    text = f"A log of sensors, {duration(1e9 * seconds)}, without a training: no step, operator or layer is in it."
    power = [row for row in table.rows if row[0] == "power"]
    total = {line.name for line in run.rails.total or ()}
    chosen = [row for row in power if str(row[1]).removeprefix("rail:") in total] or power[:1]
    name = " + ".join(str(row[1]).removeprefix("rail:") for row in chosen)
    if chosen and any(row[4] is None for row in chosen):
        return f"{text} {name}: no reading can be true."
    if chosen:
        energy = ""
        if all(row[7] is not None for row in chosen):
            energy = (
                f", {number(sum(float(row[7] or 0) for row in chosen))} J {_time_of_energy(run, str(chosen[0][1]))}"
            )
        text += f" {name}: {number(sum(float(row[4] or 0) for row in chosen))} W on average{energy}."
    return text


def _time_of_energy(run: Run, scope: str) -> str:
    """Return of what time the energy of a rail is: that between neighbours of which one is missing is not in it."""
    readings = run.samples("power", exact=True).filter(scope=scope).sort("t0_ns")
    middle = (readings["t0_ns"] + readings["t1_ns"]).to_numpy() / 2
    growth = integrate_power(middle, readings["value"].cast(pl.Float64).fill_null(float("nan")).to_numpy())
    covered, whole = float(growth.covered_ns[-1]) if len(growth.t_ns) else 0.0, float(middle[-1] - middle[0])
    if covered >= _NEARLY_ALL * whole:
        return "from the first reading to the last"
    return f"in {duration(covered)} of the {duration(whole)}: in the rest readings are missing"


def _log_row(quantity: str, scope: str, unit: str, readings: pl.DataFrame) -> tuple[Value, ...]:
    ordered = readings.sort("t0_ns")
    values = ordered["value"].cast(pl.Float64).fill_null(float("nan")).to_numpy()
    middle = (ordered["t0_ns"] + ordered["t1_ns"]).to_numpy() / 2
    read = np.isfinite(values)
    numbers = values[read]
    if not len(numbers):
        return (quantity, scope, unit, 0, None, None, None, None, None, None)
    if quantity == "energy":  # a counter: of its values no mean tells anything
        return (quantity, scope, unit, len(numbers), None, None, None, None, None, None)
    energy = _trapezoid(middle, values) if quantity == "power" else None
    idle = float((numbers == 0).mean()) if quantity == "utilisation" else None
    shape = float(numbers.mean()), float(numbers.min()), float(numbers.max())
    return (quantity, scope, unit, len(numbers), *shape, energy, idle, _period_s(middle[read], numbers))


def _trapezoid(t_ns: Floats, watts: Floats) -> float | None:
    """Energy, J, between neighbours that were both read; None of less than two."""
    growth = integrate_power(t_ns, watts)
    return float(growth.known_growth[-1]) if not growth.gap.all() else None


def _period_s(t_ns: Floats, values: Floats) -> float | None:
    """The period by autocorrelation, up to half the length of the log (of a long one: its middle), s; None of none."""
    first = max(len(values) - _LONGEST, 0) // 2
    t_ns, values = t_ns[first : first + _LONGEST], values[first : first + _LONGEST]
    if len(values) < _SHORTEST or values.min() == values.max():
        return None
    span = float(t_ns[-1] - t_ns[0])
    series = Series("log", "", 0, t_ns, values, np.empty((0, 2)))
    period, _ = period_of(series, float(t_ns[0]), float(t_ns[-1]), max(span / 16, 2 * series.period_ns))
    return None if period is None else period / 1e9
