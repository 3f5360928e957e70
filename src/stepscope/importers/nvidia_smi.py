"""The CSV log of `nvidia-smi --query-gpu=timestamp,... --format=csv -l 1`: named columns with their units."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

_HEAD = re.compile(r"\s*(?P<name>[a-z][a-z0-9_.]*)\s*(?:\[(?P<unit>[^\]]*)\])?\s*")
_NUMBER = re.compile(r"\s*(-?[0-9]{1,15}(?:\.[0-9]{1,9})?)\s*(?P<unit>%|[A-Za-z]*)\s*")
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
_IDENTITY = ("index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "name", "gpu_name")


@dataclass(frozen=True)
class Reading:
    """One line: local time of the machine, which GPU, and values in SI units; NaN is "not read"."""

    stamp: datetime
    gpu: str
    values: dict[str, float]


@dataclass(frozen=True)
class NvidiaSmiLog:
    """All lines in order; `columns` are those that are understood: the query's name of each quantity."""

    readings: tuple[Reading, ...]
    columns: dict[str, str]
    skipped: int


def is_header(line: str) -> bool:
    """Return whether this is the head of such a log."""
    names = [name for name, _ in _named(line.split(","))]
    return "timestamp" in names and any(name in QUANTITIES for name in names)


def parse(lines: Iterable[str]) -> NvidiaSmiLog:
    """The whole log; raises ValueError where no line is a header that names a time and a quantity."""
    head: list[tuple[str, str]] = []
    readings: list[Reading] = []
    columns: dict[str, str] = {}
    skipped = 0
    for cells in csv.reader(line.replace("\0", "") for line in lines):
        if is_header(",".join(cells)):
            head = _named(cells)
            columns |= _quantities(head)
        elif head and (reading := _reading(head, cells)) is not None:
            readings.append(reading)
        else:
            skipped += bool(cells)
    if not head:
        raise ValueError("no header with 'timestamp' and a quantity such as 'power.draw': write the log with a header")
    return NvidiaSmiLog(tuple(readings), columns, skipped)


def _named(cells: Iterable[str]) -> list[tuple[str, str]]:
    matches = [_HEAD.fullmatch(cell) for cell in cells]
    return [(match["name"], match["unit"] or "") if match else ("", "") for match in matches]


def _quantities(head: list[tuple[str, str]]) -> dict[str, str]:
    """The first query of each quantity, in the order of preference of `QUANTITIES`."""
    names = [name for name, _ in head]
    found: dict[str, str] = {}
    for name, (quantity, _) in QUANTITIES.items():
        if name in names:
            found.setdefault(quantity, name)
    return found


def _reading(head: list[tuple[str, str]], cells: list[str]) -> Reading | None:
    if len(cells) != len(head):
        return None
    by_name = {name: (cell, unit) for (name, unit), cell in zip(head, cells, strict=True)}
    stamp = _stamp(by_name["timestamp"][0])
    if stamp is None:
        return None
    gpu = next((by_name[name][0].strip() for name in _IDENTITY if name in by_name), "0")
    quantities = _quantities(head).items()
    return Reading(stamp, gpu, {quantity: _value(*by_name[name], QUANTITIES[name][1]) for quantity, name in quantities})


def _value(cell: str, unit_of_head: str, otherwise: str) -> float:
    match = _NUMBER.fullmatch(cell)
    if match is None:
        return math.nan
    return float(match[1]) * _SCALE.get(match["unit"] or unit_of_head or otherwise, math.nan)


def _stamp(cell: str) -> datetime | None:
    for form in _STAMPS:
        try:
            return datetime.strptime(cell.strip(), form)
        except ValueError:
            continue
    return None
