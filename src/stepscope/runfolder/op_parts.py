"""Parts of op calls and memory events as frames: each is checked, and many small ones become one.

A long run has thousands of parts of some rows each; to open, check and query them one by one takes far longer than to
read their rows.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from stepscope.runfolder import validation
from stepscope.runfolder.parts import from_bytes
from stepscope.runfolder.schema import FIRST_NS, LAST_NS, PHASES, TABLES, TEXT
from stepscope.runfolder.tables import MEMORY, OPS, frame_of

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
    known = {name: set(frame[name].unique().drop_nulls().cast(pl.String)) for name in texts}
    if known["phase"] - {*PHASES}:
        raise ValueError("it holds a phase that there is not")
    clean = {name: {text: validation.clean_text(text) for text in values} for name, values in known.items()}
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
