"""A tool's log as channels of a run: times on the wall clock, one column a channel, null where nothing was read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepscope.errors import UsageError
from stepscope.record.recorders.tree import Ints
from stepscope.record.sampler.rows import write_json
from stepscope.record.sensors.contract import Channel

MOST_BYTES = 1 << 30
_STAMPS = {"t0_ns": pl.Int64, "t1_ns": pl.Int64}


@dataclass(frozen=True)
class Clock:
    """What a log's stamps are read with: the zone of stamps that state none, and what only the user can know."""

    zone: tzinfo | None = None  # None: of the machine that imports
    interval_ns: int | None = None  # of a log without stamps
    started: datetime | None = None  # likewise
    shift_ns: int = 0  # added to every time


@dataclass(frozen=True)
class SensorLog:
    """Readings of one sensor: earliest and latest Unix time of each, ns, and a column a channel (NaN: not read)."""

    sensor: str
    channels: tuple[Channel, ...]
    t0_ns: Ints
    t1_ns: Ints
    columns: tuple[Sequence[float], ...]
    notes: tuple[str, ...] = ()


def unix_ns(stamp: datetime, clock: Clock) -> int:
    """A stamp as Unix ns; one without a zone is local time of the clock's zone."""
    known = (
        stamp if stamp.tzinfo is not None else stamp.replace(tzinfo=clock.zone) if clock.zone else stamp.astimezone()
    )
    return round(known.timestamp() * 1e6) * 1000


def log_text(path: Path) -> str:
    """The text of a log; UsageError where it cannot be read or is larger than 1 GiB."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"'{path}' is larger than 1 GiB", "cut the log to the time of the training")
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read '{path}': {error.strerror or error}", "check the path of the log") from error


def in_order(log: SensorLog) -> SensorLog:
    """The readings in order of time, with how many had to be moved."""
    order = np.argsort(log.t0_ns, kind="stable")
    moved = int((np.diff(log.t0_ns) < 0).sum())
    if not moved:
        return log
    columns = tuple(np.asarray(column)[order].tolist() for column in log.columns)
    note = f"{log.sensor}: the clock went back {moved} times; readings are in order of their stamps"
    return replace(log, t0_ns=log.t0_ns[order], t1_ns=log.t1_ns[order], columns=columns, notes=(*log.notes, note))


def write_logs(run: Path, logs: Sequence[SensorLog], missing: Sequence[dict[str, Any]], origin_ns: int) -> None:
    """Write channels.json and samples/ of a run whose clock begins at `origin_ns` (Unix)."""
    names = [log.sensor for log in logs]
    for number, log in enumerate(logs):
        sensor = log.sensor if names.index(log.sensor) == number else f"{log.sensor}-{number}"
        if sensor != log.sensor:
            raise UsageError(f"two logs of {log.sensor} were given", "join them into one file")
        frame = pl.DataFrame(
            {"t0_ns": log.t0_ns - origin_ns, "t1_ns": log.t1_ns - origin_ns}, schema_overrides=_STAMPS
        ).with_columns(
            pl.Series(channel.id, column, dtype=pl.Float64).fill_nan(None)
            for channel, column in zip(log.channels, log.columns, strict=True)
        )
        frame.write_parquet(run / "samples" / f"{sensor}.parquet", compression="zstd")
    channels = [asdict(channel) for log in logs for channel in log.channels]
    periods = [int(np.median(np.diff(log.t0_ns))) for log in logs if len(log.t0_ns) > 1]
    period_ns = min(periods) if periods else None
    write_json(run / "channels.json", {"period_ns": period_ns, "channels": channels, "missing": list(missing)})
