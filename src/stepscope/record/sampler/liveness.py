"""Channels that fall silent and meters whose numbers stop moving: noticed from the last row now and then, as events."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stepscope.record.sampler.rows import EventLog
from stepscope.record.sensors.contract import Channel

SILENT_NS = 1_000_000_000  # shorter gaps are nulls in the rows and need no event
MOST_EVENTS = 50  # a channel that comes and goes for hours does not fill the disk
_STALE_NS = 5_000_000_000
_STALE_GAUGE_NS = 30_000_000_000  # an idle board may well show the same watts for some seconds
_STALE_UNKNOWN_NS = 180_000_000_000  # a battery's gauge may refresh once a minute
_REFRESHES = 20
_LEAST_W = 1.0  # a device that trains takes more: so long its counter may stand still for one step


class Liveness:
    """Watches one sensor; rows keep what was read, so that nothing is lost by an event that comes late."""

    def __init__(self, sensor: str, channels: Sequence[Channel], events: EventLog) -> None:
        self._sensor, self._events = sensor, events
        self._ids = [channel.id for channel in channels]
        self._left = MOST_EVENTS
        self._valid_ns: list[int | None] = [None] * len(self._ids)  # of the last reading; None before the first
        self._silent = [False] * len(self._ids)
        self._meters = [place for place, channel in enumerate(channels) if channel.quantity in ("power", "energy")]
        self._stale_after_ns = max((_stale_after_ns(channels[place]) for place in self._meters), default=0)
        self._shown: list[float] = []
        self._moved_ns: int | None = None
        self._stale = False

    def look(self, now_ns: int, values: Sequence[float]) -> None:
        """Compare the newest row with what was seen before."""
        for place, value in enumerate(values):
            if math.isnan(value):
                self._nothing(place, now_ns)
            else:
                self._something(place, now_ns)
        if self._meters:
            self._look_whether_it_moves(now_ns, [values[place] for place in self._meters])

    def _nothing(self, place: int, now_ns: int) -> None:
        valid_ns = self._valid_ns[place]
        if valid_ns is None or self._silent[place] or now_ns - valid_ns < SILENT_NS:
            return
        self._silent[place] = True
        self._say("channel-lost", f"channel {self._ids[place]} gives no reading any more", channel=self._ids[place])

    def _something(self, place: int, now_ns: int) -> None:
        valid_ns, self._valid_ns[place] = self._valid_ns[place], now_ns
        if self._silent[place] and valid_ns is not None:
            self._silent[place] = False
            gap_ns = now_ns - valid_ns
            message = f"channel {self._ids[place]} reads again after {gap_ns / 1e9:.1f} s"
            self._say("channel-recovered", message, channel=self._ids[place], gap_ns=gap_ns)

    def _look_whether_it_moves(self, now_ns: int, shown: list[float]) -> None:
        if all(math.isnan(value) for value in shown):
            return
        if self._moved_ns is None or shown != self._shown:
            if self._stale and self._moved_ns is not None:
                gap_ns = now_ns - self._moved_ns
                message = f"sensor {self._sensor} moves again after {gap_ns / 1e9:.1f} s of the same numbers"
                self._say("stale-ended", message, gap_ns=gap_ns)
            self._shown, self._moved_ns, self._stale = shown, now_ns, False
        elif not self._stale and now_ns - self._moved_ns > self._stale_after_ns:
            self._stale = True
            message = f"sensor {self._sensor} has shown the same numbers for {(now_ns - self._moved_ns) / 1e9:.1f} s"
            self._say("stale", message)

    def _say(self, kind: str, message: str, **fields: object) -> None:
        if self._left > 0:
            self._left -= 1
            last = "; further ones are not told" if self._left == 0 else ""
            self._events.write(kind, message + last, sensor=self._sensor, **fields)


def _stale_after_ns(channel: Channel) -> int:
    """How long the numbers may stand still before it is told, ns."""
    refreshes_ns = _REFRESHES * (channel.refresh_ns or 0)
    if channel.kind != "counter":
        return max(_STALE_GAUGE_NS, refreshes_ns) if channel.refresh_ns else _STALE_UNKNOWN_NS
    if channel.step_size is None and channel.refresh_ns is None:
        return _STALE_GAUGE_NS
    return max(_STALE_NS, refreshes_ns, int((channel.step_size or 0.0) / _LEAST_W * 1e9))
