"""Parsers of other tools' logs, each in its own format.

Meters as rails: MLPerf's `power_reading` lines, dumps of PowerSensor3, and any CSV of times and watts. nvidia-smi: the
CSV of `nvidia-smi --query-gpu=timestamp,... --format=csv -l 1`, named columns with their units. jetson-stats: the CSV
that people write from `jtop` rows of `jetson.stats`, one a line, named by its header.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from pathlib import PurePath

import numpy as np

from stepscope.arrays import Ints
from stepscope.errors import UsageError
from stepscope.record.log_times import MOST_TIME_S, UnknownUnit, is_plausible_stamp, stamps_in_unix_s
from stepscope.record.meter_csv import UNNAMED, MeterLog, NoReadings, parse_meter_csv
from stepscope.record.sensors.contract import Channel, channel_id

_MLLOG, _POWER_KEYS = ":::MLLOG", ("power_reading",)
_NODE_NAMES = ("node", "node_id", "hostname", "name", "device")  # in the metadata of a line, whose power it is
_MOST_W, _DAY_S, _MOST_NAME = 1e7, 86400.0, 60  # characters: a file is named so


@dataclass(frozen=True)
class MeterReadings:
    """Readings of one meter: Unix ns, its channels, and W a channel (NaN: not read); lines that could not be read."""

    sensor: str
    t_ns: Ints
    channels: tuple[Channel, ...]
    columns: tuple[Sequence[float], ...]
    skipped: int = 0
    notes: tuple[str, ...] = ()


def is_mllog(lines: Sequence[str]) -> bool:
    """Return whether a line is one of MLPerf's logging that states power."""
    return any(_MLLOG in line and f'"{key}"' in line for line in lines for key in _POWER_KEYS)


def read_mllog(text: str, source: str) -> list[MeterReadings]:
    """A meter a node, by the metadata of the lines; `time_ms` counts from 1970. Raises ValueError without a reading."""
    by_node: dict[str, list[tuple[int, float]]] = {}
    skipped = 0
    for line in text.splitlines():
        _, marked, content = line.partition(_MLLOG)
        if not marked or not any(f'"{key}"' in content for key in _POWER_KEYS):
            continue
        try:
            entry = json.loads(content)
            if entry.get("key") not in _POWER_KEYS:
                continue
            about = entry.get("metadata") or {}
            node = next((str(about[name]) for name in _NODE_NAMES if about.get(name) is not None), "node")
            watts = float(entry["value"])
            watts = watts if abs(watts) <= _MOST_W else math.nan
            if not abs(entry["time_ms"]) < MOST_TIME_S * 1e3:
                raise ValueError("a time that is none")
            by_node.setdefault(node, []).append((round(entry["time_ms"] * 1e6), watts))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            skipped += 1
    if not by_node:
        raise ValueError("no line with a power_reading")
    meters = []
    for index, (node, readings) in enumerate(by_node.items()):
        sensor = "mllog" if len(by_node) == 1 else f"mllog-{index}"
        t_ns = np.array([t for t, _ in readings], dtype=np.int64)
        channel = _channel(sensor, _name_for_channel(node), source, "power_reading")
        meters.append(MeterReadings(sensor, t_ns, (channel,), ([w for _, w in readings],), skipped if not index else 0))
    return meters


def is_powersensor(lines: Sequence[str]) -> bool:
    """Return whether this is the dump of a PowerSensor: its first line names the columns."""
    return bool(lines) and lines[0].split()[:3] == ["marker", "time", "dt_micro"]


def read_powersensor(text: str, source: str, started_ns: int | None) -> MeterReadings:
    """Total and pairs of a PowerSensor3; its times count from the start of the dump, which only the user knows."""
    lines = text.splitlines()
    if not is_powersensor(lines):
        raise ValueError("its first line does not begin with: marker time dt_micro")
    head = lines[0].split()
    if started_ns is None:
        raise UsageError(
            f"'{source}': the times of a PowerSensor count from its own start",
            "state when that was: --started 2026-01-31T12:00:00.25",
        )
    samples = [line.split() for line in lines[1:] if line.startswith("S ")]
    rows = [row for cells in samples if (row := _powersensor_row(cells, head)) is not None]
    names = [name for name in head if name.startswith("power")]
    if len(rows) < 2 or not names:
        raise ValueError("no lines of samples with power")
    values = np.array(rows, dtype=np.float64)
    channels = tuple(
        _channel("powersensor3", "powersensor3", source, name)
        if name == "power_total"
        else Channel(channel_id(f"rail:{name}", "power"), "powersensor3", "power", "W", "gauge", f"rail:{name}", source,
                     name, "meter:powersensor3")
        for name in names
    )  # fmt: skip
    at = {name: values[:, index - 1] for index, name in enumerate(head) if index}
    t_ns = started_ns + np.rint(at["time"] * 1e9).astype(np.int64)
    columns, marks = tuple(at[name].tolist() for name in names), sum(line.startswith("M ") for line in lines)
    return MeterReadings("powersensor3", t_ns, channels, columns, len(lines) - 1 - len(rows) - marks)


