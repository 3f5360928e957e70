"""The tables of a run folder as frames of polars: their columns, and how rows and parts become such frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepscope.runfolder.parts import Part, null_below_zero
from stepscope.runfolder.schema import (
    MEMORY_COLUMNS,
    MODEL_COLUMNS,
    NO_SAMPLES,
    OPS_COLUMNS,
    STEP_ROW,
    STEPS_COLUMNS,
    TABLES,
    TEXT,
)

_Rows = np.ndarray[Any, np.dtype[Any]]
_PLAIN: dict[str, Any] = {
    "bool": pl.Boolean,
    "int32": pl.Int32,
    "int64": pl.Int64,
    "uint32": pl.UInt32,
    "float64": pl.Float64,
}
STEPS = {name: _PLAIN[kind] for name, kind in STEPS_COLUMNS.items()}
OPS = {name: _PLAIN.get(kind, pl.Categorical) for name, kind in OPS_COLUMNS.items()}
MEMORY = {name: _PLAIN.get(kind, pl.Categorical) for name, kind in MEMORY_COLUMNS.items()}
SOURCES = {  # turn: which of the calls of this op in the step; null is all of them
    "phase": pl.String,
    "module": pl.String,
    "name": pl.String,
    "turn": pl.Int64,
    "source": pl.String,
}
ACCESSES = {"step": pl.Int64, "row": pl.Int64, "storage": pl.Int64, "written": pl.Boolean}  # row: within the step
MODEL = {name: _PLAIN.get(kind, pl.String) for name, kind in MODEL_COLUMNS.items()}


def part_of(frame: pl.DataFrame, table: str) -> Part:
    """Return a frame of op calls or memory events as a part, for `RunWriter.ops` or `RunWriter.memory`."""
    columns: dict[str, np.ndarray[Any, Any]] = {}
    texts: dict[str, list[str]] = {}
    for name, kind in TABLES[table].items():
        column = frame[name]
        if kind == TEXT:
            column = column.cast(pl.String)
            texts[name] = column.drop_nulls().unique(maintain_order=True).to_list()
            numbers = dict(zip(texts[name], range(len(texts[name])), strict=True))
            column = column.replace_strict(numbers, default=None, return_dtype=pl.Int64)
        filled = column.cast(pl.Int64).fill_null(-1) if null_below_zero(table, name) else column.cast(pl.Int64)
        if filled.null_count():
            raise ValueError(f"null in column {name}, which has none in {table}")
        columns[name] = filled.to_numpy()
    return Part(columns, texts)


def frame_of(part: Part, table: str) -> pl.DataFrame:
    """Return a part as a frame with the columns `OPS` or `MEMORY`."""
    columns = []
    for name, kind in TABLES[table].items():
        values = part.columns[name]
        column = pl.Series(name, values)
        if null_below_zero(table, name) and len(values) and values.min() < 0:
            column = column.set(column < 0, None)
        if kind == TEXT:
            taken = pl.Series(name, part.texts[name], dtype=pl.String).cast(pl.Categorical)
            columns.append(taken.gather(column.cast(pl.UInt32)))
        else:
            columns.append(column.cast(_PLAIN[kind]))
    return pl.DataFrame(columns)


def read_last_step_rows(path: Path, most: int) -> tuple[int, pl.DataFrame]:
    """Return how many whole rows there are, and the last of them."""
    with path.open("rb") as file:
        count = file.seek(0, 2) // STEP_ROW.itemsize
        file.seek(max(count - most, 0) * STEP_ROW.itemsize)
        data = file.read(min(count, most) * STEP_ROW.itemsize)
    return count, steps_of(np.frombuffer(data, dtype=STEP_ROW))


def steps_of(rows: np.ndarray[Any, np.dtype[Any]]) -> pl.DataFrame:
    """Rows of steps.rows as a frame with the columns `STEPS`."""
    frame = pl.DataFrame({name: rows[name] for name in STEPS})
    return frame.select(
        "step",
        "t0_ns",
        "t1_ns",
        pl.when(pl.col("samples") != NO_SAMPLES).then("samples"),
        pl.col("loss").fill_nan(None),
        pl.col("recorded").cast(pl.Boolean),
    )


def whole_rows(data: bytes, dtype: np.dtype[Any]) -> _Rows:
    """The complete rows of an appended file; a last row that a crash cut off is dropped."""
    return np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype=dtype)
