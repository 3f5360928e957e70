"""The CSV of a meter, in whatever dialect its software writes: a time and a power column.

Separators comma, semicolon or tab; decimal point or comma; names and units recognised, a header not needed for two
columns. Times: ISO 8601, unix seconds (ms, us, ns), seconds since the start, a time of day or an elapsed h:m:s.
"""

from __future__ import annotations

import csv
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import groupby, pairwise
from statistics import median
from typing import Literal

# Seconds since 1970 UTC, since some start of the meter's own, or h:m:s: since midnight, or since such a start.
MeterClock = Literal["unix", "own", "h:m:s"]
_SEPARATORS = (";", "\t", ",")
_TIME_NAMES = ("time", "timestamp", "datetime", "date time", "t", "ts", "unix", "elapsed", "seconds", "zeit", "temps")
_POWER_NAMES = ("power", "active power", "apower", "p", "watt", "watts", "leistung", "puissance", "power avg", "pwr")
_VOLTAGE_NAMES, _CURRENT_NAMES = ("voltage", "volts", "u", "v", "spannung"), ("current", "amps", "i", "a", "strom")
_TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_UNITS = {"w": 1.0, "mw": 1e-3, "uw": 1e-6, "kw": 1e3, "v": 1.0, "mv": 1e-3, "a": 1.0, "ma": 1e-3, "ua": 1e-6}
_SPELLED = re.compile(
    r"(kilo|milli|micro|nano|[kmnuµμ])?(?:([swvah]|min)|(sec|second|minute|hour|watt|volt|amp|ampere)s?)"
)
_POWER_UNITS = ("w", "mw", "uw", "kw")
_NO_POWER = {"va", "kva", "var", "kvar", "wh", "mwh", "kwh", "j", "kj", "hp", "megawatt", "megawatts"}
_OTHERS = _NO_POWER | {"%", "dbm", "ps", "d", "day", "days"}
_UNIX = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3), (1e8, 1.0))  # from such a number on, and its unit in s
_HEAD = re.compile(r"(?P<name>[^(\[]*?)[\s_]*(?:[(\[]\s*(?P<unit>[^)\]]*)\s*[)\]])?")
_MEGA = re.compile(r"(?<![A-Za-z])MW(?![A-Za-z])")  # refused: no training takes it, and mW would be a guess
_DAY_S, _HOUR_S, _LONGEST_STEP_S = 86400.0, 3600.0, 120.0  # the step: between readings where a clock repeats an hour
_MOST_W = 1e6


class UnknownUnit(ValueError):
    """A column is in a unit that is not known; the message names both."""


@dataclass(frozen=True)
class MeterLog:
    """Readings in order of time: s on the meter's clock, W; NaN is a reading that could not be understood."""

    t_s: tuple[float, ...]
    power_w: tuple[float, ...]
    clock: MeterClock
    power_column: str
    skipped: int  # rows without a time, or whose time most others contradict
    other_columns: tuple[str, ...] = ()  # of power as well, by their names or units, that were not read


@dataclass(frozen=True)
class _Columns:
    """Places of time and power; without a power column, voltage and current; the factor to W."""

    time: tuple[int, ...]  # one, or a date and a time of day
    time_unit: str
    power: tuple[int, ...]
    factor: float
    name: str
    others: tuple[str, ...] = ()


def parse_meter_csv(
    text: str,
    time_column: str | None = None,
    power_column: str | None = None,
    local: Callable[[Sequence[datetime]], Sequence[float]] | None = None,
) -> MeterLog:
    """Read a log; raises ValueError, in words for the user, where it holds no time and power that can be told apart.

    time_column, power_column: as the header names them, where they are not to be found by their names.
    local: Unix seconds of dated stamps; with it, readings that go back in time are kept in the order of the file.
    """
    lines = [line for line in text.lstrip("\ufeff").splitlines() if line.strip() and not line.lstrip().startswith("#")]
    separator = _separator(lines)
    rows = [_cells(line, separator) for line in lines]
    width = Counter(len(row) for row in rows if len(row) > 1).most_common(1)
    if not width:
        raise ValueError("no line has two columns; expected a time and a power, separated by comma, semicolon or tab")
    rows = [row for row in rows if len(row) == width[0][0]]
    head = None if any(_number(cell, comma) is not None for cell in rows[0] for comma in (False, True)) else rows[0]
    columns = _columns(_renamed(head, time_column, power_column), width[0][0])
    return _log(rows if head is None else rows[1:], columns, len(lines) - len(rows), local)


