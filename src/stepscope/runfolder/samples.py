"""Samples of long runs: a view of the whole at a coarser grain, and exact rows of a span, in bounded memory.

A coarser row stands for several: gauges hold their mean, counters what they showed at the time of the row, which is
that of the reading in the middle. Exact rows stay where the highest and the lowest reading of a gauge lie and where
something was not read; a silence is a row in which nothing was read.

Where parts were thinned, the whole is as coarse as most of them, so that each row stands for as much time.
"""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepscope.part_names import PartName
from stepscope.runfolder import checksums
from stepscope.runfolder.schema import sample_dtype
from stepscope.runfolder.tables import whole_rows
from stepscope.runfolder.thinning import (
    COUNT,
    HIGH,
    LAST,
    LEAST_READ,
    LOW,
    MOST_MISSING,
    silences,
    thin_sensor_rows,
    thinned_columns,
)

MOST_ROWS = 262_144  # of a sensor that are read as they are: 44 minutes at 10 ms
MOST_EXACT = 8_388_608  # of a span that are given as they were read: a day at 10 ms
EVER = (0, 2**63 - 1)  # ns
LEAST_BYTES = 100_000  # of a file that may hold more
_AT_A_TIME = 262_144
_NOISE = 1e-9  # of a value: what rounding makes of it
_NOT_A_FEW = 0.1  # of a long run: from so much thinned time on, the whole is as coarse
Chunk = Callable[[int, int], pl.DataFrame]  # first row, number of rows
Chosen = Callable[[pl.DataFrame], pl.DataFrame]


class Unreadable(Exception):
    """A file of samples could not be read: it is damaged, or not there any more."""

    def __init__(self, part: PartName) -> None:
        super().__init__(part.name)
        self.part = part


@contextlib.contextmanager
def _as_unreadable(part: PartName) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise Unreadable(part) from error


