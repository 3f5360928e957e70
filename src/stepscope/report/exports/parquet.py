"""Parquet: a folder of tables, for DuckDB, pandas, polars and the like."""

from __future__ import annotations

import io
from pathlib import Path

import polars as pl

from stepscope.report.exports._excerpt import Excerpt, bytes_of_tables, write_tables

TITLE = "folder of Parquet tables"
SUFFIX = ""


def estimate(excerpt: Excerpt) -> int:
    """Bytes that will be written, roughly."""
    return bytes_of_tables(excerpt, per_op=14, per_sample=6, per_step=60, fixed=60_000)  # measured


def write(excerpt: Excerpt, path: Path) -> None:
    """Write one file a table into the folder, which is made."""
    write_tables(excerpt, path, ".parquet", _write_table)


def _write_table(table: pl.DataFrame, file: Path) -> None:
    buffer = io.BytesIO()  # a full disk is an OSError from write_bytes, and from polars it is not
    table.write_parquet(buffer, compression="zstd")
    file.write_bytes(buffer.getbuffer())
