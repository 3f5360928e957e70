"""JSON: the summary of a run with the tables that analysis made of it, in one file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from stepscope.analysis.summary import summary
from stepscope.report.exports._excerpt import Excerpt, small_tables

TITLE = "summary and tables in one file; op calls and samples are in csv and parquet"
SUFFIX = ".json"

_PER_CELL = 20  # bytes, measured


def estimate(excerpt: Excerpt) -> int:
    """Bytes that will be written, roughly."""
    cells = sum(table().height * table().width for table in small_tables(excerpt).values())
    return len(_as_text(_facts_of_run(excerpt))) + _PER_CELL * cells


def write(excerpt: Excerpt, path: Path) -> None:
    """Write `run`, `device`, `summary` and `tables`: a table is its columns' names and its rows."""
    frames = {name: table() for name, table in small_tables(excerpt).items()}
    tables = {name: {"columns": frame.columns, "rows": frame.rows()} for name, frame in frames.items()}
    path.write_text(_as_text({**_facts_of_run(excerpt), "tables": tables}) + "\n", encoding="utf-8")


def _facts_of_run(excerpt: Excerpt) -> dict[str, Any]:
    run = excerpt.run
    return {"run": run.meta, "device": run.device, "summary": summary(run)}


def _as_text(content: dict[str, Any]) -> str:
    return json.dumps(_nan_to_none(content), indent=1, allow_nan=False, default=str)


def _nan_to_none(value: Any) -> Any:
    """JSON has no NaN: what is not a number was not measured."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _nan_to_none(inner) for key, inner in value.items()}
    return [_nan_to_none(inner) for inner in value] if isinstance(value, list | tuple) else value
