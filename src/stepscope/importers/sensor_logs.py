"""Logs of tools that read sensors: how each is recognised, and its readings as channels of a run."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, tzinfo
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepscope.arrays import Ints
from stepscope.errors import UsageError
from stepscope.files import replace_json
from stepscope.importers import log_formats
from stepscope.importers.log_formats import (
    MeterReadings,
    is_meter_csv,
    is_mllog,
    is_powersensor,
    read_meter_table,
    read_mllog,
    read_powersensor,
)
from stepscope.record.log_times import is_plausible_stamp, stamps_in_unix_ns
from stepscope.record.sensors import apple, tegrastats
from stepscope.record.sensors.apple import SCOPES, channels_of
from stepscope.record.sensors.contract import Channel, channel_id
from stepscope.record.sensors.tegrastats import rail_channels, rail_watts
from stepscope.runfolder import checksums
from stepscope.runfolder.pack import write_parquet

_STAMPS = {"t0_ns": pl.Int64, "t1_ns": pl.Int64}


@dataclass(frozen=True)
class Clock:
    """Reading of a log's stamps: the zone of stamps that state none, and what only the user can know."""

    zone: tzinfo | None = None  # None: of the machine that imports
    interval_ns: int | None = None  # of a log without stamps
    started: datetime | None = None  # likewise
    shift_ns: int = 0  # added to every time
    columns: tuple[str | None, str | None] = (None, None)  # of a meter's CSV: names of its time and its power column


@dataclass(frozen=True)
class SensorLog:
    """Readings of one sensor: earliest and latest Unix time of each, ns, and a column a channel (NaN: not read)."""

    sensor: str
    channels: tuple[Channel, ...]
    t0_ns: Ints
    t1_ns: Ints
    columns: tuple[Sequence[float], ...]
    notes: tuple[str, ...] = ()
    skipped: int = 0  # lines that could not be read
    moved: int = 0  # places where the clock went back


def unix_ns(stamp: datetime, clock: Clock) -> int:
    """A stamp as Unix ns; one without a zone is local time of the clock's zone."""
    return stamps_in_unix_ns([stamp], clock.zone)[0]


def sort_by_time(log: SensorLog) -> SensorLog:
    """The readings in order of time, with how many had to be moved."""
    order = np.argsort(log.t0_ns, kind="stable")
    moved = int((np.diff(log.t0_ns) < 0).sum())
    if not moved:
        return log
    columns = tuple(np.asarray(column)[order].tolist() for column in log.columns)
    note = f"{log.sensor}: the clock went back {moved} times; readings are in order of their stamps"
    return replace(
        log, t0_ns=log.t0_ns[order], t1_ns=log.t1_ns[order], columns=columns, notes=(*log.notes, note), moved=moved
    )


def write_logs(run: Path, logs: Sequence[SensorLog], missing: Sequence[dict[str, Any]], origin_ns: int) -> None:
    """Write channels.json and samples/ of a run whose clock begins at `origin_ns` (Unix)."""
    for log in logs:
        frame = pl.DataFrame(
            {"t0_ns": log.t0_ns - origin_ns, "t1_ns": log.t1_ns - origin_ns}, schema_overrides=_STAMPS
        ).with_columns(
            pl.Series(channel.id, column, dtype=pl.Float64).fill_nan(None)
            for channel, column in zip(log.channels, log.columns, strict=True)
        )
        write_parquet(frame, run / "samples" / f"{log.sensor}.parquet")
        checksums.record_checksums(run, f"samples/{log.sensor}.parquet")
    channels = [asdict(channel) for log in logs for channel in log.channels]
    periods = [int(np.median(np.diff(log.t0_ns))) for log in logs if len(log.t0_ns) > 1]
    period_ns = min(periods) if periods else None
    replace_json(run / "channels.json", {"period_ns": period_ns, "channels": channels, "missing": list(missing)})


SECOND_NS = 1_000_000_000
_LEAST_QUERY_NS = SECOND_NS // 20  # of nvidia-smi: where queries follow closer, they cannot be told from their lines
_MOST_WITHIN_NS = SECOND_NS // 10  # between two lines of a query
_MONTH = "%a %b %d %H:%M:%S %Y %z"
_WHOLE_SECONDS = "its stamps are whole seconds: each reading is placed to within its share of that second"
_LOCAL = "its stamps state no zone: they are read as local time {zone}"


