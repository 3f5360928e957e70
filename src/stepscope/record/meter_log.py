"""Import the log of a meter beside the device into a finished run, with stamps on the run's clock.

The earliest and latest time that each reading can have, by the alignment's interval, are its two stamps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import polars as pl

from stepscope.errors import OutputNotWritable, RunDamaged, UsageError
from stepscope.files import atomic_write, replace_json
from stepscope.record.meter_csv import MeterLog, parse_meter_csv, read_log_text
from stepscope.record.sensors.contract import Channel, make_channel
from stepscope.runfolder import RunReader, RunWriter, checksums


class Aligned(Protocol):
    """A meter's clock laid on the run's."""

    def monotonic_ns(self, t_s: Sequence[float]) -> tuple[list[int], list[int]]:
        """Earliest and latest time of each reading on the run's clock, ns."""

    def facts(self) -> dict[str, Any]:
        """Offset, drift and their intervals."""

    def words(self) -> str:
        """Return the alignment in a sentence."""


# run, seconds on the meter's clock, W, whether that clock counts from 1970; raises UsageError where it cannot.
Align = Callable[[RunReader, Sequence[float], Sequence[float], bool], Aligned]


def import_csv(run_path: str | Path, csv_path: str | Path, align: Align) -> Channel:
    """Write a meter's log as a channel of a run that has ended, and note the alignment in its events.

    `align` is analysis.meter_clock.align: recording does not import analysis. Importing a log of the same name again
    replaces it. Raises UsageError for a log that cannot be read or aligned, RunError for a run that cannot,
    OutputNotWritable for one that cannot be written.
    """
    run, source = RunReader(run_path), Path(csv_path)
    if run.status == "running":
        raise UsageError(f"the run {run.id} is still being written", "import the meter's log when it has ended")
    table, log = _read_channels(run.path / "channels.json"), read_meter_csv(source)
    aligned = align(run, log.t_s, log.power_w, log.clock == "unix")
    channel = _meter_channel(source, log)
    t0_ns, t1_ns = aligned.monotonic_ns(log.t_s)
    values = pl.Series(channel.id, log.power_w, dtype=pl.Float64).fill_nan(None)
    frame = pl.DataFrame({"t0_ns": t0_ns, "t1_ns": t1_ns, channel.id: values}, schema_overrides=_STAMPS)
    channels = [*(row for row in table["channels"] if row["sensor"] != channel.sensor), asdict(channel)]
    message = f"{source.name}: {len(log.t_s)} readings of '{log.power_column}', {aligned.words()}"
    message += f"; {log.skipped} rows skipped: no time, or out of order" if log.skipped else ""
    others = ", ".join(f"'{column}'" for column in log.other_columns)
    message += f"; {others} not read (stepscope import --power-column NAME takes another)" if others else ""
    try:
        _write_channel(run.path, frame, channel, {**table, "channels": channels})
        RunWriter(run.path, run.meta).append_event(
            "meter-imported",
            message,
            source="import",
            sensor=channel.sensor,
            skipped=log.skipped,
            alignment=aligned.facts(),
        )
    except OSError as error:
        raise OutputNotWritable(
            f"cannot write into the run '{run.path}': {error.strerror or error}",
            "make room there, or copy the run to a folder that you can write",
        ) from error
    return channel


def _write_channel(run: Path, frame: pl.DataFrame, channel: Channel, channels: dict[str, Any]) -> None:
    samples = run / "samples"
    samples.mkdir(exist_ok=True)
    with atomic_write(samples / f"{channel.sensor}.parquet") as part:
        frame.write_parquet(part, compression="zstd")
    checksums.record_checksums(run, f"samples/{channel.sensor}.parquet")
    replace_json(run / "channels.json", channels)


_STAMPS = {"t0_ns": pl.Int64, "t1_ns": pl.Int64}


def read_meter_csv(source: Path) -> MeterLog:
    """Read the log of a meter; raises UsageError where it cannot be read."""
    try:
        return parse_meter_csv(read_log_text(source))
    except ValueError as error:
        raise UsageError(f"'{source}': {error}", "a log needs a time and a power column") from error


def _meter_channel(source: Path, log: MeterLog) -> Channel:
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in source.name)
    steps = [later - earlier for earlier, later in zip(log.t_s, log.t_s[1:], strict=False) if later > earlier]
    sensor, scope = f"meter_csv-{name}", f"meter:{name}"
    refresh_ns = round(median(steps) * 1e9) if steps else None
    return make_channel(sensor, scope, "power", "W", str(source), rail=log.power_column, refresh_ns=refresh_ns)


def _read_channels(path: Path) -> dict[str, Any]:
    """The content of channels.json; raises RunDamaged where it is no table of channels."""
    try:
        table = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"channels": []}
        if all("sensor" in row for row in table["channels"]):
            return dict(table)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunDamaged(f"'{path}' cannot be read: {error}") from error
    raise RunDamaged(f"'{path}' holds a channel without a sensor")