def _cells(line: str, separator: str) -> list[str]:
    """The cells of a line by itself: a quote that a damaged line does not close ends with it."""
    try:
        row = next(csv.reader([line.replace("\0", "")], delimiter=separator, skipinitialspace=True), [])
    except csv.Error:
        row = line.split(separator)
    return [cell.strip().strip('"').strip() for cell in row]


def _log(
    rows: Sequence[Sequence[str]],
    columns: _Columns,
    skipped: int,
    local: Callable[[Sequence[datetime]], Sequence[float]] | None,
) -> MeterLog:
    texts = [
        [" ".join(row[place] for place in columns.time) for row in rows],
        *([row[place] for row in rows] for place in columns.power),
    ]
    numbers = _numbers(texts)
    times = _times(texts[0], numbers[0], columns.time_unit, local)
    dated = [(place, t_s) for place, t_s in enumerate(times[0]) if t_s is not None]
    dated = _longest_in_order(dated) if local is None else dated
    skipped += len(rows) - len(dated)
    seconds = [t_s for _, t_s in dated]
    watts = [_watts([column[place] for column in numbers[1:]], columns.factor) for place, _ in dated]
    if sum(value == value for value in watts) < 2:
        example = _unread_example(texts, numbers, times[0])
        raise ValueError(f"fewer than two readings with a time and a number in column '{columns.name}'{example}")
    stamps = tuple(_spread_equal_stamps(seconds))
    return MeterLog(stamps, tuple(watts), times[1], columns.name, skipped, columns.others)


