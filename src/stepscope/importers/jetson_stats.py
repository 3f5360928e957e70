"""The CSV that people write with jetson-stats: `jtop` rows of `jetson.stats`, one a line, named by its header."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

OFF_C = -256.0
_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,17})?(?:e-?[0-9]{1,3})?")
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


def is_header(line: str) -> bool:
    """Return whether this is the head of such a log."""
    names = [cell.strip() for cell in line.split(",")]
    return "time" in names and any(_column(name) is not None for name in names) and _own_words(names)


def parse(lines: Iterable[str]) -> JetsonStatsLog:
    """The whole log; raises ValueError where it has no header of jetson-stats."""
    reader = csv.reader(line.replace("\0", "") for line in lines)
    head = [cell.strip() for cell in next(reader, [])]
    if not is_header(",".join(head)):
        raise ValueError("no header of jetson-stats ('time', 'CPU1', 'GPU', 'Temp ...', 'Power ...')")
    places = [(place, column) for place, name in enumerate(head) if (column := _column(name)) is not None]
    time_at = head.index("time")
    stamps: list[datetime] = []
    rows: list[tuple[float, ...]] = []
    skipped = 0
    for cells in reader:
        stamp = _stamp(cells[time_at]) if len(cells) == len(head) else None
        if stamp is None:
            skipped += bool(cells)
            continue
        stamps.append(stamp)
        rows.append(tuple(_value(cells[place], column) for place, column in places))
    return JetsonStatsLog(tuple(stamps), tuple(column for _, column in places), tuple(rows), skipped)


def _own_words(names: list[str]) -> bool:
    return bool({"uptime", "jetson_clocks", "nvp model", _OLD_TOTAL} & set(names)) or any(
        name.startswith("Power ") for name in names
    )


def _column(name: str) -> Column | None:
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


def _value(cell: str, column: Column) -> float:
    text = cell.strip()
    if _NUMBER.fullmatch(text) is None:
        return math.nan
    value = float(text)
    if column.quantity == "temperature" and value == OFF_C:
        return math.nan
    if column.quantity == "memory_used" and value <= 1:
        return math.nan  # a share of a total that the log does not state
    return value * column.scale


def _stamp(cell: str) -> datetime | None:
    """ "2026-01-31 12:00:00.123456", as Python writes a datetime."""
    try:
        return datetime.fromisoformat(cell.strip())
    except ValueError:
        return None
