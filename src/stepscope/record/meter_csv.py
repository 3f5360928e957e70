"""The CSV of a meter, in whatever dialect its software writes: a time and a power column.

Separators comma, semicolon or tab; decimal point or comma; names and units recognised, a header not needed for two
columns. Times: ISO 8601, unix seconds (ms, us, ns), seconds since the start, a time of day or an elapsed h:m:s.
"""

from __future__ import annotations

import codecs
import csv
import math
import re
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, groupby, pairwise
from pathlib import Path
from statistics import median

from stepscope.errors import UsageError
from stepscope.record.log_times import TIME_UNITS, MeterClock, UnknownUnit, meter_times, unit_factor

_SEPARATORS = (";", "\t", ",")
_TIME_NAMES = ("time", "timestamp", "datetime", "date time", "t", "ts", "unix", "elapsed", "seconds", "zeit", "temps")
_POWER_NAMES = ("power", "active power", "apower", "p", "watt", "watts", "leistung", "puissance", "power avg", "pwr")
_VOLTAGE_NAMES, _CURRENT_NAMES = ("voltage", "volts", "u", "v", "spannung"), ("current", "amps", "i", "a", "strom")
_UNITS = {"w": 1.0, "mw": 1e-3, "uw": 1e-6, "kw": 1e3, "v": 1.0, "mv": 1e-3, "a": 1.0, "ma": 1e-3, "ua": 1e-6}
_SPELLED = re.compile(
    r"(kilo|milli|micro|nano|[kmnuµμ])?(?:([swvah]|min)|(sec|second|minute|hour|watt|volt|amp|ampere)s?)"
)
_POWER_UNITS = ("w", "mw", "uw", "kw")
_NO_POWER = {"va", "kva", "var", "kvar", "wh", "mwh", "kwh", "j", "kj", "hp", "megawatt", "megawatts"}
_OTHERS = _NO_POWER | {"%", "dbm", "ps", "d", "day", "days"}
_HEAD = re.compile(r"(?P<name>[^(\[]*?)[\s_]*(?:[(\[]\s*(?P<unit>[^)\]]*)\s*[)\]])?")
_MEGA = re.compile(r"(?<![A-Za-z])MW(?![A-Za-z])")  # refused: no training takes it, and mW would be a guess
_MOST_W = 1e6
_MOST_DC_V = 60.0  # beyond it volts are those of a mains socket, whose product with amperes is no power
_LARGEST_LOG = 1 << 30
UNNAMED = "column 2"  # of a table of two columns without a header


class NoReadings(ValueError):
    """The header names a time and a power, and fewer than two rows hold them; the message says what one holds."""


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
    volts: float | None = None  # the factor of the voltage to V, where power is a product


