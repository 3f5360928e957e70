"""Parquet: a folder of tables, for DuckDB, pandas, polars and the like."""

from __future__ import annotations

import io
from pathlib import Path

from stepscope.report.exports._excerpt import Excerpt, raw_tables, small_tables

TITLE = "folder of Parquet tables"
SUFFIX = ""

_PER_OP, _PER_SAMPLE, _PER_STEP, _FIXED = 14, 6, 60, 60_000  # bytes, measured


def estimate(excerpt: Excerpt) -> int:
    """Bytes that will be written, roughly."""
    per_step = _PER_STEP * len(excerpt.steps)
    return _FIXED + _PER_OP * excerpt.op_count + _PER_SAMPLE * excerpt.sample_count + per_step


def write(excerpt: Excerpt, path: Path) -> None:
    """Write one file a table into the folder, which is made."""
    path.mkdir(parents=True, exist_ok=True)
    for name, table in {**raw_tables(excerpt), **small_tables(excerpt)}.items():
        buffer = io.BytesIO()  # a full disk is an OSError from write_bytes, and from polars it is not
        table().write_parquet(buffer, compression="zstd")
        (path / f"{name}.parquet").write_bytes(buffer.getbuffer())
