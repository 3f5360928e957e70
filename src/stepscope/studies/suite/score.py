"""One number for a device: how many times as fast as a reference device it trains, on average over the suite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.errors import UnknownName
from stepscope.studies.suite.results import Results, read, table

DEVICES = Path(__file__).parent / "reference_devices"
_KEY = ("workload", "batch", "optimizer", "precision")
_PARTS = {
    **dict.fromkeys(_KEY, pl.String), "batch": pl.Int64, "reference": pl.Float64, "here": pl.Float64,
    "ratio": pl.Float64, "low": pl.Float64, "high": pl.Float64, "why_not": pl.String,
}  # fmt: skip


@dataclass(frozen=True)
class Score:
    """Geometric mean of reference / here over the parts that both measured; above 1 is better than the reference.

    `low` and `high` carry the intervals of both devices. `parts` has every part of the reference, with the reason
    where it does not count; a score over other parts is not to be compared with this one.
    """

    column: str
    reference: str
    value: float | None
    low: float | None
    high: float | None
    parts: pl.DataFrame

    @property
    def counted(self) -> int:
        """Parts that count."""
        return int(self.parts["ratio"].is_not_null().sum())


def reference_names() -> list[str]:
    """The stored devices."""
    return sorted(path.stem for path in DEVICES.glob("*.json"))


def reference(name: str) -> Results:
    """A stored device, or a result file of the user's own."""
    if Path(name).exists():
        return read(Path(name))
    if name not in reference_names():
        raise UnknownName("reference device", name, reference_names())
    return read(DEVICES / f"{name}.json")


def score(here: Results, against: Results, column: str = "step_time_ms") -> Score:
    """J. E. Smith, Characterizing computer performance with a single number, CACM 31, 1988, says what it can mean;
    the geometric mean does not depend on which device is the reference."""
    ours, theirs = _best(here, column), _best(against, column)
    rows = [_part(key, theirs[key], ours.get(key), here, against, column) for key in sorted(theirs)]
    parts = pl.DataFrame(rows, schema=_PARTS)
    ratios = parts.drop_nulls("ratio")
    if ratios.is_empty():
        return Score(column, against.name, None, None, None, parts)
    value = math.exp(float(ratios["ratio"].log().mean()))  # type: ignore[arg-type]
    half = _half_width(ratios)
    low, high = (None, None) if half is None else (value * math.exp(-half), value * math.exp(half))
    return Score(column, against.name, value, low, high, parts)


def _best(results: Results, column: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The best of the settings that differ in threads and device alone."""
    frame = table(results).sort(column, nulls_last=True, maintain_order=True)
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in frame.iter_rows(named=True):
        found.setdefault(tuple(row[name] for name in _KEY), row)
    return found


def _part(
    key: tuple[Any, ...],
    theirs: Mapping[str, Any],
    ours: Mapping[str, Any] | None,
    here: Results,
    against: Results,
    column: str,
) -> dict[str, Any]:
    part: dict[str, Any] = {**dict(zip(_KEY, key, strict=True)), "reference": theirs[column]}
    name = key[0]
    if theirs[column] is None:
        return {**part, "why_not": f"the reference: {theirs['status']}"}
    if ours is None:
        return {**part, "why_not": "not in this sweep"}
    if ours[column] is None:
        return {**part, "why_not": ours["status"] if ours["status"] != "ok" else "not measured"}
    if _model(here, name) != _model(against, name):
        return {**part, "here": ours[column], "why_not": "the workload is defined differently"}
    return {**part, "here": ours[column], **_ratio(theirs, ours, column)}


def _ratio(theirs: Mapping[str, Any], ours: Mapping[str, Any], column: str) -> dict[str, float | None]:
    ratio = theirs[column] / ours[column]
    spreads = [_log_half(row, column) for row in (theirs, ours)]
    if None in spreads:
        return {"ratio": ratio, "low": None, "high": None}
    half = math.hypot(*(spread for spread in spreads if spread is not None))
    return {"ratio": ratio, "low": ratio * math.exp(-half), "high": ratio * math.exp(half)}


def _log_half(row: Mapping[str, Any], column: str) -> float | None:
    """Half of the interval on a logarithmic scale; an end at or below 0 counts as a tenth of the value."""
    low, high, value = row[f"{column}_low"], row[f"{column}_high"], row[column]
    return None if low is None or high is None else math.log(high / max(low, value / 10)) / 2


def _half_width(ratios: pl.DataFrame) -> float | None:
    if ratios["low"].null_count() > 0:
        return None
    halves = ratios.select((pl.col("high") / pl.col("low")).log() / 2).to_series()
    return math.sqrt(float((halves**2).sum())) / len(halves)


def _model(results: Results, workload: str) -> object:
    """What the times of two devices must have in common."""
    definition = results.workloads.get(workload, {}).get("definition", {})
    return {key: definition.get(key) for key in ("model_sha256", "input_shape", "parameters")}
