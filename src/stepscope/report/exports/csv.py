"""CSV: a folder of tables, for spreadsheets and anything else."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from stepscope.report.exports._excerpt import Excerpt, bytes_of_tables, write_tables
from stepscope.units import FORMULA

TITLE = "folder of CSV tables"
SUFFIX = ""


def estimate(excerpt: Excerpt) -> int:
    """Bytes that will be written, roughly."""
    return bytes_of_tables(excerpt, per_op=95, per_sample=85, per_step=150, fixed=30_000)  # measured


def write(excerpt: Excerpt, path: Path) -> None:
    """Write one file a table into the folder, which is made; an empty cell is "not measured"."""
    write_tables(excerpt, path, ".csv", lambda table, file: without_formulas(_flatten_nested(table)).write_csv(file))


def without_formulas(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table in which no text is a formula to a spreadsheet: where one begins as such, a ' goes before it.

    OWASP, CSV Injection.
    """
    texts = [
        name
        for name, dtype in table.schema.items()
        if dtype in (pl.String, pl.Categorical, pl.Enum)
        and table[name].unique().cast(pl.String).str.contains(FORMULA.pattern).any()
    ]
    return table.with_columns(pl.col(name).cast(pl.String).str.replace(FORMULA.pattern, "'$0") for name in texts)


def _flatten_nested(table: pl.DataFrame) -> pl.DataFrame:
    """Nested columns as text: a cell of CSV holds one value."""
    nested = [name for name, dtype in table.schema.items() if dtype.is_nested()]
    as_text = [pl.Series(name, [None if v is None else str(v) for v in table[name].to_list()]) for name in nested]
    return table.with_columns(as_text)
