"""CSV: a folder of tables, for spreadsheets and anything else."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from stepscope.report.exports._excerpt import Excerpt, raw_tables, small_tables

TITLE = "folder of CSV tables"
SUFFIX = ""

_PER_OP, _PER_SAMPLE, _PER_STEP, _FIXED = 95, 85, 150, 30_000  # bytes, measured


def estimate(excerpt: Excerpt) -> int:
    """Bytes that will be written, roughly."""
    per_step = _PER_STEP * len(excerpt.steps)
    return _FIXED + _PER_OP * excerpt.op_count + _PER_SAMPLE * excerpt.sample_count + per_step


def write(excerpt: Excerpt, path: Path) -> None:
    """Write one file a table into the folder, which is made; an empty cell is "not measured"."""
    path.mkdir(parents=True, exist_ok=True)
    for name, table in {**raw_tables(excerpt), **small_tables(excerpt)}.items():
        _flat(table()).write_csv(path / f"{name}.csv")


def _flat(table: pl.DataFrame) -> pl.DataFrame:
    """Nested columns as text: a cell of CSV holds one value."""
    nested = [name for name, dtype in table.schema.items() if dtype.is_nested()]
    as_text = [pl.Series(name, [None if v is None else str(v) for v in table[name].to_list()]) for name in nested]
    return table.with_columns(as_text)
