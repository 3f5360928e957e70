"""Stamps of logs as Unix times, with the hour that a zone repeats when its summer time ends."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone, tzinfo


def unix_s(stamps: Sequence[datetime], zone: tzinfo | None) -> list[float]:
    """Unix seconds of the stamps in the order of the log; those without a zone are of `zone`, or of this machine.

    Where they go back by about as much as the zone repeats, the ones behind are of the second pass (fold 1).
    """
    made: list[float] = []
    last: datetime | None = None
    second = False
    for stamp in stamps:
        if stamp.tzinfo is not None:
            made.append(stamp.timestamp())
            continue
        first_s, second_s = (_with_zone(stamp.replace(fold=fold), zone).timestamp() for fold in (0, 1))
        repeated_s = max(second_s - first_s, 0.0)  # below 0 in the hour that spring leaves out
        if not repeated_s:
            second = False
        elif last is not None and repeated_s / 2 < (last - stamp).total_seconds() < repeated_s * 1.5:
            second = True
        made.append(second_s if second and repeated_s else first_s)
        last = stamp
    return made


def unix_ns(stamps: Sequence[datetime], zone: tzinfo | None) -> list[int]:
    """Unix ns of the stamps, to the microsecond, as `unix_s` reads them."""
    return [round(seconds * 1e6) * 1000 for seconds in unix_s(stamps, zone)]


def _with_zone(stamp: datetime, zone: tzinfo | None) -> datetime:
    return stamp.replace(tzinfo=zone) if zone is not None else stamp.astimezone(timezone.utc)