def _powersensor_row(cells: Sequence[str], head: Sequence[str]) -> list[float] | None:
    """The numbers of a line, without its marker; None where it has others than the head, or a time that is none."""
    try:
        row = [float(cell) for cell in cells[1:]]
    except ValueError:
        return None
    return row if len(cells) == len(head) and abs(row[head.index("time") - 1]) < MOST_TIME_S else None


def is_meter_csv(lines: Sequence[str]) -> bool:
    """Return whether this is a table whose header names a time and a power."""
    try:
        return parse_meter_csv("\n".join(lines)).power_column != UNNAMED
    except (UnknownUnit, NoReadings):  # which whoever reads it is told
        return True
    except ValueError:
        return False


def read_meter_table(
    text: str, source: str, columns: tuple[str | None, str | None], started_ns: int | None, zone: tzinfo | None
) -> MeterReadings:
    """A CSV of times and watts; columns: names of the time and the power column, None where they are to be found.

    Stamps without a zone are of `zone` (None: of this machine). Raises ValueError where it holds no such columns,
    UsageError where its times count from a start that was not given.
    """
    log = parse_meter_csv(text, *columns, lambda stamps: stamps_in_unix_s(stamps, zone))
    name = _name_for_channel(PurePath(source).stem)
    others = ", ".join(f"'{column}'" for column in log.other_columns)
    note = f"{source}: power is column '{log.power_column}'; {others} not read (--power-column NAME takes another)"
    return MeterReadings(
        f"meter_csv-{name}",
        _readings_unix_ns(log, source, started_ns, zone),
        (_channel(f"meter_csv-{name}", name, source, log.power_column),),
        (log.power_w,),
        log.skipped,
        (note,) if others else (),
    )


def _readings_unix_ns(log: MeterLog, source: str, started_ns: int | None, zone: tzinfo | None) -> Ints:
    if not all(abs(t) < MOST_TIME_S for t in log.t_s):
        raise ValueError("a time that is none")
    t_ns: Ints = np.array([round(t * 1e6) * 1000 for t in log.t_s], dtype=np.int64)
    if log.clock == "unix":
        return t_ns
    if started_ns is None:
        raise UsageError(
            f"'{source}': its times have no date, or count from a start of its own",
            "state when that was: --started 2026-01-31T12:00:00.25 (h:m:s near that time of day are times of day)",
        )
    began = datetime.fromtimestamp(started_ns / 1e9, zone)
    of_day = began - began.replace(hour=0, minute=0, second=0, microsecond=0)
    late_s = (log.t_s[0] - of_day.total_seconds() + _DAY_S / 2) % _DAY_S - _DAY_S / 2
    if log.clock == "h:m:s" and abs(late_s) < log.t_s[0] < _DAY_S:  # nearer to that time of day than to 0
        return t_ns - int(t_ns[0]) + started_ns + round(late_s * 1e9)
    return t_ns + started_ns


def _channel(sensor: str, name: str, source: str, column: str) -> Channel:
    """The power of a meter that sees the whole."""
    scope = f"meter:{name}"
    return Channel(channel_id(scope, "power"), sensor, "power", "W", "gauge", scope, source, column, "system")


def _name_for_channel(text: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in text[:_MOST_NAME]) or "meter"


