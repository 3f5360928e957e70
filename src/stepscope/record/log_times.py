"""Times of logs: stamps, seconds and h:m:s as one clock, and the hour that a zone repeats when its summer time ends."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Literal

# Seconds since 1970 UTC, since some start of the meter's own, or h:m:s: since midnight, or since such a start.
MeterClock = Literal["unix", "own", "h:m:s"]
TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_UNIX = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3), (1e8, 1.0))  # from such a number on, and its unit in s
_YEARS = range(1970, 2262)  # what ns in 64 bits count, from 1970 on
MOST_TIME_S = 9e9  # later than the year 2200: no time
_DAY_S, _HOUR_S, _LONGEST_STEP_S = 86400.0, 3600.0, 120.0  # the step: between readings where a clock repeats an hour


class UnknownUnit(ValueError):
    """A column is in a unit that is not known, or none of power; the message names both."""


def unit_factor(column: str, unit: str, factors: Mapping[str, float]) -> float:
    """The factor of a column's unit to SI, 1 where none is stated."""
    if unit and unit not in factors:
        raise UnknownUnit(f"the unit '{unit}' of the column '{column}' is not known; known are {', '.join(factors)}")
    return factors.get(unit, 1.0)


def is_plausible_stamp(stamp: datetime) -> bool:
    """Return whether a log can be of this time: not of a clock that was not set, or of a digit that flipped."""
    return stamp.year in _YEARS


def meter_times(
    cells: Sequence[str],
    numbers: Sequence[float],
    unit: str,
    local: Callable[[Sequence[datetime]], Sequence[float]] | None,
) -> tuple[array[float], MeterClock]:
    """Seconds of every cell, NaN where it is no time, and the clock that they are of."""
    first = next((number for number in numbers if not math.isnan(number)), None)
    if first is not None:
        scale = next((factor for least, factor in _UNIX if abs(first) >= least), None)
        if scale is None or (unit in TIME_UNITS and first * TIME_UNITS[unit] < 1e10):
            scale = unit_factor("time", unit, TIME_UNITS)
        clock: MeterClock = "unix" if first * scale >= 1e8 else "own"
        scaled = (number * scale for number in numbers)
        return array("d", (t_s if abs(t_s) < MOST_TIME_S else math.nan for t_s in scaled)), clock
    stamps = [_parse_stamp(cell) for cell in cells]
    if any(isinstance(stamp, datetime) for stamp in stamps):
        dated = [stamp for stamp in stamps if isinstance(stamp, datetime)]
        if local is not None:
            local_seconds = iter(local(dated))
            times = (next(local_seconds) if isinstance(stamp, datetime) else math.nan for stamp in stamps)
            return array("d", times), "unix"
        clock = "unix" if all(stamp.tzinfo is not None for stamp in dated) else "own"
        since_1970 = (_seconds_since_1970(stamp) if isinstance(stamp, datetime) else math.nan for stamp in stamps)
        seconds = array("d", since_1970)
        return seconds if clock == "unix" else _continue_past_repeated_hour(seconds), clock
    of_day = _continue_past_midnight(stamp if isinstance(stamp, float) else math.nan for stamp in stamps)
    return _continue_past_repeated_hour(of_day), "h:m:s"


def _seconds_since_1970(stamp: datetime) -> float:
    """Seconds since 1970; a stamp without a zone is counted as UTC, on a clock that is then the meter's own."""
    utc = stamp if stamp.tzinfo is not None else stamp.replace(tzinfo=timezone.utc)
    return (utc - datetime(1970, 1, 1, tzinfo=timezone.utc)) / timedelta(seconds=1)


def _parse_stamp(cell: str) -> datetime | float | None:
    """A date and time, or the seconds of a time of day or of an elapsed h:m:s."""
    day = re.fullmatch(r"(\d{1,3}):(\d{2})(?::(\d{2}(?:[.,]\d{1,9})?))?", cell, re.ASCII)
    if day is not None:
        return int(day[1]) * 3600.0 + int(day[2]) * 60.0 + float((day[3] or "0").replace(",", "."))
    text = re.sub(r"^(\d{1,2})\.(\d{1,2})\.(\d{4})", lambda m: f"{m[3]}-{int(m[2]):02d}-{int(m[1]):02d}", cell)
    text = re.sub(r"Z$", "+00:00", text.replace("/", "-"))
    text = re.sub(r"[.,](\d{1,9})", lambda m: f".{m[1][:6]:0<6}", text, count=1)  # Python 3.10 wants six digits
    try:
        stamp = datetime.fromisoformat(text)
    except ValueError:
        return None
    return stamp if is_plausible_stamp(stamp) else None


def _continue_past_repeated_hour(seconds: Iterable[float]) -> array[float]:
    """Stamps that go back by an hour, since summer time ends, go on; not around some that are an hour wrong."""
    shift, last, turned = 0.0, math.nan, -math.inf
    continued = array("d")
    for value in seconds:
        if not math.isnan(value):
            step = value + shift - last
            if 0 <= step + _HOUR_S <= _LONGEST_STEP_S and last - turned > _HOUR_S:
                shift += _HOUR_S
            elif shift and 0 <= step - _HOUR_S <= _LONGEST_STEP_S and last - turned <= _HOUR_S:
                shift -= _HOUR_S
            if abs(step) > _HOUR_S / 2:
                turned = value + shift
            last = value + shift
        continued.append(value + shift)
    return continued


def _continue_past_midnight(seconds: Iterable[float]) -> array[float]:
    """Times of day that pass midnight go on beyond 24 h."""
    shift, last = 0.0, -math.inf
    continued = array("d")
    for value in seconds:
        if not math.isnan(value):
            if value + shift < last - _DAY_S / 2:
                shift += _DAY_S
            last = value + shift
        continued.append(value + shift)
    return continued


def stamps_in_unix_s(stamps: Sequence[datetime], zone: tzinfo | None) -> list[float]:
    """Unix seconds of the stamps in the order of the log; those without a zone are of `zone`, or of this machine.

    Where they go back by about as much as the zone repeats when its summer time ends, the ones behind are of the second
    pass (fold 1).
    """
    seconds: list[float] = []
    last: datetime | None = None
    second = False
    for stamp in stamps:
        if stamp.tzinfo is not None:
            seconds.append(stamp.timestamp())
            continue
        first_s, second_s = (_with_zone(stamp.replace(fold=fold), zone).timestamp() for fold in (0, 1))
        repeated_s = max(second_s - first_s, 0.0)  # below 0 in the hour that spring leaves out
        if not repeated_s:
            second = False
        elif last is not None and repeated_s / 2 < (last - stamp).total_seconds() < repeated_s * 1.5:
            second = True
        seconds.append(second_s if second and repeated_s else first_s)
        last = stamp
    return seconds


def stamps_in_unix_ns(stamps: Sequence[datetime], zone: tzinfo | None) -> list[int]:
    """Unix ns of the stamps, to the microsecond, as `stamps_in_unix_s` reads them."""
    return [round(seconds * 1e6) * 1000 for seconds in stamps_in_unix_s(stamps, zone)]


def _with_zone(stamp: datetime, zone: tzinfo | None) -> datetime:
    return stamp.replace(tzinfo=zone) if zone is not None else stamp.astimezone(timezone.utc)