@dataclass(frozen=True)
class LogKind:
    """One kind of log: whether the first lines are of it, and how a text becomes sensor logs."""

    name: str
    fits: Callable[[Sequence[str]], bool]
    read: Callable[[str, str, Clock], list[SensorLog]]


def tegrastats_logs(text: str, source: str, clock: Clock) -> list[SensorLog]:
    """Rails, cores, GPU, memory controller, memory and thermal zones of a tegrastats log."""
    texts = [line for line in text.replace("\0", "").splitlines() if line.strip()]
    read = [line for line in map(tegrastats.parse, _whole_lines(texts)) if line.memory]
    if not read:
        raise UsageError(f"'{source}': no line of tegrastats", "give the output of tegrastats, or --kind")
    lines = [line for line in read if line.stamp is not None]
    lines = [line for line in lines if line.stamp is not None and is_plausible_stamp(line.stamp)] if lines else read
    if not lines:
        raise UsageError(f"'{source}': no line has a time that can be one", "was the clock of the device set?")
    t0_ns, t1_ns, note = _tegrastats_times([line.stamp for line in lines], source, clock)
    note += f"; {len(read) - len(lines)} lines have no stamp: they are no readings" if len(lines) < len(read) else ""
    channels, columns = _tegrastats_channels(lines, source)
    skipped = len(texts) - len(lines)
    return [sort_by_time(SensorLog("tegrastats", tuple(channels), t0_ns, t1_ns, tuple(columns), (note,), skipped))]