_HEAD = re.compile(r"\s*(?P<name>[a-z][a-z0-9_.]*)\s*(?:\[(?P<unit>[^\]]*)\])?\s*")
_NVIDIA_SMI_NUMBER = re.compile(r"\s*(-?[0-9]{1,15}(?:\.[0-9]{1,9})?)\s*(?P<unit>%|[A-Za-z]*)\s*")
_SCALE = {"W": 1.0, "mW": 1e-3, "%": 0.01, "MHz": 1e6, "GHz": 1e9, "MiB": 1 << 20, "GiB": 1 << 30, "C": 1.0, "": 1.0}
_STAMPS = ("%Y/%m/%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S")
# The query's name, as what a sensor calls it, and its unit where the log is written with `nounits`.
QUANTITIES = {
    **{"power.draw.instant": ("power", "W"), "power.draw": ("power", "W"), "power.draw.average": ("power", "W")},
    **{"utilization.gpu": ("utilisation", "%"), "utilization.memory": ("memory_utilisation", "%")},
    **{"memory.used": ("memory_used", "MiB"), "temperature.gpu": ("temperature", "C")},
    **dict.fromkeys(("clocks.current.sm", "clocks.sm", "clocks.current.graphics", "clocks.gr"), ("frequency", "MHz")),
    **dict.fromkeys(("clocks.current.memory", "clocks.mem"), ("memory_frequency", "MHz")),
}
_IDENTITY = ("index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id")
_MODEL = ("name", "gpu_name")  # which several GPUs of a machine can share


@dataclass(frozen=True)
class NvidiaSmiReading:
    """One line: local time of the machine, which GPU, and values in SI units; NaN is "not read"."""

    stamp: datetime
    gpu: str
    values: dict[str, float]


@dataclass(frozen=True)
class NvidiaSmiLog:
    """All lines in order; `columns` are those that are understood: the query's name of each quantity."""

    readings: tuple[NvidiaSmiReading, ...]
    told_apart: bool  # a reading's `gpu` is of one GPU alone
    columns: dict[str, str]
    skipped: int


def is_nvidia_smi_header(line: str) -> bool:
    """Return whether this is the head of such a log."""
    names = [name for name, _ in _names_and_units(line.split(","))]
    return "timestamp" in names and any(name in QUANTITIES for name in names)


def parse_nvidia_smi(lines: Iterable[str]) -> NvidiaSmiLog:
    """The whole log; raises ValueError where no line is a header that names a time and a quantity."""
    head: list[tuple[str, str]] = []
    readings: list[NvidiaSmiReading] = []
    columns: dict[str, str] = {}
    skipped = 0
    for cells in _split_rows(lines):
        if is_nvidia_smi_header(",".join(cells)):
            head = _names_and_units(cells)
            columns |= _column_by_quantity(head)
        elif head and (reading := _nvidia_smi_reading(head, cells)) is not None:
            readings.append(reading)
        else:
            skipped += bool(cells)
    if not head:
        raise ValueError("no header with 'timestamp' and a quantity such as 'power.draw': write the log with a header")
    return NvidiaSmiLog(tuple(readings), any(name in _IDENTITY for name, _ in head), columns, skipped)


def _split_rows(lines: Iterable[str]) -> Iterator[list[str]]:
    """The cells of each line by itself: a quote that a damaged line does not close ends with it."""
    for line in lines:
        try:
            yield from csv.reader([line.replace("\0", "")])
        except csv.Error:
            yield [line]


def _names_and_units(cells: Iterable[str]) -> list[tuple[str, str]]:
    matches = [_HEAD.fullmatch(cell) for cell in cells]
    return [(match["name"], match["unit"] or "") if match else ("", "") for match in matches]


def _column_by_quantity(head: list[tuple[str, str]]) -> dict[str, str]:
    """The first query of each quantity, in the order of preference of `QUANTITIES`."""
    names = [name for name, _ in head]
    columns: dict[str, str] = {}
    for name, (quantity, _) in QUANTITIES.items():
        if name in names:
            columns.setdefault(quantity, name)
    return columns


def _nvidia_smi_reading(head: list[tuple[str, str]], cells: list[str]) -> NvidiaSmiReading | None:
    if len(cells) != len(head):
        return None
    by_name = {name: (cell, unit) for (name, unit), cell in zip(head, cells, strict=True)}
    stamp = _nvidia_smi_stamp(by_name["timestamp"][0])
    if stamp is None:
        return None
    gpu = next((by_name[name][0].strip() for name in (*_IDENTITY, *_MODEL) if name in by_name), "0")
    quantities = _column_by_quantity(head).items()
    return NvidiaSmiReading(
        stamp, gpu, {quantity: _nvidia_smi_value(*by_name[name], QUANTITIES[name][1]) for quantity, name in quantities}
    )


def _nvidia_smi_value(cell: str, unit_of_head: str, otherwise: str) -> float:
    match = _NVIDIA_SMI_NUMBER.fullmatch(cell)
    if match is None:
        return math.nan
    return float(match[1]) * _SCALE.get(match["unit"] or unit_of_head or otherwise, math.nan)