def read_log_text(path: Path) -> str:
    """The lines of a log, without a last one that has no end yet; UsageError where it is larger than 1 GiB."""
    try:
        if path.stat().st_size > _LARGEST_LOG:
            raise UsageError(f"'{path}' is larger than 1 GiB", "cut the log to the time of the training")
        text = decode_log(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read '{path}': {error.strerror or error}", "check the path of the log") from error
    return text.rpartition("\n")[0] or text


def decode_log(content: bytes) -> str:
    """The text of a log: UTF-8, or UTF-16 where it says so, as what PowerShell writes."""
    encoding = "utf-16" if content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
    return content.decode(encoding, errors="replace")


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
    separator = _detect_separator(lines)
    widths = Counter(len(_split_cells(line, separator)) for line in lines)
    del widths[0], widths[1]
    if not widths:
        raise ValueError("no line has two columns; expected a time and a power, separated by comma, semicolon or tab")
    ((width, count),) = widths.most_common(1)
    rows = (
        row for line in lines if len(row := _split_cells(line, separator)) == width
    )  # of which two cells each are kept
    first = next(rows)
    head = (
        None if any(not math.isnan(_parse_number(cell, comma)) for cell in first for comma in (False, True)) else first
    )
    columns = _detect_columns(_rename_chosen_columns(head, time_column, power_column), width)
    texts: list[list[str]] = [[] for _ in (columns.time, *columns.power)]
    for row in rows if head is not None else chain([first], rows):
        texts[0].append(" ".join(row[place] for place in columns.time))
        for column, place in zip(texts[1:], columns.power, strict=True):
            column.append(row[place])
    skipped = len(lines) - count
    lines.clear()  # a log of millions of readings is not to be in memory twice
    return _log_of_columns(texts, columns, skipped, local)


def _split_cells(line: str, separator: str) -> list[str]:
    """The cells of a line by itself: a quote that a damaged line does not close ends with it."""
    if '"' not in line:
        return [cell.strip() for cell in line.replace("\0", "").split(separator)]
    try:
        row = next(csv.reader([line.replace("\0", "")], delimiter=separator, skipinitialspace=True), [])
    except csv.Error:
        row = line.split(separator)
    return [cell.strip().strip('"').strip() for cell in row]


def _log_of_columns(
    texts: Sequence[Sequence[str]],
    columns: _Columns,
    skipped: int,
    local: Callable[[Sequence[datetime]], Sequence[float]] | None,
) -> MeterLog:
    """The readings of a column of times and one or two of power."""
    numbers = _parse_numbers(texts)
    if columns.volts is not None:
        _refuse_mains_voltage(columns, numbers[1])
    times, clock = meter_times(texts[0], numbers[0], columns.time_unit, local)
    dated = array("q", (row for row, t_s in enumerate(times) if not math.isnan(t_s)))
    seconds = array("d", (times[row] for row in dated))
    if local is None and any(earlier > later for earlier, later in pairwise(seconds)):
        order = _longest_in_order(seconds)
        dated, seconds = array("q", (dated[place] for place in order)), array("d", (seconds[place] for place in order))
    watts = array("d", (_product_in_watts([column[row] for column in numbers[1:]], columns.factor) for row in dated))
    if sum(value == value for value in watts) < 2:
        example = _unread_example(texts, numbers, times)
        error = ValueError if columns.name == UNNAMED else NoReadings
        raise error(f"fewer than two readings with a time and a number in column '{columns.name}'{example}")
    skipped += len(texts[0]) - len(dated)
    return MeterLog(tuple(_spread_equal_stamps(seconds)), tuple(watts), clock, columns.name, skipped, columns.others)


def _refuse_mains_voltage(columns: _Columns, voltages: Sequence[float]) -> None:
    volts = [abs(value) * (columns.volts or 1.0) for value in voltages if not math.isnan(value)]
    if volts and median(volts) > _MOST_DC_V:
        raise UnknownUnit(
            f"{columns.name} at {median(volts):g} V are volt-amperes of the mains, not watts: log the meter's power"
        )


def _longest_in_order(seconds: Sequence[float]) -> list[int]:
    """Places of the most times that never go back: one that is far ahead costs itself alone, and none behind it."""
    # From the end: `ends` are the places where series of 1, 2, 3 and so on begin, of each length that with the latest.
    keys: list[float] = []
    ends: list[int] = []
    follows: dict[int, int | None] = {}
    for place in reversed(range(len(seconds))):
        length = bisect_right(keys, -seconds[place])
        follows[place] = ends[length - 1] if length else None
        keys[length : length + 1], ends[length : length + 1] = [-seconds[place]], [place]
    places = ends[-1:]
    while places and (behind := follows[places[-1]]) is not None:
        places.append(behind)
    return places


def _unread_example(texts: Sequence[Sequence[str]], numbers: Sequence[Sequence[float]], times: Sequence[float]) -> str:
    """Return an example of what could not be read: a time, else a number."""
    of_time = (text for text, t_s in zip(texts[0], times, strict=True) if text and math.isnan(t_s))
    cells = zip(texts[1:], numbers[1:], strict=True)
    of_power = (text for column, read in cells for text, value in zip(column, read, strict=True) if math.isnan(value))
    time, power = next(of_time, None), next(filter(None, of_power), None)
    if time:
        return f"; '{time}' is not a known time format: 2026-05-04 10:00:00, seconds since 1970, h:m:s"
    return f"; '{power}' is not a number" if power else ""


def _spread_equal_stamps(t_s: Sequence[float]) -> list[float]:
    """Readings under one stamp, which is coarser than they are apart, evenly over the time until the next one."""
    stamps = array("d", (t for t, _ in groupby(t_s)))
    steps = array("d", (later - earlier for earlier, later in pairwise(stamps)))
    usual = median(steps) if steps else 0.0
    return [
        t + place / count * max(min(step, usual), 0.0)
        for (t, readings), step in zip(groupby(t_s), chain(steps, (usual,)), strict=True)
        for count in (sum(1 for _ in readings),)
        for place in range(count)
    ]


def _product_in_watts(values: Sequence[float], factor: float) -> float:
    product = factor
    for value in values:
        product *= value
    return product if abs(product) <= _MOST_W else math.nan


def _detect_separator(lines: Sequence[str]) -> str:
    """The first of the separators that most lines have."""
    for separator in _SEPARATORS:
        if sum(separator in line for line in lines) > len(lines) / 2:
            return separator
    return ","


def _number_pattern(thousands: str, decimal: str) -> re.Pattern[str]:
    whole = rf"(?:[0-9]{{1,20}}|[1-9][0-9]{{0,2}}(?:{thousands}[0-9]{{3}}){{1,6}})"
    return re.compile(rf"[+-]?(?:{whole}(?:{decimal}[0-9]{{0,20}})?|{decimal}[0-9]{{1,20}})(?:[eE][+-]?[0-9]{{1,2}})?")


_POINT, _COMMA = _number_pattern(",", r"\."), _number_pattern(r"\.", ",")  # 1,234.5 and 1.234,5; 1,234 is either


def _parse_number(cell: str, comma: bool) -> float:
    """A number in the decimal style of its column; NaN where the cell is none."""
    if not (_COMMA if comma else _POINT).fullmatch(cell):
        return math.nan
    return float(cell.replace(".", "").replace(",", ".") if comma else cell.replace(",", ""))


def _parse_numbers(columns: Sequence[Sequence[str]]) -> list[array[float]]:
    """The numbers of each column, in the style that its cells can be written in alone, else in that of the others.

    Raises ValueError where a column has both styles, or a comma that can be of either.
    """
    styles = [_uses_decimal_comma(cells) for cells in columns]
    of_others = next((style for style in styles if style is not None), None)
    numbers = []
    for cells, own in zip(columns, styles, strict=True):
        comma = of_others if own is None else own
        unclear = next((cell for cell in cells if "," in cell and _POINT.fullmatch(cell)), None)
        if comma is None and unclear:
            raise ValueError(f"'{unclear}' can have a decimal comma or a thousands separator: write a decimal point")
        numbers.append(array("d", (_parse_number(cell, bool(comma)) for cell in cells)))
    return numbers


def _uses_decimal_comma(cells: Sequence[str]) -> bool | None:
    """Return whether numbers are written 1,5 or 1.234,5; None where all can be read either way."""
    point = next((cell for cell in cells if _POINT.fullmatch(cell) and not _COMMA.fullmatch(cell)), None)
    comma = next((cell for cell in cells if _COMMA.fullmatch(cell) and not _POINT.fullmatch(cell)), None)
    if point and comma:
        raise ValueError(f"one column has '{point}' and '{comma}': write all its numbers with a decimal point")
    return None if point is None and comma is None else comma is not None


def _rename_chosen_columns(
    head: Sequence[str] | None, time_column: str | None, power_column: str | None
) -> Sequence[str] | None:
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
        name, unit = _name_and_unit(cell)
        if index in places:
            renamed.append(f"{places[index]} ({unit})" if unit else places[index])
        else:
            other_time = time_column is not None and name in _TIME_NAMES
            other_power = power_column is not None and _is_power(name, unit)
            renamed.append("" if other_time or other_power else cell)
    return renamed


def _detect_columns(head: Sequence[str] | None, width: int) -> _Columns:
    if head is None:
        if width != 2:
            raise ValueError(f"{width} columns and no header: name them, for example: time,power")
        return _Columns((0,), "", (1,), 1.0, UNNAMED)
    named = [_name_and_unit(cell) for cell in head]
    time = _find_column(named, _TIME_NAMES, TIME_UNITS)
    date = _find_column(named, ("date", "datum", "day"), {})
    if time is None and date is None:
        raise ValueError(f"no time column among: {', '.join(head)}; name one of them 'time'")
    places = tuple(place for place in (date, time) if place is not None)
    unit = named[places[-1]][1] if date is None else ""
    power = _find_column(named, _POWER_NAMES, _POWER_UNITS)
    if power is not None:
        others = tuple(cell for place, cell in enumerate(head) if place != power and _is_power(*named[place]))
        return _Columns(places, unit, (power,), unit_factor(*named[power], _UNITS), head[power], others)
    voltage, current = (
        _find_column(named, _VOLTAGE_NAMES, ("v", "mv")),
        _find_column(named, _CURRENT_NAMES, ("a", "ma", "ua")),
    )
    if voltage is None or current is None:
        raise ValueError(f"no power column among: {', '.join(head)}; name one of them 'power' (W)")
    volts, amperes = unit_factor(*named[voltage], _UNITS), unit_factor(*named[current], _UNITS)
    name = f"{head[voltage]} x {head[current]}"
    return _Columns(places, unit, (voltage, current), volts * amperes, name, volts=volts)


def _is_power(name: str, unit: str) -> bool:
    return name in _POWER_NAMES or unit in _POWER_UNITS


def _name_and_unit(cell: str) -> tuple[str, str]:
    """Name and unit of a column in lower case: "Power (mW)", "power_milliwatts", "P [W]", "mW"."""
    cell = _MEGA.sub("megawatts", cell)
    matched = _HEAD.fullmatch(cell)
    name = (matched["name"] if matched else cell).strip().lower().replace("_", " ")
    unit = _unit_in_brackets((matched["unit"] if matched else None) or "")
    stem, _, last = name.rpartition(" ")
    symbol = last if last in _NO_POWER else _unit_symbol(last)
    if not unit and (
        symbol in _NO_POWER or symbol in _UNITS or (symbol in TIME_UNITS and stem not in _POWER_NAMES)
    ):  # "power min" is a least
        name, unit = stem or name, symbol
    return name, unit


def _unit_in_brackets(bracket: str) -> str:
    """The unit that a header has in brackets: "W", "W RMS", "sec."; none in what tells something else, as "avg"."""
    first = next(iter(bracket.lower().split()), "").rstrip(".")
    symbol = _unit_symbol(first)
    return symbol if symbol in _UNITS or symbol in TIME_UNITS or first in _OTHERS or _SPELLED.fullmatch(first) else ""


def _unit_symbol(unit: str) -> str:
    """A unit as the tables have it: "milliwatts" as "mw", "minutes" as "min", with either letter µ as "u"."""
    spelled = _SPELLED.fullmatch(unit)
    if spelled is None:
        return unit
    prefix, symbol, word = (group or "" for group in spelled.groups())
    symbol = symbol or ("min" if word == "minute" else word[0])
    return ("u" if prefix in ("micro", "µ", "μ") else prefix[:1]) + symbol


def _find_column(
    named: Sequence[tuple[str, str]], names: Sequence[str], units: Sequence[str] | dict[str, float]
) -> int | None:
    """The first column of one of these names, else the only one in one of these units."""
    for candidate in names:
        for index, (name, _) in enumerate(named):
            if name == candidate:
                return index
    fitting = [index for index, (_, unit) in enumerate(named) if unit in units]
    return fitting[0] if len(fitting) == 1 else None