def _whole_lines(lines: Sequence[str]) -> list[str]:
    """The lines that end as others do, by their last two words without digits: one that was cut off ends as none."""
    ends = [re.sub(r"[0-9]+", "0", " ".join(line.split()[-2:])) for line in lines]
    counts = Counter(ends)
    usual = max(counts.values(), default=0) * 2 > len(lines) > 2
    return [line for line, end in zip(lines, ends, strict=True) if not usual or counts[end] > max(1, len(lines) // 20)]


def _tegrastats_times(stamps: Sequence[datetime | None], source: str, clock: Clock) -> tuple[Ints, Ints, str]:
    if all(stamp is not None for stamp in stamps):
        whole = stamps_in_unix_ns([stamp for stamp in stamps if stamp is not None], clock.zone)
        t0_ns, t1_ns = spread_within_second(whole)
        return t0_ns, t1_ns, f"{source}: {_WHOLE_SECONDS}; {_zone_note(clock)}"
    if clock.started is None or clock.interval_ns is None:
        raise UsageError(
            f"'{source}': its lines have no time stamps (JetPack 5 and later write them)",
            "state when it was started, and its interval: --started 2026-01-31T12:00:00 --interval 1000ms",
        )
    t1_ns = unix_ns(clock.started, clock) + (np.arange(len(stamps)) + 1) * clock.interval_ns
    return t1_ns - clock.interval_ns, t1_ns, f"{source}: no stamps; times are --started and --interval, as given"


def spread_within_second(stamps_ns: Sequence[int]) -> tuple[Ints, Ints]:
    """Readings with the same whole second, in order, share it out: the earliest and latest time of each, ns.

    The log begins and ends within a second: fewer readings than the others have lie at its end, or its begin.
    """
    groups = [(second, len(list(group))) for second, group in groupby(stamps_ns)]
    usual = int(np.median([count for _, count in groups[1:-1]])) if len(groups) > 2 else 0
    starts, ends = [], []
    for number, (second, count) in enumerate(groups):
        is_partial = number in (0, len(groups) - 1) and count < usual
        shares, first = (usual, usual - count if number == 0 else 0) if is_partial else (count, 0)
        starts += [second + SECOND_NS * place // shares for place in range(first, first + count)]
        ends += [second + SECOND_NS * (place + 1) // shares for place in range(first, first + count)]
    return np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)


def _tegrastats_channels(
    lines: Sequence[tegrastats.TegrastatsLine], source: str
) -> tuple[list[Channel], list[list[float]]]:
    """Channels of everything that any line names."""
    places = dict[str, tuple[str, int]]()
    for line in sorted(lines, key=lambda line: -len(line.rails)):  # names that only some lines have are theirs
        for name, place in rail_channels(line.rails).items():
            places.setdefault(name, place)
    watts = [rail_watts(line, places) for line in lines]
    by_id: dict[str, tuple[Channel, list[float]]] = {}
    for index, name in enumerate(places):
        channel = _channel("tegrastats", "power", f"rail:{name}", "W", source, name.partition("#")[0])
        by_id[channel.id] = (channel, [row[index] for row in watts])
    for row, line in enumerate(lines):
        for quantity, scope, unit, value in _tegrastats_values(line):
            key = channel_id(scope, quantity)
            if key not in by_id:
                by_id[key] = (_channel("tegrastats", quantity, scope, unit, source), [math.nan] * len(lines))
            by_id[key][1][row] = value
    return [channel for channel, _ in by_id.values()], [column for _, column in by_id.values()]


def _tegrastats_values(line: tegrastats.TegrastatsLine) -> list[tuple[str, str, str, float]]:
    values: list[tuple[str, str, str, float | None]] = []
    for number, core in enumerate(line.cpus):
        values.append(("utilisation", f"core:{number}", "1", core.utilisation))
        values.append(("core_frequency", f"core:{number}", "Hz", core.frequency_hz))
    for engine in line.engines:
        scope = {"GR3D_FREQ": "gpu:0", "GR3D": "gpu:0", "EMC_FREQ": "emc", "EMC": "emc"}.get(engine.name)
        if scope is not None:
            values.append(("utilisation", scope, "1", engine.utilisation))
            values.append(("frequency", scope, "Hz", max(engine.frequencies_hz, default=None)))
    values += [("memory_used", "system", "B", float(pool.used_bytes)) for pool in line.memory if pool.name == "RAM"]
    values += [("temperature", f"zone:{zone.name}", "degC", zone.celsius[0]) for zone in line.temperatures]
    return [(quantity, scope, unit, value) for quantity, scope, unit, value in values if value is not None]


def jetson_stats_logs(text: str, source: str, clock: Clock) -> list[SensorLog]:
    """Every column of a jetson-stats CSV that is understood and was ever read."""
    log = log_formats.parse_jetson_stats(text.splitlines())
    if not log.stamps:
        raise UsageError(f"'{source}': no line with a time", "give a CSV of jetson-stats that holds readings")
    stamps = np.array(stamps_in_unix_ns(log.stamps, clock.zone), dtype=np.int64)
    columns = [[row[place] for row in log.rows] for place in range(len(log.columns))]
    read = [place for place, column in enumerate(columns) if not all(math.isnan(value) for value in column)]
    sources = (log.columns[place] for place in read)
    channels = [
        _channel("jetson_stats", c.quantity, c.scope, c.unit, source, _rail_of_power(c.quantity, c.name))
        for c in sources
    ]
    notes = _zone_and_skipped_notes(source, clock, log.skipped)
    values = tuple(columns[place] for place in read)
    return [sort_by_time(SensorLog("jetson_stats", tuple(channels), stamps, stamps, values, notes, log.skipped))]


def nvidia_smi_logs(text: str, source: str, clock: Clock) -> list[SensorLog]:
    """A sensor a GPU, since each is read at its own times."""
    log = log_formats.parse_nvidia_smi(text.splitlines())
    all_readings = log.readings if log.told_apart else _split_gpus(log.readings, source)
    gpus = list(dict.fromkeys(reading.gpu for reading in all_readings))
    if not gpus:
        raise UsageError(f"'{source}': no line with a time", "give a log of nvidia-smi that holds readings")
    logs = []
    for index, gpu in enumerate(gpus):
        readings = [reading for reading in all_readings if reading.gpu == gpu]
        stamps = np.array(stamps_in_unix_ns([r.stamp for r in readings], clock.zone), dtype=np.int64)
        scope = f"gpu:{gpu if gpu.isdecimal() else index}"
        units = {"power": "W", "temperature": "degC", "memory_used": "B", "frequency": "Hz", "memory_frequency": "Hz"}
        names = [name for name in log.columns if not all(math.isnan(r.values.get(name, math.nan)) for r in readings)]
        sensor = "nvidia_smi" if len(gpus) == 1 else f"nvidia_smi-{index}"
        channels = [
            _channel(sensor, name, scope, units.get(name, "1"), source, _rail_of_power(name, scope)) for name in names
        ]
        columns = tuple([reading.values.get(name, math.nan) for reading in readings] for name in names)
        notes = _zone_and_skipped_notes(source, clock, log.skipped) if index == 0 else ()
        skipped = log.skipped if index == 0 else 0
        logs.append(sort_by_time(SensorLog(sensor, tuple(channels), stamps, stamps, columns, notes, skipped)))
    return logs


def _split_gpus(readings: Sequence[log_formats.NvidiaSmiReading], source: str) -> list[log_formats.NvidiaSmiReading]:
    """Readings of a log that names no GPU, or its model alone: GPUs that are alike by their place in each query."""
    stamps: dict[str, list[datetime]] = {}
    for reading in readings:
        stamps.setdefault(reading.gpu, []).append(reading.stamp)
    places = {gpu: iter(_index_in_query(of_gpu, source)) for gpu, of_gpu in stamps.items()}
    numbered = ((reading, next(places[reading.gpu])) for reading in readings)
    return [replace(reading, gpu=f"{reading.gpu}#{place}") if place else reading for reading, place in numbered]


def _index_in_query(stamps: Sequence[datetime], source: str) -> list[int]:
    """The place of each line among those of its query, which are ms apart; all 0 where a query has one line."""
    stamps_ns: Ints = np.array(stamps, dtype="datetime64[ns]").astype(np.int64)
    apart = np.diff(stamps_ns)
    usual_ns = int(np.quantile(apart, 0.95)) if len(apart) else 0  # between queries, of up to 16 GPUs
    begins = np.flatnonzero([True, *(apart >= min(usual_ns // 4, _MOST_WITHIN_NS))])
    whole_seconds = not any(stamp.microsecond for stamp in stamps)
    if whole_seconds or usual_ns < _LEAST_QUERY_NS or len(begins) > len(stamps) * 2 / 3:
        return [0] * len(stamps)
    sizes = np.diff([*begins, len(stamps)])
    if (sizes[:-1] != sizes[0]).any() or sizes[-1] > sizes[0]:
        raise UsageError(
            f"'{source}': its lines are of several GPUs, and none says of which",
            "add index to the query: --query-gpu=timestamp,index,power.draw",
        )
    return [place for size in sizes.tolist() for place in range(size)]


def powermetrics_logs(text: str, source: str, clock: Clock) -> list[SensorLog]:
    """Power of the chip's parts, each a mean over its block; ends of blocks are counted up within each stretch."""
    blocks = [block for block in apple.parse(text).blocks if block.elapsed_ns > 0]
    try:
        stamps = [datetime.strptime(block.when, _MONTH) for block in blocks]
    except ValueError as error:
        raise UsageError(f"'{source}': {error}", "give the text output of powermetrics, not -f plist") from error
    blocks = [block for block, stamp in zip(blocks, stamps, strict=True) if is_plausible_stamp(stamp)]
    names = [name for name in SCOPES if any(name in block.power_w for block in blocks)]
    if not names:
        raise UsageError(f"'{source}': no power of powermetrics", "run it with --samplers cpu_power (and gpu_power)")
    stamps_ns = [unix_ns(stamp, clock) for stamp in stamps if is_plausible_stamp(stamp)]
    skipped, elapsed = len(stamps) - len(blocks), np.array([block.elapsed_ns for block in blocks], dtype=np.int64)
    ends, stretches = _block_ends(np.array(stamps_ns, dtype=np.int64), elapsed)
    with_power = [place for place, block in enumerate(blocks) if block.power_w]
    blocks, elapsed, ends = [blocks[place] for place in with_power], elapsed[with_power], ends[with_power]
    resumed = np.flatnonzero(np.diff(stretches[with_power])) + 1
    window_ns = int(np.median(elapsed))
    channels, columns = [], []
    for name in names:
        watts = np.array([block.power_w.get(name, math.nan) for block in blocks])
        watts[watts < 0] = math.nan
        power, energy = channels_of(name, names)
        joules = np.where(np.isnan(watts), math.nan, np.cumsum(np.nan_to_num(watts) * elapsed / 1e9))
        channels += [replace(power, refresh_ns=window_ns, window_ns=window_ns), replace(energy, refresh_ns=window_ns)]
        # A row that reads nothing in each pause: what was used in it is not known, and no part of the counter's growth.
        columns += [np.insert(values, resumed, math.nan).tolist() for values in (watts, joules)]
    t_ns = np.insert(ends, resumed, (ends - elapsed)[resumed])
    note = f"{source}: its stamps are whole seconds; times are counted from their median, to half a second"
    note += f", and anew after each of {stretches[-1]} pauses" if stretches[-1] else ""
    return [sort_by_time(SensorLog("powermetrics", tuple(channels), t_ns, t_ns, tuple(columns), (note,), skipped))]


def _block_ends(stamps_ns: Ints, elapsed_ns: Ints) -> tuple[Ints, Ints]:
    """End of each block, and how many pauses lie before it; stamps are whole seconds."""
    since = np.cumsum(elapsed_ns)
    begin = stamps_ns + SECOND_NS // 2 - since  # by each block, to half a second; a pause moves it
    pauses = np.flatnonzero(np.abs(np.diff(begin)) > SECOND_NS * 3 // 2) + 1
    stretches = np.split(begin, pauses)
    ends = since + np.concatenate([np.full(len(part), int(np.median(part))) for part in stretches])
    return ends, np.repeat(np.arange(len(stretches)), [len(part) for part in stretches])


def _started_ns(clock: Clock) -> int | None:
    return None if clock.started is None else unix_ns(clock.started, clock)


def _meter_logs(meters: Sequence[MeterReadings], source: str) -> list[SensorLog]:
    """Meters as logs of sensors, each with its refresh as the readings show it."""
    logs = []
    for meter in meters:
        apart = np.diff(meter.t_ns)
        refresh_ns = int(np.median(apart[apart > 0])) if (apart > 0).any() else None
        channels = tuple(replace(channel, refresh_ns=refresh_ns) for channel in meter.channels)
        skipped = (f"{source}: {meter.skipped} lines could not be read",) if meter.skipped else ()
        notes = (*skipped, *meter.notes)
        log = SensorLog(meter.sensor, channels, meter.t_ns, meter.t_ns, meter.columns, notes, meter.skipped)
        logs.append(sort_by_time(log))
    return logs


KINDS = (
    LogKind("tegrastats", lambda lines: any(_is_tegrastats(line) for line in lines), tegrastats_logs),
    LogKind(
        "jetson-stats", lambda lines: bool(lines) and log_formats.is_jetson_stats_header(lines[0]), jetson_stats_logs
    ),
    LogKind(
        "nvidia-smi", lambda lines: any(log_formats.is_nvidia_smi_header(line) for line in lines[:3]), nvidia_smi_logs
    ),
    LogKind("powermetrics", lambda lines: any(apple.parse_block_head(line) for line in lines), powermetrics_logs),
    LogKind("mllog", is_mllog, lambda text, source, clock: _meter_logs(read_mllog(text, source), source)),
    LogKind(
        "powersensor3",
        is_powersensor,
        lambda text, source, clock: _meter_logs([read_powersensor(text, source, _started_ns(clock))], source),
    ),
    LogKind(
        "meter-csv",
        is_meter_csv,
        lambda text, source, clock: _meter_logs(
            [read_meter_table(text, source, clock.columns, _started_ns(clock), clock.zone)], source
        ),
    ),
)


def _is_tegrastats(line: str) -> bool:
    read = tegrastats.parse(line)
    return bool(read.memory and (read.cpus or read.rails))


def _channel(sensor: str, quantity: str, scope: str, unit: str, source: str, rail: str | None = None) -> Channel:
    parent = "board" if rail is not None else "system"
    return Channel(channel_id(scope, quantity), sensor, quantity, unit, "gauge", scope, source, rail, parent)


def _rail_of_power(quantity: str, name: str) -> str | None:
    return name if quantity == "power" else None


def _zone_and_skipped_notes(source: str, clock: Clock, skipped: int) -> tuple[str, ...]:
    lines = f"; {skipped} lines could not be read" if skipped else ""
    return (f"{source}: {_zone_note(clock)}{lines}",)


def _zone_note(clock: Clock) -> str:
    zone = "of the machine that imported it" if clock.zone is None else f"at {clock.zone}"
    return _LOCAL.format(zone=zone)


def duplicate_sensors(logs: Sequence[SensorLog]) -> list[str]:
    """Names of sensors that are there more than once."""
    return [name for name, count in Counter(log.sensor for log in logs).items() if count > 1]
