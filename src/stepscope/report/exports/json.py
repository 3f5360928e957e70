"""JSON: the summary of a run with the tables that analysis made of it, in one file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.analysis.summary import summary
from stepscope.report.exports._excerpt import Excerpt, small_tables

TITLE = "summary and tables in one file; op calls and samples are in csv and parquet"
SUFFIX = ".json"

_PER_STEP, _PER_MODULE, _FIXED = 230, 420, 30_000  # bytes, measured


def estimate(excerpt: Excerpt) -> int:
    """Bytes that will be written, roughly."""
    return _FIXED + _PER_STEP * len(excerpt.steps) + _PER_MODULE * len(excerpt.run.model)


def write(excerpt: Excerpt, path: Path) -> None:
    """Write `run`, `device`, `summary` and `tables`: a table is its columns' names and its rows."""
    run = excerpt.run
    tables = {name: _table_as_json(table()) for name, table in small_tables(excerpt).items()}
    content = {"run": run.meta, "device": run.device, "summary": summary(run), "tables": tables}
    text = json.dumps(_nan_to_none(content), indent=1, allow_nan=False, default=str)
    path.write_text(text + "\n", encoding="utf-8")


def _table_as_json(table: pl.DataFrame) -> dict[str, Any]:
    return {"columns": table.columns, "rows": table.rows()}


def _nan_to_none(value: Any) -> Any:
    """JSON has no NaN: what is not a number was not measured."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _nan_to_none(inner) for key, inner in value.items()}
    return [_nan_to_none(inner) for inner in value] if isinstance(value, list | tuple) else value
