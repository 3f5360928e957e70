"""One measured number with its unit, interval and source: a row of the metrics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import polars as pl

SCHEMA = {
    "metric": pl.String,
    "scope": pl.String,
    "value": pl.Float64,
    "unit": pl.String,
    "low": pl.Float64,
    "high": pl.Float64,
    "n": pl.Int64,
    "source": pl.String,
    "note": pl.String,
}


@dataclass(frozen=True)
class Measured:
    """A number, SI unit, 95 % interval, count of what it was taken from; null is not measured and `note` says why."""

    metric: str
    scope: str
    value: float | None
    unit: str
    low: float | None = None
    high: float | None = None
    n: int = 0
    source: str | None = None
    note: str | None = None


def frame_of(rows: Iterable[Measured]) -> pl.DataFrame:
    """The rows as a tidy frame."""
    return pl.DataFrame([asdict(row) for row in rows], schema=SCHEMA)
