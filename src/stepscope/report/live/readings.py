"""What the sensors say now: gauges as the mean of their newest readings, counters as their growth a second."""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stepscope.report.live.tail import RowTail

_USED = {  # quantities that the view shows; the others are passed over
    *("power", "energy", "core_busy_time", "core_idle_time", "utilisation"),
    *("rss", "memory_available", "memory_used", "memory_total", "temperature"),
}
_WINDOW_NS = 1_000_000_000  # of a counter
_STALE_NS = 5_000_000_000  # after so long without a reading, a value is not known


class Channel:
    """The newest value of one channel, in its unit, or of a counter in its unit a second."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.quantity, self.scope = str(facts.get("quantity")), str(facts.get("scope"))
        self.rail, self.estimated = facts.get("rail"), facts.get("kind") == "estimate"
        self.unit = str(facts.get("unit"))
        self._counter = facts.get("kind") == "counter"
        self._points: deque[tuple[int, float]] = deque()
        self._value: float | None = None
        self._read_ns = 0

    def take(self, readings: list[tuple[int, float]]) -> None:
        """New readings, (time ns, value) without those that failed."""
        if not readings:
            return
        self._read_ns = readings[-1][0]
        if not self._counter:
            self._value = sum(value for _, value in readings) / len(readings)
            return
        points = self._points
        points.extend((readings[0], readings[-1]) if not points else readings[-1:])
        while len(points) > 2 and points[-1][0] - points[1][0] >= _WINDOW_NS:
            points.popleft()
        (t0, v0), (t1, v1) = points[0], points[-1]
        self._value = (v1 - v0) * 1e9 / (t1 - t0) if t1 > t0 and v1 >= v0 else None
        if v1 < v0:
            points.clear()  # set back or wrapped: what it counted in between is not known

    def value(self, newest_ns: int) -> float | None:
        """The value, or None where nothing was read lately."""
        return None if newest_ns - self._read_ns > _STALE_NS else self._value


class Readings:
    """Follows samples/*.rows of the channels of a channels.json."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._tails: dict[str, tuple[RowTail, list[tuple[int, Channel]]]] = {}
        self._newest_ns = 0

    @property
    def channels(self) -> list[Channel]:
        """Every channel of a quantity that is shown, in the order of channels.json within its sensor."""
        return [channel for _, channels in self._tails.values() for _, channel in channels]

    def describe(self, facts: Iterable[dict[str, Any]]) -> None:
        """Take channels.json as it is now: a sensor that joined is followed from here on."""
        by_sensor: dict[str, list[dict[str, Any]]] = {}
        for channel in facts:
            by_sensor.setdefault(str(channel.get("sensor")), []).append(channel)
        for sensor, described in by_sensor.items():
            if sensor not in self._tails and Path(sensor).name == sensor:
                row = struct.Struct(f"<qq{len(described)}d")
                tail = RowTail(self._run / "samples" / f"{sensor}.rows", row)
                used = [(at, Channel(one)) for at, one in enumerate(described, 2) if one.get("quantity") in _USED]
                self._tails[sensor] = (tail, used)

    def look(self) -> None:
        """Read what is new."""
        for tail, channels in self._tails.values():
            rows = list(tail.new())
            if rows:
                self._newest_ns = max(self._newest_ns, rows[-1][1])
            for place, channel in channels:
                channel.take([(row[0], row[place]) for row in rows if not math.isnan(row[place])])

    def value(self, channel: Channel) -> float | None:
        """Its newest value; None where nothing was read lately."""
        return channel.value(self._newest_ns)

    def close(self) -> None:
        """Let go of the files."""
        for tail, _ in self._tails.values():
            tail.close()
