"""The tables of a run folder as frames of polars: their columns, and how rows and parts become such frames.

Parts of op calls and memory events are checked, and many small ones become one: a long run has thousands of some rows
each, and to open, check and query them one by one takes far longer than to read their rows.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepscope.runfolder import validation
from stepscope.runfolder.parts import Part, from_bytes, null_below_zero
from stepscope.runfolder.schema import (
    FIRST_NS,
    LAST_NS,
    MEMORY_COLUMNS,
    MODEL_COLUMNS,
    NO_SAMPLES,
    OPS_COLUMNS,
    PHASES,
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
            names_of_column = pl.Series(name, part.texts[name], dtype=pl.String).cast(pl.Categorical)
            columns.append(names_of_column.gather(column.cast(pl.UInt32)))
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


JOINED_BYTES = 16_000_000  # of rows in memory, of which small parts become one


@dataclass(frozen=True)
class ReadPart:
    """The rows of a part, not checked yet, and the Parquet that they were read from, if any."""

    frame: pl.DataFrame
    packed: bytes | None = None


def read_packed(data: bytes, table: str) -> ReadPart:
    """Read a packed part; raises where it is no Parquet with the columns of its table."""
    frame = pl.read_parquet(data)
    if dict(frame.schema) != {"ops": OPS, "memory": MEMORY}[table]:
        raise ValueError(f"its columns are not those of {table}")
    return ReadPart(frame, data)


def read_written(data: bytes, table: str) -> ReadPart:
    """Read a part as a run writes it; raises where it is none."""
    return ReadPart(frame_of(from_bytes(data, table), table))


def check_rows(parts: Sequence[ReadPart], table: str) -> pl.LazyFrame:
    """Return the rows of some parts, as small as on disk, from which each query takes its columns.

    Texts are clean. ValueError where a row cannot be: one such row means that no row of its part can be trusted.
    """
    frame = pl.concat([part.frame for part in parts])
    if not frame.select(_plausible_row_expr(table).fill_null(False).all()).item():
        raise ValueError("it holds a row that cannot be")
    texts = [name for name, kind in TABLES[table].items() if kind == TEXT]
    texts_by_column = {name: set(frame[name].unique().drop_nulls().cast(pl.String)) for name in texts}
    if texts_by_column["phase"] - {*PHASES}:
        raise ValueError("it holds a phase that there is not")
    clean = {name: {text: validation.clean_text(text) for text in values} for name, values in texts_by_column.items()}
    others = {name: changed for name, of in clean.items() if (changed := {k: v for k, v in of.items() if k != v})}
    if not others and len(parts) == 1 and parts[0].packed is not None:
        return pl.scan_parquet(parts[0].packed)
    if others:
        replaced = (pl.col(name).cast(pl.String).replace(of).cast(pl.Categorical) for name, of in others.items())
        frame = frame.with_columns(replaced)
    if len(parts) == 1:
        return frame.lazy()
    joined = io.BytesIO()
    frame.write_parquet(joined, compression="lz4")
    return pl.scan_parquet(joined.getvalue())


def _plausible_row_expr(table: str) -> pl.Expr:
    """Return whether a row can be."""
    times = ("t_ns",) if table == "memory" else ("t0_ns", "t1_ns", "self_ns")
    stated = ("tensor", "bytes", "category") if table == "memory" else ("name", "phase", "device", "thread")
    true = pl.all_horizontal(pl.col(times).is_between(FIRST_NS, LAST_NS), pl.col("step", *stated).is_not_null())
    if table == "ops":
        true &= (pl.col("t0_ns") <= pl.col("t1_ns")) & (pl.col("self_ns") >= 0)
        true &= pl.col("parent").is_null() | (pl.col("parent") >= 0)  # a row of the step, maybe in another part
    return true