def _nvidia_smi_stamp(cell: str) -> datetime | None:
    for form in _STAMPS:
        try:
            stamp = datetime.strptime(cell.strip(), form)
        except ValueError:
            continue
        return stamp if is_plausible_stamp(stamp) else None
    return None


OFF_C = -256.0
_JETSON_STATS_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,17})?(?:e-?[0-9]{1,3})?")
_CORE = re.compile(r"CPU([0-9]{1,3})")
_GPU = re.compile(r"GPU([0-9]{0,2})")
_OLD_TOTAL = "power cur"  # of versions before 4


@dataclass(frozen=True)
class Column:
    """Meaning of a column: quantity, scope and unit of the channel, the name that the tool has for it, and a factor."""

    name: str
    quantity: str
    scope: str
    unit: str
    scale: float


@dataclass(frozen=True)
class JetsonStatsLog:
    """All lines in order: local time of the board, and a value a column, NaN where it was not read."""

    stamps: tuple[datetime, ...]
    columns: tuple[Column, ...]
    rows: tuple[tuple[float, ...], ...]
    skipped: int


def is_jetson_stats_header(line: str) -> bool:
    """Return whether this is the head of such a log."""
    names = [cell.strip() for cell in line.split(",")]
    return (
        "time" in names and any(_jetson_stats_column(name) is not None for name in names) and _has_jetson_columns(names)
    )


def parse_jetson_stats(lines: Iterable[str]) -> JetsonStatsLog:
    """The whole log; raises ValueError where it has no header of jetson-stats."""
    reader = _split_rows(lines)
    head = [cell.strip() for cell in next(reader, [])]
    if not is_jetson_stats_header(",".join(head)):
        raise ValueError("no header of jetson-stats ('time', 'CPU1', 'GPU', 'Temp ...', 'Power ...')")
    places = [(place, column) for place, name in enumerate(head) if (column := _jetson_stats_column(name)) is not None]
    time_at = head.index("time")
    stamps: list[datetime] = []
    rows: list[tuple[float, ...]] = []
    skipped = 0
    for cells in reader:
        stamp = _jetson_stats_stamp(cells[time_at]) if len(cells) == len(head) else None
        if stamp is None:
            skipped += bool(cells)
            continue
        stamps.append(stamp)
        rows.append(tuple(_jetson_stats_value(cells[place], column) for place, column in places))
    return JetsonStatsLog(tuple(stamps), tuple(column for _, column in places), tuple(rows), skipped)


def _has_jetson_columns(names: list[str]) -> bool:
    return bool({"uptime", "jetson_clocks", "nvp model", _OLD_TOTAL} & set(names)) or any(
        name.startswith("Power ") for name in names
    )


def _jetson_stats_column(name: str) -> Column | None:
    if (core := _CORE.fullmatch(name)) is not None:
        return Column(name, "utilisation", f"core:{int(core[1]) - 1}", "1", 0.01)
    if (gpu := _GPU.fullmatch(name)) is not None:
        return Column(name, "utilisation", f"gpu:{int(gpu[1] or 0)}", "1", 0.01)
    if name == "EMC":
        return Column(name, "utilisation", "emc", "1", 0.01)
    if name == "RAM":
        return Column(name, "memory_used", "system", "B", 1024.0)
    if name.startswith("Temp "):
        return Column(name[5:], "temperature", f"zone:{name[5:]}", "degC", 1.0)
    if name.startswith("Power ") or name == _OLD_TOTAL:
        rail = "TOT" if name == _OLD_TOTAL else name[6:]
        return Column(rail, "power", f"rail:{rail}", "W", 0.001)
    return None


def _jetson_stats_value(cell: str, column: Column) -> float:
    text = cell.strip()
    if _JETSON_STATS_NUMBER.fullmatch(text) is None:
        return math.nan
    value = float(text)
    if column.quantity == "temperature" and value == OFF_C:
        return math.nan
    if column.quantity == "memory_used" and value <= 1:
        return math.nan  # a share of a total that the log does not state
    return value * column.scale


def _jetson_stats_stamp(cell: str) -> datetime | None:
    """ "2026-01-31 12:00:00.123456", as Python writes a datetime."""
    try:
        stamp = datetime.fromisoformat(cell.strip())
    except ValueError:
        return None
    return stamp if is_plausible_stamp(stamp) else None
