"""Samples of long runs: a view of the whole at a coarser grain, and exact rows of a span, in bounded memory.

A coarser row stands for several: gauges hold their mean, counters what they showed at the time of the row, which is
that of the reading in the middle. Exact rows stay where the highest and the lowest reading of a gauge lie and where
something was not read; a silence is a row in which nothing was read.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepscope.runfolder import checksums
from stepscope.runfolder.schema import sample_dtype

MOST_ROWS = 262_144  # of a sensor that are read as they are: 44 minutes at 10 ms
LEAST_BYTES = 100_000  # of a file that may hold more
_AT_A_TIME = 262_144
_SILENT, _SILENT_NS = 20.0, 500_000_000  # typical distances; a longer silence than both is a gap
_MOST_EXACT = 0.1  # of the blocks: what fails more often is no gap, but how this sensor answers
_HALF = 0.5  # of a block that was read, from which its mean stands for it
Chunk = Callable[[int, int], pl.DataFrame]  # first row, number of rows


@dataclass
class LongFile:
    """A file of many rows. `begins`: time of the first row of each chunk, ns, known once it was read as a whole."""

    path: Path
    rows: int
    read: Chunk
    counters: frozenset[str]
    begins: list[int] = field(default_factory=list)

    @classmethod
    def opened(cls, path: Path, size: int, channels: Sequence[dict[str, Any]], checksum: Any) -> LongFile | None:
        """Open a file of samples; None where it has few. ValueError or OSError where it is damaged.

        size: bytes that count; channels: of the sensor, in order; checksum: as noted of a packed file.
        """
        columns = [str(channel["id"]) for channel in channels]
        if size < LEAST_BYTES:
            return None
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError(f"'{path}' is no plain file")
        rows, read = _packed(path, columns) if path.suffix == ".parquet" else _appended(path, columns, size)
        if rows <= MOST_ROWS:
            return None
        if path.suffix == ".parquet" and checksum is not None and checksums.of(path) != checksum:
            raise ValueError("its content is not what was written")
        return cls(path, rows, read, frozenset(str(row["id"]) for row in channels if row.get("kind") == "counter"))

    def with_rows(self, chosen: Callable[[pl.DataFrame], pl.DataFrame]) -> LongFile:
        """The same file, of which a function chooses the rows."""
        return replace(self, read=lambda first, count: chosen(self.read(first, count)))

    def coarser(self) -> pl.DataFrame:
        """Return about MOST_ROWS rows that stand for all of them."""
        grain = Grain(-(-self.rows // MOST_ROWS), self.counters)
        parts, self.begins = [], []
        for chunk in self._chunks():
            self.begins.append(int(chunk["t0_ns"].min() or 0))  # type: ignore[arg-type]
            parts.append(grain.coarser(chunk))
        return pl.concat(parts)

    def between(self, t0_ns: int, t1_ns: int) -> pl.DataFrame:
        """Return the exact rows that touch a span of time."""
        within = (pl.col("t1_ns") >= t0_ns) & (pl.col("t0_ns") <= t1_ns)
        after = [*self.begins[1:], None] if self.begins else [None] * -(-self.rows // _AT_A_TIME)
        begins: list[int | None] = [*self.begins] or [None] * len(after)
        near = [
            number
            for number, (begin, end) in enumerate(zip(begins, after, strict=True))
            if (begin is None or begin <= t1_ns) and (end is None or end >= t0_ns)
        ]
        parts = [self.read(number * _AT_A_TIME, _AT_A_TIME).filter(within) for number in near]
        return pl.concat(parts) if parts else self.read(0, 0)

    def _chunks(self) -> Iterator[pl.DataFrame]:
        for first in range(0, self.rows, _AT_A_TIME):
            yield self.read(first, min(_AT_A_TIME, self.rows - first))


class Grain:
    """Makes rows coarser, a chunk after another: so many become one."""

    def __init__(self, size: int, counters: frozenset[str]) -> None:
        self._size, self._counters = size, counters
        self._lowest: dict[str, float] = {}
        self._highest: dict[str, float] = {}
        self._last_ns: int | None = None

    def coarser(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of a chunk, sorted by time, as fewer; what is left over at its end stays exact."""
        frame = frame.sort("t0_ns", maintain_order=True)
        frame = self._with_silences(frame)
        names = [name for name in frame.columns if name not in ("t0_ns", "t1_ns")]
        blocks = len(frame) // self._size
        if blocks < 1 or self._size < 2:
            return frame
        whole, rest = frame.head(blocks * self._size), frame.slice(blocks * self._size)
        values = {name: whole[name].to_numpy().reshape(blocks, self._size) for name in names}
        known = {name: (~np.isnan(rows)).sum(axis=1) for name, rows in values.items()}
        mixed = np.any([(count > 0) & (count < self._size) for count in known.values()] or [np.zeros(blocks)], axis=0)
        if mixed.mean() > _MOST_EXACT:
            mixed = np.zeros(blocks, dtype=bool)
        exact = mixed | self._extreme_blocks(values, blocks)
        middle = np.arange(blocks) * self._size + self._size // 2
        columns: dict[str, Any] = {name: whole[name].to_numpy()[middle[~exact]] for name in ("t0_ns", "t1_ns")}
        for name, rows in values.items():
            columns[name] = self._value(name, rows[~exact], known[name][~exact])
        kept = whole.filter(pl.Series(np.repeat(exact, self._size)))
        means = pl.DataFrame(columns, schema=frame.schema, nan_to_null=True)
        return pl.concat([means, kept, rest]).sort("t0_ns", maintain_order=True)

    def _value(self, name: str, rows: np.ndarray[Any, Any], known: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if name in self._counters:
            return np.asarray(rows[:, self._size // 2])
        mean = np.nansum(rows, axis=1) / np.maximum(known, 1)
        return np.where(known >= max(_HALF * self._size, 1), mean, np.nan)

    def _extreme_blocks(self, values: dict[str, np.ndarray[Any, Any]], blocks: int) -> np.ndarray[Any, Any]:
        """Blocks (B,) that hold a gauge's highest or lowest reading so far."""
        found = np.zeros(blocks, dtype=bool)
        for name, rows in values.items():
            if name in self._counters or np.isnan(rows).all():
                continue
            highest, lowest = np.nanmax(rows), np.nanmin(rows)
            if highest > self._highest.get(name, -np.inf):
                self._highest[name] = highest
                found[int(np.nanargmax(rows)) // self._size] = True
            if lowest < self._lowest.get(name, np.inf):
                self._lowest[name] = lowest
                found[int(np.nanargmin(rows)) // self._size] = True
        return found

    def _with_silences(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The rows, and one in which nothing was read in the midst of each silence."""
        if frame.is_empty():
            return frame
        begin, end = frame["t0_ns"].to_numpy(), frame["t1_ns"].to_numpy()
        before = np.append(begin[0] if self._last_ns is None else self._last_ns, end[:-1])
        self._last_ns = int(end[-1])
        apart = begin - before
        silent = apart > max(_SILENT * float(np.median(apart)), _SILENT_NS)
        if not silent.any():
            return frame
        at = ((begin + before) // 2)[silent]
        nothing = pl.DataFrame({"t0_ns": at, "t1_ns": at})
        return pl.concat([frame, nothing], how="diagonal").sort("t0_ns", maintain_order=True)


def _packed(path: Path, columns: list[str]) -> tuple[int, Chunk]:
    """Return the number of rows of a Parquet file, and what reads some of them."""

    def read(first: int, count: int) -> pl.DataFrame:
        return checked_samples(columns, pl.scan_parquet(path, low_memory=True).slice(first, count).collect())

    return int(pl.scan_parquet(path).select(pl.len()).collect().item()), read


def _appended(path: Path, columns: list[str], most: int) -> tuple[int, Chunk]:
    """Return the same of a file of rows, of which `most` bytes are read."""
    dtype = sample_dtype(columns)
    rows = most // dtype.itemsize

    def read(first: int, count: int) -> pl.DataFrame:
        count = min(count, rows - first)
        with path.open("rb") as file:
            file.seek(first * dtype.itemsize)
            data = file.read(count * dtype.itemsize)
        return described_samples(columns, np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype))

    return rows, read


_LARGEST_VALUE = 1e18  # of a sampled quantity in its unit, counters in ns and bytes among them
_Rows = np.ndarray[Any, np.dtype[Any]]


def checked_samples(columns: list[str], frame: pl.DataFrame) -> pl.DataFrame:
    """The columns that a channel describes; what is no number of the physical world is null."""
    described = [name for name in columns if frame.schema.get(name) == pl.Float64]
    if [frame.schema.get(name) for name in ("t0_ns", "t1_ns")] != [pl.Int64, pl.Int64]:
        raise ValueError("it has no times")
    seen = [pl.when(pl.col(name).abs() <= _LARGEST_VALUE).then(name) for name in described]
    return frame.select("t0_ns", "t1_ns", *seen)


def described_samples(columns: list[str], rows: _Rows) -> pl.DataFrame:
    if not columns:
        raise ValueError("no channel describes these rows")
    return samples_of(rows, columns)


def samples_of(rows: np.ndarray[Any, np.dtype[Any]], columns: list[str]) -> pl.DataFrame:
    """Rows of a sensor as a frame: t0_ns, t1_ns and one column a channel, null where nothing was read."""
    frame = pl.DataFrame({name: rows[name] for name in ("t0_ns", "t1_ns", *columns)})
    return frame.with_columns(pl.col(columns).fill_nan(None)) if columns else frame