@dataclass
class SampleFile:
    """A file of samples. `begins`: time of the first row of each chunk, ns, known once it was read as a whole."""

    part: PartName
    path: Path
    rows: int
    read: Chunk
    columns: list[str]
    stands_for: int = 0  # rows as they were read
    begins: list[int] = field(default_factory=list)

    @classmethod
    def from_part(
        cls,
        run: Path,
        part: PartName,
        most: int | None,
        columns: list[str],
        counters: frozenset[str],
        chosen: Chosen,
    ) -> SampleFile:
        """Open a file of samples; raises Unreadable.

        most: bytes of rows that count; columns: of the sensor, in order; chosen: the rows that can be true.
        """
        path = run / part.name
        with _as_unreadable(part):
            state = path.stat()
            if not stat.S_ISREG(state.st_mode):
                raise OSError(f"'{path}' is not a regular file")
            size = state.st_size if most is None else most
            if part.grain:
                rows, stands_for, read = _open_thinned_file(path, columns, counters)
            else:
                rows, read = (
                    _open_packed_file(path, columns) if part.packed else _open_appended_file(path, columns, size)
                )
                stands_for = rows
        if part.packed and most is not None:
            rows = min(rows, most // sample_dtype(columns).itemsize)

        def read_chosen(first: int, count: int) -> pl.DataFrame:
            with _as_unreadable(part):
                return chosen(read(first, min(count, rows - first)))

        return cls(part, path, rows, read_chosen, ["t0_ns", "t1_ns", *columns], stands_for)

    def check(self, checksum: Any) -> None:
        """Compare a packed file with what was noted of it; raises Unreadable."""
        with _as_unreadable(self.part):
            if self.part.packed and checksum is not None and checksums.file_checksum(self.path) != checksum:
                raise ValueError("its content is not what was written")

    def chunks(self) -> Iterator[pl.DataFrame]:
        """The rows, some at a time; the file knows its begins afterwards."""
        begins = []
        for first in range(0, self.rows, _AT_A_TIME):
            chunk = self.read(first, _AT_A_TIME)
            begins.append(int(chunk["t0_ns"].min() or 0))  # type: ignore[arg-type]
            yield chunk
        self.begins = begins

    def between(self, t0_ns: int, t1_ns: int) -> Iterator[pl.DataFrame]:
        """The exact rows that touch a span of time, a frame a chunk."""
        within = (pl.col("t1_ns") >= t0_ns) & (pl.col("t0_ns") <= t1_ns)
        after = [*self.begins[1:], None] if self.begins else [None] * -(-self.rows // _AT_A_TIME)
        begins: list[int | None] = [*self.begins] or [None] * len(after)
        for number, (begin, end) in enumerate(zip(begins, after, strict=True)):
            if (begin is None or begin <= t1_ns) and (end is None or end >= t0_ns):
                chunk = self.read(number * _AT_A_TIME, _AT_A_TIME).filter(within)
                yield chunk.select([name for name in self.columns if name in chunk.columns])

    def span_ns(self) -> tuple[int, int]:
        """Return the start of the first row and the end of the last one."""
        first, last = self.read(0, 1), self.read(max(self.rows - 1, 0), 1)
        return (int(first["t0_ns"][0]), int(last["t1_ns"][0])) if len(first) and len(last) else (0, 0)


@dataclass(frozen=True)
class LongSensor:
    """The files of a sensor of many rows, in order. counters: its channels that count."""

    files: tuple[SampleFile, ...]
    counters: frozenset[str]

    def read_coarse(self) -> pl.DataFrame:
        """Return about MOST_ROWS rows that stand for all of them."""
        size, length_s = self._grain()
        grain = Downsampler(size, self.counters)
        return pl.concat([self._coarser(file, grain, length_s) for file in self.files], how="diagonal")

    def _coarser(self, file: SampleFile, grain: Downsampler, length_s: int) -> pl.DataFrame:
        """Rows of a file; of a run that is thinned elsewhere, means of the same length also of what is not."""
        if not length_s:
            return pl.concat([grain.downsample(chunk) for chunk in file.chunks()])
        columns = file.columns[2:]
        means = [
            chunk if file.part.grain else thin_sensor_rows(chunk, columns, self.counters, length_s * 1_000_000_000)
            for chunk in file.chunks()
        ]
        return pl.concat([grain.downsample_means(chunk) for chunk in means], how="diagonal")

    def _grain(self) -> tuple[int, int]:
        """Return how many rows become one, and the length, s, of the coarsest means of which there are not just a few.

        The length is 0 where nothing is thinned.
        """
        whole = sum(file.stands_for for file in self.files)
        size = -(-whole // MOST_ROWS)
        length_s = min((file.part.grain for file in self.files if file.part.grain), default=0)
        by_grain: dict[int, list[SampleFile]] = {}
        for file in self.files:
            by_grain.setdefault(file.part.grain, []).append(file)
        for grain, files in by_grain.items():
            stands_for, rows = sum(file.stands_for for file in files), sum(file.rows for file in files)
            if grain and stands_for > _NOT_A_FEW * whole and rows:
                size, length_s = max(size, round(stands_for / rows)), max(length_s, grain)
        return size, length_s

    @property
    def thinned_spans(self) -> list[tuple[int, int, int]]:
        """Begin and end, ns, and length of the means, s, of each file that is thinned."""
        return [(*file.span_ns(), file.part.grain) for file in self.files if file.part.grain]

    def between(self, t0_ns: int, t1_ns: int) -> pl.DataFrame:
        """Return the exact rows that touch a span of time; where they are more than MOST_EXACT, the coarser ones."""
        parts, rows = [], 0
        for chunk in (chunk for file in self._near(t0_ns, t1_ns) for chunk in file.between(t0_ns, t1_ns)):
            parts.append(chunk)
            rows += len(chunk)
            if rows > MOST_EXACT:
                return self.read_coarse().filter((pl.col("t1_ns") >= t0_ns) & (pl.col("t0_ns") <= t1_ns))
        return pl.concat(parts, how="diagonal") if parts else self.files[0].read(0, 0)

    def _near(self, t0_ns: int, t1_ns: int) -> list[SampleFile]:
        """The files that may have rows of a span: a part ends where the next one begins."""
        begins = [file.begins[0] if file.begins else None for file in self.files]
        ends = [*begins[1:], None]
        return [
            file
            for file, begin, end in zip(self.files, begins, ends, strict=True)
            if (begin is None or begin <= t1_ns) and (end is None or end >= t0_ns)
        ]


class Downsampler:
    """Makes rows coarser, a chunk after another: so many become one."""

    def __init__(self, size: int, counters: frozenset[str]) -> None:
        self._size, self._counters = size, counters
        self._lowest: dict[str, float] = {}
        self._highest: dict[str, float] = {}
        self._last_ns: int | None = None

    def downsample(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of a chunk, sorted by time, as fewer; what is left over at its end stays exact."""
        frame = frame.sort("t0_ns", maintain_order=True)
        frame = self._with_silences(frame)
        names = [name for name in frame.columns if name not in ("t0_ns", "t1_ns")]
        blocks = len(frame) // self._size
        if blocks < 1 or self._size < 2:
            return frame
        whole, remainder = frame.head(blocks * self._size), frame.slice(blocks * self._size)
        values = {name: whole[name].to_numpy().reshape(blocks, self._size) for name in names}
        counts = {name: (~np.isnan(rows)).sum(axis=1) for name, rows in values.items()}
        mixed = np.any([(count > 0) & (count < self._size) for count in counts.values()] or [np.zeros(blocks)], axis=0)
        if mixed.mean() > MOST_MISSING:
            mixed = np.zeros(blocks, dtype=bool)
        exact = mixed | self._extreme_blocks(values, blocks)
        middle = np.arange(blocks) * self._size + self._size // 2
        columns: dict[str, Any] = {name: whole[name].to_numpy()[middle[~exact]] for name in ("t0_ns", "t1_ns")}
        for name, rows in values.items():
            columns[name] = self._value(name, rows[~exact], counts[name][~exact])
        exact_rows = whole.filter(pl.Series(np.repeat(exact, self._size)))
        means = pl.DataFrame(columns, schema=frame.schema, nan_to_null=True)
        return pl.concat([means, exact_rows, remainder]).sort("t0_ns", maintain_order=True)

    def downsample_means(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the thinned rows of a chunk, sorted by time, as rows of the same grain: joined, or divided evenly.

        A row lies in the middle of its time. Where its neighbours are longer, shorter or not there, its begin and its
        end are rows as well, so that what is integrated between rows is the mean over its own time.
        """
        frame = self._with_silences(frame.sort("t0_ns", maintain_order=True))
        names = [name for name in frame.columns if name not in ("t0_ns", "t1_ns") and "~" not in name]
        frame = frame.with_columns(pl.col(COUNT).fill_null(0))
        if frame.is_empty():
            return frame.select("t0_ns", "t1_ns", *names)
        joined = self._joined(frame, names)
        middle = (pl.col("begin") + pl.col("end")) // 2
        rows = [self._rows_at(joined, middle, 0.5, names)]
        length, apart = joined["end"] - joined["begin"], joined["begin"] - joined["end"].shift(1)
        as_long = (length - length.shift(1)).abs() * 10 <= length
        regular = (as_long & (apart * 10 <= length)).fill_null(False)
        ends = joined.filter(~(regular & regular.shift(-1, fill_value=False)) & (length > 2))
        rows += [
            self._rows_at(ends, pl.col("begin") + 1, 0.0, names),
            self._rows_at(ends, pl.col("end") - 1, 1.0, names),
        ]
        rows = [self._match_integrals(joined, pl.concat(rows).sort("t0_ns", maintain_order=True), names)]
        extremes = list(self._extremes(frame, names))
        if len(joined) + len(ends) > 10 * len(
            extremes
        ):  # of a few means they would be most rows, and no period is left
            rows += [self._rows_around_extreme(joined, at, name, value, names) for at, name, value in extremes]
        return pl.concat(rows).sort("t0_ns", maintain_order=True)

    def _match_integrals(self, joined: pl.DataFrame, rows: pl.DataFrame, names: list[str]) -> pl.DataFrame:
        """The rows with gauges moved so far that lines between them integrate to what the means do over their times.

        Means differ by a reading in how long they are, and so does a line from middle to middle: 0.01 % of the whole.
        """
        lasted, until = joined["end"] - joined["begin"], joined["begin"] - joined["end"].shift(1)
        apart, moved = rows["t0_ns"].diff(), []
        for name in (name for name in names if name not in self._counters):
            mean, value = joined[name], rows[name]
            line = apart * (value + value.shift(1)) / 2  # null beside what was not read
            means = (mean * lasted).sum() + (until * (mean + mean.shift(1)) / 2).sum()
            length = apart.filter(line.is_not_null()).sum()
            by = (means - line.sum()) / length if length else 0.0
            moved.append(pl.col(name) + (by if abs(by) * length > _NOISE * abs(means) else 0.0))
        return rows.with_columns(moved)

    def _joined(self, frame: pl.DataFrame, names: list[str]) -> pl.DataFrame:
        """Rows of means: several that follow each other as one, long ones as several. Columns: begin and end, gauges,
        and of counters what they showed at both.
        """
        counters = [name for name in names if name in self._counters]
        count = pl.col(COUNT)
        fell = [(pl.col(name).shift(-1) < pl.col(name)) | (pl.col(name) < pl.col(name).shift(1)) for name in counters]
        alone = (count == 0) | pl.any_horizontal(pl.lit(False), *fell).fill_null(False)
        block = (count.cum_sum() - count) // self._size
        frame = frame.with_columns(times=pl.when(alone).then(1).otherwise((count // self._size).clip(1)), alone=alone)
        apart = pl.col("alone") | (pl.col("times") > 1)
        frame = frame.with_columns(
            group=pl.when(apart).then(-pl.int_range(pl.len()) - 1).otherwise(block), segment=apart.cum_sum()
        )
        frame = _repeat_rows(frame)
        length = pl.col("t1_ns") - pl.col("t0_ns")
        edges = [(pl.col("turn") + after) / pl.col("times") for after in (0, 1)]
        begin, end = (pl.col("t0_ns") + (length * edge).cast(pl.Int64) for edge in edges)
        columns = [begin.first().alias("begin"), end.last().alias("end")]
        for name in names:
            value, is_read = pl.col(name), pl.col(name).is_not_null()
            if name in self._counters:
                grown = pl.coalesce(name + LAST, name) - value
                columns += [(value + grown * edges[0]).first().alias(name)]
                columns += [(value + grown * edges[1]).last().alias(name + LAST)]
                continue
            weight = count.clip(1).filter(is_read)
            mean = (value.filter(is_read) * weight).sum() / weight.sum()
            enough = is_read.sum() * 2 >= pl.len()
            columns.append(pl.when(enough & (weight.sum() > 0)).then(mean).alias(name))
        return frame.group_by(["segment", "group", "turn"], maintain_order=True).agg(columns)

    def _rows_at(self, joined: pl.DataFrame, t_ns: pl.Expr, share: float, names: list[str]) -> pl.DataFrame:
        """A row for each of these, at a time that is so much of the way from its begin to its end."""
        values = [
            pl.col(name) + (pl.col(name + LAST) - pl.col(name)) * share if name in self._counters else pl.col(name)
            for name in names
        ]
        return joined.select(t_ns.alias("t0_ns"), t_ns.alias("t1_ns"), *values)

    def _extremes(self, frame: pl.DataFrame, names: list[str]) -> Iterator[tuple[int, str, float]]:
        """Yield the new extremes of gauges that lie within a mean: time, ns, channel and reading."""
        for name in names:
            if name in self._counters or name + HIGH not in frame.columns:
                continue
            for column, extremes, sign in ((name + HIGH, self._highest, 1), (name + LOW, self._lowest, -1)):
                of_row = sign * frame[column].fill_null(frame[name])
                value, place = of_row.max(), of_row.arg_max()
                if not isinstance(value, float) or place is None or value <= sign * extremes.get(name, sign * -np.inf):
                    continue
                extremes[name] = sign * value
                if frame[COUNT][place] > 1:
                    yield (frame["t0_ns"][place] + frame["t1_ns"][place]) // 2, name, sign * value

    def _rows_around_extreme(
        self, joined: pl.DataFrame, at: int, name: str, value: float, names: list[str]
    ) -> pl.DataFrame:
        """Three rows in the midst of the mean that holds a reading: the mean, that reading, and the mean again."""
        place = max(int(joined["begin"].search_sorted(at, "right")) - 1, 0)
        middle = (pl.col("begin") + pl.col("end")) // 2
        moments = [self._rows_at(joined.slice(place, 1), middle + step, 0.5, names) for step in (2, 3, 4)]
        moments[1] = moments[1].with_columns(pl.lit(value).alias(name))
        return pl.concat(moments)

    def _value(self, name: str, rows: np.ndarray[Any, Any], counts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if name in self._counters:
            return np.asarray(rows[:, self._size // 2])
        mean = np.nansum(rows, axis=1) / np.maximum(counts, 1)
        return np.where(counts >= max(LEAST_READ * self._size, 1), mean, np.nan)

    def _extreme_blocks(self, values: dict[str, np.ndarray[Any, Any]], blocks: int) -> np.ndarray[Any, Any]:
        """Blocks (B,) that hold a gauge's highest or lowest reading so far."""
        is_extreme = np.zeros(blocks, dtype=bool)
        for name, rows in values.items():
            if name in self._counters or np.isnan(rows).all():
                continue
            highest, lowest = np.nanmax(rows), np.nanmin(rows)
            if highest > self._highest.get(name, -np.inf):
                self._highest[name] = highest
                is_extreme[int(np.nanargmax(rows)) // self._size] = True
            if lowest < self._lowest.get(name, np.inf):
                self._lowest[name] = lowest
                is_extreme[int(np.nanargmin(rows)) // self._size] = True
        return is_extreme

    def _with_silences(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The rows, and one in which nothing was read in the midst of each silence."""
        if frame.is_empty():
            return frame
        begin, end = frame["t0_ns"].to_numpy(), frame["t1_ns"].to_numpy()
        before = np.append(begin[0] if self._last_ns is None else self._last_ns, end[:-1])
        self._last_ns = int(end[-1])
        apart = begin - before
        silent = silences(apart)
        if not silent.any():
            return frame
        at = ((begin + before) // 2)[silent]
        nothing = pl.DataFrame({"t0_ns": at, "t1_ns": at})
        return pl.concat([frame, nothing], how="diagonal").sort("t0_ns", maintain_order=True)


def _repeat_rows(frame: pl.DataFrame) -> pl.DataFrame:
    """Each row so many times as its `times` says, with the number of its `turn`."""
    times = frame["times"].to_numpy()
    if not len(times) or times.max() <= 1:
        return frame.with_columns(turn=pl.lit(0, pl.Int64))
    turn = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
    return frame[np.repeat(np.arange(len(times)), times)].with_columns(turn=pl.Series(turn, dtype=pl.Int64))


def _open_thinned_file(path: Path, columns: list[str], counters: frozenset[str]) -> tuple[int, int, Chunk]:
    """Return rows of a thinned file, how many readings they stand for, and what reads some of them."""
    names = thinned_columns(columns, counters)

    def read(first: int, count: int) -> pl.DataFrame:
        frame = pl.scan_parquet(path, low_memory=True).slice(first, count).collect()
        if frame.schema.get(COUNT) != pl.Int64 or [frame.schema.get(name) for name in names[:2]] != [pl.Int64] * 2:
            raise ValueError("it is not thinned as it should be")
        there = {name for name in names[3:] if frame.schema.get(name) in (pl.Float64, pl.Float32)}
        partly = {name.partition("~")[0] for name in names[3:] if name not in there}  # its lowest without its highest
        values = [name for name in names[3:] if name.partition("~")[0] not in partly]
        readings = [pl.when(pl.col(name).abs() <= _LARGEST_VALUE).then(name) for name in values]
        is_plausible = pl.col(COUNT).is_between(1, _MOST_IN_A_ROW)
        return frame.select("t0_ns", "t1_ns", pl.when(is_plausible).then(COUNT), *readings).filter(
            pl.col(COUNT).is_not_null()
        )

    counts = pl.scan_parquet(path).select(pl.len(), pl.col(COUNT).clip(0, _MOST_IN_A_ROW).sum().alias("sum")).collect()
    if not counts["len"][0]:
        raise ValueError("it holds no row")
    return int(counts["len"][0]), int(counts["sum"][0]), read


def _open_packed_file(path: Path, columns: list[str]) -> tuple[int, Chunk]:
    """Return the number of rows of a Parquet file, and what reads some of them."""

    def read(first: int, count: int) -> pl.DataFrame:
        return checked_samples(columns, pl.scan_parquet(path, low_memory=True).slice(first, count).collect())

    return int(pl.scan_parquet(path).select(pl.len()).collect().item()), read


def _open_appended_file(path: Path, columns: list[str], most: int) -> tuple[int, Chunk]:
    """Return the same of a file of rows, of which `most` bytes are read."""
    dtype = sample_dtype(columns)
    rows = most // dtype.itemsize

    def read(first: int, count: int) -> pl.DataFrame:
        count = min(count, rows - first)
        with path.open("rb") as file:
            file.seek(first * dtype.itemsize)
            data = file.read(count * dtype.itemsize)
        return described_samples(columns, whole_rows(data, dtype))

    return rows, read


_MOST_IN_A_ROW = 100_000_000  # readings that a thinned row can stand for
_LARGEST_VALUE = 1e18  # of a sampled quantity in its unit, counters in ns and bytes among them
_Rows = np.ndarray[Any, np.dtype[Any]]


def checked_samples(columns: list[str], frame: pl.DataFrame) -> pl.DataFrame:
    """The columns that a channel describes; what is no number of the physical world is null."""
    described = [name for name in columns if frame.schema.get(name) == pl.Float64]
    if [frame.schema.get(name) for name in ("t0_ns", "t1_ns")] != [pl.Int64, pl.Int64]:
        raise ValueError("it has no times")
    readings = [pl.when(pl.col(name).abs() <= _LARGEST_VALUE).then(name) for name in described]
    return frame.select("t0_ns", "t1_ns", *readings)


def described_samples(columns: list[str], rows: _Rows) -> pl.DataFrame:
    if not columns:
        raise ValueError("no channel describes these rows")
    return samples_of(rows, columns)


def samples_of(rows: np.ndarray[Any, np.dtype[Any]], columns: list[str]) -> pl.DataFrame:
    """Rows of a sensor as a frame: t0_ns, t1_ns and one column a channel, null where nothing was read."""
    frame = pl.DataFrame({name: rows[name] for name in ("t0_ns", "t1_ns", *columns)})
    return frame.with_columns(pl.col(columns).fill_nan(None)) if columns else frame
