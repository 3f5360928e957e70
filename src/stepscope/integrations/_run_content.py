"""Content of a run for other tools: figures with names that carry their unit, settings, a series a step, and the page.

What was not measured has no entry: those tools know no null, and a 0 would be a measurement.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.errors import MissingDependency

if TYPE_CHECKING:
    from stepscope.analysis.run import Run


UNITS = {  # unit of the metrics: what the name ends with, and the factor to that
    "ns": ("_seconds", 1e-9),
    "J": ("_joules", 1.0),
    "W": ("_watts", 1.0),
    "B": ("_bytes", 1.0),
    "1/s": ("_per_second", 1.0),
    "cores": ("_cores", 1.0),
    "degC": ("_celsius", 1.0),
    "1": ("", 1.0),
}
_SETTINGS = ("name", "batch_size", "optimizer", "precision", "device", "parameters", "input_shape")


@dataclass(frozen=True)
class LoggedValue:
    """One number of the metrics; name with its unit, scope ("run", "core:0", "total"), bounds of 95 % or None."""

    name: str
    scope: str
    value: float
    low: float | None
    high: float | None


def logged_values(run: Run) -> list[LoggedValue]:
    """The metrics and the cost of measuring that have a value; a second of one name has its source in it, as "_pss"."""
    named: dict[tuple[str, str], dict[str, Any]] = {}
    for row in (*run.metrics().iter_rows(named=True), *run.overhead().iter_rows(named=True)):
        if row["value"] is not None and math.isfinite(row["value"]):
            again = (row["metric"], row["scope"]) in named
            metric = f"{row['metric']}_{plain_name(row['source'])}" if again else row["metric"]
            named[metric, row["scope"]] = {**row, "metric": metric}
    return [_logged_value(row) for row in named.values()]


def flatten_values(figures: list[LoggedValue]) -> dict[str, float]:
    """The figures by one name each, "core_utilisation/core_0", with their bounds as "..._low" and "..._high"."""
    named: dict[str, float] = {}
    for figure in figures:
        key = figure.name if figure.scope == "run" else f"{figure.name}/{plain_name(figure.scope)}"
        named[key] = figure.value
        for bound, value in (("low", figure.low), ("high", figure.high)):
            if value is not None:
                named[f"{key}_{bound}"] = value
    return named


def settings(run: Run) -> dict[str, str]:
    """Return the setting of the run as text; what is not known is absent."""
    workload = run.meta.get("workload") or {}
    stated = {key: workload.get(key) for key in _SETTINGS}
    stated |= {"board": run.board.title, "threads": run.meta.get("threads"), "seed": run.meta.get("seed")}
    stated |= {"simulated": run.simulated, "stepscope": (run.meta.get("versions") or {}).get("stepscope")}
    stated |= {"data": (workload.get("data") or {}).get("kind"), "power_model": run.meta.get("power_model")}
    return {key: str(value) for key, value in stated.items() if value is not None}


def step_series(run: Run) -> Iterator[tuple[int, float, dict[str, float]]]:
    """(step, Unix time of its end in s, its figures) of every step; energy only where the sensor resolves a step."""
    steps, clock = run.steps, run.meta.get("clock") or {}
    offset_ns = int(clock.get("unix_ns", 0)) - int(clock.get("monotonic_ns", 0))
    energy = run.step_energy().filter((pl.col("component") == "total") & pl.col("joules").is_not_null())
    names = {kind: "" if kind == "measured" else f"{kind}_" for kind in energy["kind"].unique().to_list()}
    joules: dict[int, dict[str, float]] = {}
    for row in energy.iter_rows(named=True):
        joules.setdefault(row["step"], {})[f"{names[row['kind']]}step_energy_joules"] = row["joules"]
    for row in steps.iter_rows(named=True):
        length_s = (row["t1_ns"] - row["t0_ns"]) / 1e9
        step_values: dict[str, Any] = {"step_seconds": length_s, "loss": row["loss"]}
        if row["samples"] is not None and length_s > 0:
            step_values["samples_per_second"] = row["samples"] / length_s
        finite_values = {key: value for key, value in step_values.items() if value is not None and math.isfinite(value)}
        yield row["step"], (row["t1_ns"] + offset_ns) / 1e9, finite_values | joules.get(row["step"], {})


def start_unix_s(run: Run) -> float | None:
    """Wall time at which the run began; None where it does not say."""
    unix_ns = (run.meta.get("clock") or {}).get("unix_ns")
    return None if unix_ns is None else unix_ns / 1e9


def plain_name(text: str) -> str:
    """A name that every tool takes: letters, digits and underscores."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_")


def _logged_value(row: dict[str, Any]) -> LoggedValue:
    ending, factor = UNITS.get(row["unit"], (f"_{plain_name(row['unit'])}", 1.0))
    low, high = (None if row[key] is None else row[key] * factor for key in ("low", "high"))
    return LoggedValue(f"{row['metric']}{ending}", row["scope"], row["value"] * factor, low, high)


def write_page(run: Run, folder: Path) -> Path | None:
    """report.html, written into a folder; None where the libraries that draw it are not installed."""
    from stepscope.report import html

    try:
        return html.write(run, folder / "report.html")
    except MissingDependency:
        return None
