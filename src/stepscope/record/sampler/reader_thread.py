"""A slow sensor in a thread of its own, so that it delays no other; a read that never returns does not stop the end."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from stepscope.clock import Clock
from stepscope.record.sampler.rows import EventLog
from stepscope.record.sampler.stream import Stream
from stepscope.record.sensors.contract import Found

HUNG_NS = 5_000_000_000
JOIN_S = 1.0
_SHARE_OF_PERIOD = 10  # a read longer than this part of the sampler's period would make the other sensors late


def needs_thread(found: Found, period_ns: int) -> bool:
    """Whether a sensor would hold up the loop: it may wait, or its measured read takes a tenth of the period."""
    return found.blocking or read_cost_ns(found) > period_ns // _SHARE_OF_PERIOD


def read_cost_ns(found: Found) -> int:
    """What one read of the sensor takes, ns, as measured when it was found."""
    return found.channels[0].read_cost_ns or 0


class ReaderThread:
    """Reads, flushes and retries one stream; nobody else touches that stream until the thread has ended."""

    def __init__(self, stream: Stream, events: EventLog, clock: Clock) -> None:
        self.stream = stream
        self._events, self._clock = events, clock
        self._reading_since_ns: int | None = None
        self._told = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=stream.name, daemon=True)

    def start(self) -> None:
        """Begin; the thread takes over core, priority and timer slack of its starter."""
        self._thread.start()

    def look(self) -> None:
        """Write an event when a read has not returned for long."""
        since_ns = self._reading_since_ns
        if since_ns is not None and not self._told and self._clock() - since_ns > HUNG_NS + self.stream.every_ns:
            self._told = True
            message = (
                f"a read of sensor {self.stream.name} has not returned for {(self._clock() - since_ns) / 1e9:.0f} s"
            )
            self._events.write("sensor-hung", message, sensor=self.stream.name)

    def ask_to_stop(self) -> None:
        """Tell it to end after the read that it is in."""
        self._stop.set()

    def ended(self, timeout_s: float) -> bool:
        """Wait for the end and close the stream; False, and an event, where a read still hangs."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self.stream.close()
            return True
        message = f"a read of sensor {self.stream.name} had not returned when sampling ended"
        self._events.write("sensor-hung", message, sensor=self.stream.name)
        return False

    def _run(self) -> None:
        stream, clock = self.stream, self._clock
        while not self._stop.wait(max(0, stream.due_ns - clock()) / 1e9):
            self._reading_since_ns = began_ns = clock()
            stream.sample_slowly(began_ns)
            self._reading_since_ns = None
            if self._told:
                self._told = False
                gap_ns = clock() - began_ns
                message = f"the read of sensor {stream.name} returned after {gap_ns / 1e9:.1f} s"
                self._events.write("sensor-recovered", message, sensor=stream.name, gap_ns=gap_ns)
            stream.flush()  # at once: what lies in memory would be lost if the next read never returns
            stream.retry()


def stop_all(readers: Sequence[ReaderThread], clock: Clock) -> None:
    """End all threads, and wait a second for all of them together."""
    until_ns = clock() + int(JOIN_S * 1e9)
    for reader in readers:
        reader.ask_to_stop()
    for reader in readers:
        reader.ended(max(0.0, (until_ns - clock()) / 1e9))