def _longest_in_order(stamps: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The most stamps that never go back: one that is far ahead costs itself alone, and none that stands behind it."""
    # From the end: `ends` are the places where series of 1, 2, 3 and so on begin, of each length that with the latest.
    keys: list[float] = []
    ends: list[int] = []
    follows: dict[int, int | None] = {}
    for place in reversed(range(len(stamps))):
        length = bisect_right(keys, -stamps[place][1])
        follows[place] = ends[length - 1] if length else None
        keys[length : length + 1], ends[length : length + 1] = [-stamps[place][1]], [place]
    kept = ends[-1:]
    while kept and (behind := follows[kept[-1]]) is not None:
        kept.append(behind)
    return [stamps[place] for place in kept]


def _unread_example(
    texts: Sequence[Sequence[str]], numbers: Sequence[Sequence[float | None]], times: Sequence[float | None]
) -> str:
    """Return an example of what could not be read: a time, else a number."""
    of_time = (text for text, t_s in zip(texts[0], times, strict=True) if text and t_s is None)
    cells = zip(texts[1:], numbers[1:], strict=True)
    of_power = (text for column, read in cells for text, value in zip(column, read, strict=True) if value is None)
    time, power = next(of_time, None), next(filter(None, of_power), None)
    if time:
        return f"; '{time}' is no time that is known: 2026-05-04 10:00:00, seconds since 1970, h:m:s"
    return f"; '{power}' is no number" if power else ""


def _spread_equal_stamps(t_s: Sequence[float]) -> list[float]:
    """Readings under one stamp, which is coarser than they are apart, evenly over the time until the next one."""
    stamps = [(t, len(list(readings))) for t, readings in groupby(t_s)]
    steps = [later[0] - earlier[0] for earlier, later in pairwise(stamps)]
    usual = median(steps) if steps else 0.0
    return [
        t + place / count * max(min(step, usual), 0.0)
        for (t, count), step in zip(stamps, [*steps, usual], strict=True)
        for place in range(count)
    ]


def _watts(values: Sequence[float | None], factor: float) -> float:
    product = factor
    for value in values:
        product *= math.nan if value is None else value
    return product if abs(product) <= _MOST_W else math.nan


def _separator(lines: Sequence[str]) -> str:
    """The first of the separators that most lines have."""
    for separator in _SEPARATORS:
        if sum(separator in line for line in lines) > len(lines) / 2:
            return separator
    return ","


def _number_pattern(thousands: str, decimal: str) -> re.Pattern[str]:
    whole = rf"(?:[0-9]{{1,20}}|[1-9][0-9]{{0,2}}(?:{thousands}[0-9]{{3}}){{1,6}})"
    return re.compile(rf"[+-]?(?:{whole}(?:{decimal}[0-9]{{0,20}})?|{decimal}[0-9]{{1,20}})(?:[eE][+-]?[0-9]{{1,2}})?")


_POINT, _COMMA = _number_pattern(",", r"\."), _number_pattern(r"\.", ",")  # 1,234.5 and 1.234,5; 1,234 is either


def _number(cell: str, comma: bool) -> float | None:
    """A number in the decimal style of its column; None where the cell is none."""
    if not (_COMMA if comma else _POINT).fullmatch(cell):
        return None
    return float(cell.replace(".", "").replace(",", ".") if comma else cell.replace(",", ""))


def _numbers(columns: Sequence[Sequence[str]]) -> list[list[float | None]]:
    """The numbers of each column, in the style that its cells can be written in alone, else in that of the others.

    Raises ValueError where a column has both styles, or a comma that can be of either.
    """
    styles = [_decimal_comma(cells) for cells in columns]
    of_others = next((style for style in styles if style is not None), None)
    numbers = []
    for cells, own in zip(columns, styles, strict=True):
        comma = of_others if own is None else own
        unclear = next((cell for cell in cells if "," in cell and _POINT.fullmatch(cell)), None)
        if comma is None and unclear:
            raise ValueError(f"'{unclear}' can have a decimal comma or a thousands separator: write a decimal point")
        numbers.append([_number(cell, bool(comma)) for cell in cells])
    return numbers


def _decimal_comma(cells: Sequence[str]) -> bool | None:
    """Return whether numbers are written 1,5 or 1.234,5; None where all can be read either way."""
    point = next((cell for cell in cells if _POINT.fullmatch(cell) and not _COMMA.fullmatch(cell)), None)
    comma = next((cell for cell in cells if _COMMA.fullmatch(cell) and not _POINT.fullmatch(cell)), None)
    if point and comma:
        raise ValueError(f"one column has '{point}' and '{comma}': write all its numbers with a decimal point")
    return None if point is None and comma is None else comma is not None


def _renamed(head: Sequence[str] | None, time_column: str | None, power_column: str | None) -> Sequence[str] | None:
    """The header with the columns that were named called time and power, with their units, and no other so."""
    stated = {name: as_ for name, as_ in ((time_column, "time"), (power_column, "power")) if name is not None}
    if not stated:
        return head
    lower = [cell.lower() for cell in head or ()]
    unknown = [name for name in stated if name.lower() not in lower]
    if unknown:
        raise ValueError(f"no column '{unknown[0]}'" + (f" among: {', '.join(head)}" if head else ": it has no header"))
    places = {lower.index(name.lower()): as_ for name, as_ in stated.items()}
    renamed = []
    for index, cell in enumerate(head or ()):
        name, unit = _named(cell)
        if index in places:
            renamed.append(f"{places[index]} ({unit})" if unit else places[index])
        else:
            other_time = time_column is not None and name in _TIME_NAMES
            other_power = power_column is not None and _is_power(name, unit)
            renamed.append("" if other_time or other_power else cell)
    return renamed


def _columns(head: Sequence[str] | None, width: int) -> _Columns:
    if head is None:
        if width != 2:
            raise ValueError(f"{width} columns and no header: name them, for example: time,power")
        return _Columns((0,), "", (1,), 1.0, "column 2")
    named = [_named(cell) for cell in head]
    time = _find(named, _TIME_NAMES, _TIME_UNITS)
    date = _find(named, ("date", "datum", "day"), {})
    if time is None and date is None:
        raise ValueError(f"no time column among: {', '.join(head)}; name one of them 'time'")
    places = tuple(place for place in (date, time) if place is not None)
    unit = named[places[-1]][1] if date is None else ""
    power = _find(named, _POWER_NAMES, _POWER_UNITS)
    if power is not None:
        others = tuple(cell for place, cell in enumerate(head) if place != power and _is_power(*named[place]))
        return _Columns(places, unit, (power,), _factor(*named[power], _UNITS), head[power], others)
    voltage, current = _find(named, _VOLTAGE_NAMES, ("v", "mv")), _find(named, _CURRENT_NAMES, ("a", "ma", "ua"))
    if voltage is None or current is None:
        raise ValueError(f"no power column among: {', '.join(head)}; name one of them 'power' (W)")
    factor = _factor(*named[voltage], _UNITS) * _factor(*named[current], _UNITS)
    return _Columns(places, unit, (voltage, current), factor, f"{head[voltage]} x {head[current]}")


def _is_power(name: str, unit: str) -> bool:
    return name in _POWER_NAMES or unit in _POWER_UNITS


def _factor(column: str, unit: str, known: Mapping[str, float]) -> float:
    """The factor of a column's unit to SI, 1 where none is stated."""
    if unit and unit not in known:
        raise UnknownUnit(f"the unit '{unit}' of the column '{column}' is not known; known are {', '.join(known)}")
    return known.get(unit, 1.0)


def _named(cell: str) -> tuple[str, str]:
    """Name and unit of a column in lower case: "Power (mW)", "power_milliwatts", "P [W]", "mW"."""
    cell = _MEGA.sub("megawatts", cell)
    matched = _HEAD.fullmatch(cell)
    name = (matched["name"] if matched else cell).strip().lower().replace("_", " ")
    unit = _unit((matched["unit"] if matched else None) or "")
    stem, _, last = name.rpartition(" ")
    symbol = last if last in _NO_POWER else _symbol(last)
    if not unit and (
        symbol in _NO_POWER or symbol in _UNITS or (symbol in _TIME_UNITS and stem not in _POWER_NAMES)
    ):  # "power min" is a least
        name, unit = stem or name, symbol
    return name, unit


def _unit(bracket: str) -> str:
    """The unit that a header has in brackets: "W", "W RMS", "sec."; none in what tells something else, as "avg"."""
    first = next(iter(bracket.lower().split()), "").rstrip(".")
    symbol = _symbol(first)
    return symbol if symbol in _UNITS or symbol in _TIME_UNITS or first in _OTHERS or _SPELLED.fullmatch(first) else ""


def _symbol(unit: str) -> str:
    """A unit as the tables have it: "milliwatts" as "mw", "minutes" as "min", with either letter µ as "u"."""
    spelled = _SPELLED.fullmatch(unit)
    if spelled is None:
        return unit
    prefix, symbol, word = (group or "" for group in spelled.groups())
    symbol = symbol or ("min" if word == "minute" else word[0])
    return ("u" if prefix in ("micro", "µ", "μ") else prefix[:1]) + symbol


def _find(
    named: Sequence[tuple[str, str]], names: Sequence[str], units: Sequence[str] | dict[str, float]
) -> int | None:
    """The first column of one of these names, else the only one in one of these units."""
    for wanted in names:
        for index, (name, _) in enumerate(named):
            if name == wanted:
                return index
    fitting = [index for index, (_, unit) in enumerate(named) if unit in units]
    return fitting[0] if len(fitting) == 1 else None


def _times(
    cells: Sequence[str],
    numbers: Sequence[float | None],
    unit: str,
    local: Callable[[Sequence[datetime]], Sequence[float]] | None,
) -> tuple[list[float | None], MeterClock]:
    """Seconds of every cell, None where it is no time, and the clock that they are of."""
    first = next((number for number in numbers if number is not None), None)
    if first is not None:
        scale = next((factor for least, factor in _UNIX if abs(first) >= least), None)
        if scale is None or (unit in _TIME_UNITS and first * _TIME_UNITS[unit] < 1e10):
            scale = _factor("time", unit, _TIME_UNITS)
        clock: MeterClock = "unix" if first * scale >= 1e8 else "own"
        return [None if number is None else number * scale for number in numbers], clock
    stamps = [_stamp(cell) for cell in cells]
    if any(isinstance(stamp, datetime) for stamp in stamps):
        dated = [stamp for stamp in stamps if isinstance(stamp, datetime)]
        if local is not None:
            known = iter(local(dated))
            return [next(known) if isinstance(stamp, datetime) else None for stamp in stamps], "unix"
        clock = "unix" if all(stamp.tzinfo is not None for stamp in dated) else "own"
        seconds = [_seconds(stamp) if isinstance(stamp, datetime) else None for stamp in stamps]
        return seconds if clock == "unix" else _continue_past_repeated_hour(seconds), clock
    of_day = _continue_past_midnight([stamp if isinstance(stamp, float) else None for stamp in stamps])
    return _continue_past_repeated_hour(of_day), "h:m:s"


def _seconds(stamp: datetime) -> float:
    """Seconds since 1970; a stamp without a zone is counted as UTC, on a clock that is then the meter's own."""
    known = stamp if stamp.tzinfo is not None else stamp.replace(tzinfo=timezone.utc)
    return (known - datetime(1970, 1, 1, tzinfo=timezone.utc)) / timedelta(seconds=1)


def _stamp(cell: str) -> datetime | float | None:
    """A date and time, or the seconds of a time of day or of an elapsed h:m:s."""
    day = re.fullmatch(r"(\d{1,3}):(\d{2})(?::(\d{2}(?:[.,]\d{1,9})?))?", cell, re.ASCII)
    if day is not None:
        return int(day[1]) * 3600.0 + int(day[2]) * 60.0 + float((day[3] or "0").replace(",", "."))
    text = re.sub(r"^(\d{1,2})\.(\d{1,2})\.(\d{4})", lambda m: f"{m[3]}-{int(m[2]):02d}-{int(m[1]):02d}", cell)
    text = re.sub(r"Z$", "+00:00", text.replace("/", "-"))
    text = re.sub(r"[.,](\d{1,9})", lambda m: f".{m[1][:6]:0<6}", text, count=1)  # Python 3.10 wants six digits
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _continue_past_repeated_hour(seconds: Sequence[float | None]) -> list[float | None]:
    """Stamps that go back by an hour, since summer time ends, go on; not around some that are an hour wrong."""
    shift, last, turned = 0.0, math.nan, -math.inf
    known: list[float | None] = []
    for value in seconds:
        if value is not None:
            step = value + shift - last
            if 0 <= step + _HOUR_S <= _LONGEST_STEP_S and last - turned > _HOUR_S:
                shift += _HOUR_S
            elif shift and 0 <= step - _HOUR_S <= _LONGEST_STEP_S and last - turned <= _HOUR_S:
                shift -= _HOUR_S
            if abs(step) > _HOUR_S / 2:
                turned = value + shift
            last = value + shift
        known.append(None if value is None else value + shift)
    return known


def _continue_past_midnight(seconds: Sequence[float | None]) -> list[float | None]:
    """Times of day that pass midnight go on beyond 24 h."""
    shift, last = 0.0, -math.inf
    known: list[float | None] = []
    for value in seconds:
        if value is not None:
            if value + shift < last - _DAY_S / 2:
                shift += _DAY_S
            last = value + shift
        known.append(None if value is None else value + shift)
    return known
