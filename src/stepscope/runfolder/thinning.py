"""Fewer samples of what is long ago: rows become means of a second, of ten, a minute or ten minutes, with their spread.

A thinned row stands from `t0_ns` to `t1_ns`, from the middle of its first reading to that of the reading after its last
one, so that neighbours touch. `~n` is how many readings it stands for. A gauge has its mean over time (each reading
joined to the next by a line, as energy is integrated), `~low`, `~high` and `~sd`; a counter what it showed at `t0_ns`,
and in `~last` at `t1_ns`. Rows stay as they were read (`~n` is 1) where a counter fell, where a channel began or ceased
to answer, and where there is one reading alone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

COUNT, LOW, HIGH, SPREAD, LAST = "~n", "~low", "~high", "~sd", "~last"
_SILENT, _SILENT_NS = 20.0, 500_000_000  # typical distances; a longer silence than both is a gap
MOST_MISSING = 0.1  # of the windows or blocks: what fails more often is no gap, but how this sensor answers
_FEW_EXACT = 2  # windows, of however few: where a channel began, and where it ceased
LEAST_READ = 0.5  # of a window or block that was read, from which its mean stands for it
Values = np.ndarray[Any, np.dtype[np.float64]]
Times = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class Gauge:
    """Readings or means (n,) of a gauge; `mean` is over the time of the row, joined to the next."""

    value: Values
    mean: Values
    low: Values
    high: Values
    sd: Values


def thinned_columns(columns: Collection[str], counters: Collection[str]) -> list[str]:
    """Return the columns of thinned rows, in order."""
    names = ["t0_ns", "t1_ns", COUNT]
    for name in columns:
        names += [name, name + LAST] if name in counters else [name, name + LOW, name + HIGH, name + SPREAD]
    return names


def thin_sensor_rows(
    frame: pl.DataFrame, columns: Collection[str], counters: Collection[str], window_ns: int
) -> pl.DataFrame:
    """Return rows of a sensor, as read or thinned before and in order of time, as rows of at least `window_ns`."""
    frame = frame.sort("t0_ns", maintain_order=True)
    t0, t1 = frame["t0_ns"].to_numpy(), frame["t1_ns"].to_numpy()
    count = frame[COUNT].to_numpy() if COUNT in frame.columns else np.ones(len(frame), dtype=np.int64)
    begin, end, silent = _spans(t0, t1, count)
    length = (end - begin).astype(np.float64)
    first = np.flatnonzero(np.diff(begin // window_ns, prepend=-1) != 0)
    first = np.union1d(first, np.flatnonzero(silent) + 1)
    first = first[first < len(frame)]
    if not len(first):
        return _complete(frame, columns, counters)
    gauges = {name: _gauge(frame, name, silent) for name in columns if name not in counters and name in frame.columns}
    counted = {name: _counter(frame, name, silent) for name in columns if name in counters and name in frame.columns}
    exact = _exact_windows(first, len(frame), gauges, counted)
    size = np.diff(np.append(first, len(frame)))
    merged = first[~exact]
    whole: dict[str, Any] = {
        "t0_ns": begin[merged],
        "t1_ns": np.maximum.reduceat(end, first)[~exact],
        COUNT: np.add.reduceat(count, first)[~exact],
    }
    for name, gauge in gauges.items():
        statistics = _window_statistics(gauge, first, length)
        whole |= {name + mark: values[~exact] for mark, values in zip(("", LOW, HIGH, SPREAD), statistics, strict=True)}
    last = first + size - 1
    for name, (at_first, at_last) in counted.items():
        whole |= {name: at_first[merged], name + LAST: at_last[last[~exact]]}
    names = thinned_columns(columns, counters)
    means = _complete(pl.DataFrame(whole, nan_to_null=True), columns, counters)
    exact_rows = _complete(frame.filter(pl.Series(np.repeat(exact, size), dtype=pl.Boolean)), columns, counters)
    return pl.concat([means.select(names), exact_rows.select(names)]).sort("t0_ns", maintain_order=True)


def _complete(frame: pl.DataFrame, columns: Collection[str], counters: Collection[str]) -> pl.DataFrame:
    """Return the frame with all columns of thinned rows, null where unknown."""
    names = thinned_columns(columns, counters)
    whole = frame if COUNT in frame.columns else frame.with_columns(pl.lit(1, pl.Int64).alias(COUNT))
    missing = [pl.lit(None, pl.Float64).alias(name) for name in names if name not in whole.columns]
    rounded = [pl.col(name).cast(pl.Float32) for name in names if name.endswith(SPREAD)]  # no digits of noise
    return whole.with_columns(missing).with_columns(*rounded, pl.col(COUNT).cast(pl.Int64)).select(names)


def silences(apart: Times) -> Flags:
    """Return which distances between readings, ns, are gaps: long ones, also by those that are typical."""
    return apart > max(_SILENT * float(np.median(apart)) if len(apart) else 0.0, _SILENT_NS)


def _spans(t0: Times, t1: Times, count: Times) -> tuple[Times, Times, Flags]:
    """Begin and end of what each row stands for, and whether a silence follows it."""
    middle = (t0 + t1) // 2
    begin = np.where(count > 1, t0, middle)
    after = np.append(begin[1:], begin[-1:])
    reached = np.where(count > 1, t1, middle)
    apart = after - reached
    silent = silences(apart)
    return begin, np.where(silent | (count > 1), reached, np.maximum(after, begin)), silent


def _column(frame: pl.DataFrame, name: str) -> Values:
    if name not in frame.columns:
        return np.full(len(frame), np.nan)
    values: Values = frame[name].cast(pl.Float64).to_numpy()
    return values


def _gauge(frame: pl.DataFrame, name: str, silent: Flags) -> Gauge:
    value = _column(frame, name)
    following = np.append(value[1:], np.nan)
    following[silent] = np.nan
    joined = np.where(np.isnan(following), value, (value + following) / 2)
    low, high, sd = (_column(frame, name + mark) for mark in (LOW, HIGH, SPREAD))
    means = _row_counts(frame) > 1
    is_missing = np.isnan(low)
    return Gauge(
        value,
        np.where(means, value, joined),
        np.where(is_missing, value, low),
        np.where(is_missing, value, high),
        np.where(np.isnan(sd), 0.0, sd),
    )


def _row_counts(frame: pl.DataFrame) -> Times:
    counts: Times = frame[COUNT].to_numpy() if COUNT in frame.columns else np.ones(len(frame), dtype=np.int64)
    return counts


def _counter(frame: pl.DataFrame, name: str, silent: Flags) -> tuple[Values, Values]:
    """What it showed at the begin and at the end of each row; one that seldom has anything newer shows the last."""
    value, last = _column(frame, name), _column(frame, name + LAST)
    if np.isnan(value).mean() > MOST_MISSING:
        value = frame[name].fill_nan(None).forward_fill().cast(pl.Float64).to_numpy()
    following = np.append(value[1:], value[-1:])
    following = np.where(silent | np.isnan(following), value, following)
    return value, np.where(np.isnan(last), following, last)


def _exact_windows(
    first: Times, rows: int, gauges: dict[str, Gauge], counters: dict[str, tuple[Values, Values]]
) -> Flags:
    """Windows whose rows stay as they are."""
    size = np.diff(np.append(first, rows))
    fell = np.zeros(len(first), dtype=bool)
    mixed = np.zeros(len(first), dtype=bool)
    for at_first, at_last in counters.values():
        falls = at_last < at_first
        falls[1:] |= at_first[1:] < at_last[:-1]
        fell |= np.logical_or.reduceat(falls, first)
    values = [*(gauge.value for gauge in gauges.values()), *(at_first for at_first, _ in counters.values())]
    for channel in values:
        counts = np.add.reduceat(~np.isnan(channel), first)
        partly = (counts > 0) & (counts < size)
        mixed |= partly if _are_few(partly) else False
    exact: Flags = (size == 1) | fell | (mixed if _are_few(mixed) else False)
    return exact


def _are_few(windows: Flags) -> bool:
    return bool(windows.mean() <= MOST_MISSING or windows.sum() <= _FEW_EXACT)


def _window_statistics(gauge: Gauge, first: Times, length: Values) -> tuple[Values, Values, Values, Values]:
    """Mean over time, lowest, highest and standard deviation of each window; NaN where it was read in less than half.

    A channel that has a reading in few rows, because its sensor has nothing newer, counts in those alone.
    """
    is_read = ~np.isnan(gauge.value)
    weight = np.where(length > 0, length, 1.0)
    weighted = np.add.reduceat(np.where(is_read, weight, 0.0), first)
    safe = np.where(weighted > 0, weighted, 1.0)
    mean = np.add.reduceat(np.where(is_read, weight * gauge.mean, 0.0), first) / safe
    size = np.diff(np.append(first, len(length)))
    apart = np.where(is_read, gauge.value - np.repeat(mean, size), 0.0)
    sd = np.sqrt(np.add.reduceat(np.where(is_read, weight * (apart**2 + gauge.sd**2), 0.0), first) / safe)
    rows = np.add.reduceat(is_read, first)
    usual = np.median(rows[rows > 0] / size[rows > 0]) if (rows > 0).any() else 1.0
    enough = rows >= np.maximum(LEAST_READ * usual * size, 1)
    low, high = np.fmin.reduceat(gauge.low, first), np.fmax.reduceat(gauge.high, first)
    return (
        np.where(enough, mean, np.nan),
        np.where(rows > 0, low, np.nan),
        np.where(rows > 0, high, np.nan),
        np.where(enough, sd, np.nan),
    )


BLOCK = 64  # steps that follow each other, which stay or go together


def drop_step_blocks(frame: pl.DataFrame, grain: int) -> pl.DataFrame:
    """Return all profiled steps and, of so many blocks of 64 steps, one; which ones is random, and the same each time.

    grain: a power of four; what a finer one removes a coarser one removes as well.
    """
    return frame.filter(pl.col("recorded") | is_retained(pl.col("step"), grain))


def is_retained(step: pl.Expr, grain: int) -> pl.Expr:
    """Return whether the block of a step is one of those that stay: by 16 bits of a product, as Fibonacci hashing."""
    block = (step // BLOCK) % (1 << 31)
    return (block * 2_654_435_769 % (1 << 32)) // (1 << 16) % grain == 0
