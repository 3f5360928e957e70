"""Logs of meters as rails: MLPerf's `power_reading` lines, dumps of PowerSensor3, and any CSV of times and watts."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import PurePath

import numpy as np

from stepscope.arrays import Ints
from stepscope.errors import UsageError
from stepscope.record.access.probes import channel_id
from stepscope.record.meter_log import MeterLog, parse_meter_csv
from stepscope.record.sensors.contract import Channel

_MLLOG, _POWER_KEYS = ":::MLLOG", ("power_reading",)
_NODE_NAMES = ("node", "node_id", "hostname", "name", "device")  # in the metadata of a line, whose power it is
_MOST_W = 1e7
_MOST_S = 9e9  # later than the year 2200: no time
_DATED_S = 1e8  # from so many seconds on a time counts from 1970


@dataclass(frozen=True)
class MeterReadings:
    """Readings of one meter: Unix ns, its channels, and W a channel (NaN: not read); lines that could not be read."""

    sensor: str
    t_ns: Ints
    channels: tuple[Channel, ...]
    columns: tuple[Sequence[float], ...]
    skipped: int = 0


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
            if not abs(entry["time_ms"]) < _MOST_S * 1e3:
                raise ValueError("a time that is none")
            by_node.setdefault(node, []).append((round(entry["time_ms"] * 1e6), watts if _sound(watts) else math.nan))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            skipped += 1
    if not by_node:
        raise ValueError("no line with a power_reading")
    made = []
    for place, (node, readings) in enumerate(by_node.items()):
        sensor = "mllog" if len(by_node) == 1 else f"mllog-{place}"
        t_ns = np.array([t for t, _ in readings], dtype=np.int64)
        channel = _channel(sensor, _word(node), source, "power_reading")
        made.append(MeterReadings(sensor, t_ns, (channel,), ([w for _, w in readings],), skipped if not place else 0))
    return made


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
            "say when that was: --started 2026-01-31T12:00:00.25",
        )
    rows = [cells for line in lines[1:] if line.startswith("S ") and len(cells := line.split()) == len(head)]
    values = np.array([row[1:] for row in rows], dtype=np.float64).reshape(len(rows), len(head) - 1)
    names = [name for name in head if name.startswith("power")]
    if len(rows) < 2 or not names:
        raise ValueError("no lines of samples with power")
    whole = f"meter:{_word('powersensor3')}"
    channels = tuple(
        _channel("powersensor3", "powersensor3", source, name)
        if name == "power_total"
        else Channel(channel_id(f"rail:{name}", "power"), "powersensor3", "power", "W", "gauge", f"rail:{name}", source,
                     name, whole)
        for name in names
    )  # fmt: skip
    at = {name: values[:, place - 1] for place, name in enumerate(head) if place}
    if not (np.abs(at["time"]) < _MOST_S).all():
        raise ValueError("a time that is none")
    t_ns = started_ns + np.rint(at["time"] * 1e9).astype(np.int64)
    marks = sum(line.startswith("M ") for line in lines)
    skipped = len(lines) - 1 - len(rows) - marks
    return MeterReadings("powersensor3", t_ns, channels, tuple(at[name].tolist() for name in names), skipped)


def is_meter_csv(lines: Sequence[str]) -> bool:
    """Return whether this is a table whose header names a time and a power."""
    try:
        return parse_meter_csv("\n".join(lines)).power_column != "column 2"
    except ValueError:
        return False


def read_meter_table(
    text: str, source: str, columns: tuple[str | None, str | None], started_ns: int | None, zone: tzinfo | None
) -> MeterReadings:
    """A CSV of times and watts; columns: names of the time and the power column, None where they are to be found.

    Stamps without a zone are of `zone` (None: of this machine). Raises ValueError where it holds no such columns,
    UsageError where its times count from a start that was not given.
    """
    log = parse_meter_csv(text, *columns)
    name = _word(PurePath(source).stem)
    return MeterReadings(
        f"meter_csv-{name}",
        _unix_ns(log, source, started_ns, zone),
        (_channel(f"meter_csv-{name}", name, source, log.power_column),),
        (log.power_w,),
        log.skipped,
    )


def _unix_ns(log: MeterLog, source: str, started_ns: int | None, zone: tzinfo | None) -> Ints:
    if not all(abs(t) < _MOST_S for t in log.t_s):
        raise ValueError("a time that is none")
    t_ns = np.array([round(t * 1e6) * 1000 for t in log.t_s], dtype=np.int64)
    if log.clock == "unix":
        return t_ns
    if log.t_s[0] >= _DATED_S:  # a date without a zone, counted as UTC
        naive = datetime(1970, 1, 1) + timedelta(seconds=log.t_s[0])
        known = naive.replace(tzinfo=zone) if zone is not None else naive.astimezone()
        return t_ns + round((known - naive.replace(tzinfo=timezone.utc)).total_seconds() * 1e9)
    if started_ns is None:
        raise UsageError(
            f"'{source}': its times count from a start of its own",
            "say when that was: --started 2026-01-31T12:00:00.25",
        )
    return t_ns + started_ns


def _channel(sensor: str, name: str, source: str, column: str) -> Channel:
    """The power of a meter that sees the whole."""
    scope = f"meter:{name}"
    return Channel(channel_id(scope, "power"), sensor, "power", "W", "gauge", scope, source, column, "system")


def _word(text: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in text) or "meter"


def _sound(watts: float) -> bool:
    return abs(watts) <= _MOST_W
