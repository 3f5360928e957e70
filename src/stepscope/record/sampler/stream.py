"""One sensor while it is being sampled: when it is due, where its rows go, and its loss and recovery."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from pathlib import Path

from stepscope.record.characterisation.profiles import measures_power
from stepscope.record.sampler.deadlines import Deadlines
from stepscope.record.sampler.liveness import Liveness
from stepscope.record.sampler.rows import EventLog, RowFile, nothing_read
from stepscope.record.sensors import ask
from stepscope.record.sensors.contract import NAN, Found, Missing, Sensor, Target

RETRY_NS = 1_000_000_000
CPU_SHARE = 0.001  # a slow sensor is read so seldom that it takes no more than this of a core
POWER_CPU_SHARE = 0.02  # the same for a power sensor: energy is what its readings are for
WAITING_SHARE = 0.5  # of the time at most is spent in reads that wait: a bus has other users


class Stream:
    """Reads one sensor into its row file; a sensor that fails is turned off, tried again, and never ends the run."""

    def __init__(
        self,
        sensor: Sensor,
        found: Found,
        target: Target,
        root: Path,
        file: RowFile,
        events: EventLog,
        period_ns: int,
        dither: bool = False,
    ) -> None:
        self.name = sensor.NAME
        self.every_ns = max(found.every_ns, period_ns)
        self.slow = found.every_ns > period_ns
        self.due_ns = 0
        self.file = file
        power = measures_power(found)
        self._share = POWER_CPU_SHARE if power else CPU_SHARE
        # A power sensor keeps to deadlines of its own; the others meet in one tick, which is cheaper.
        self._deadlines = Deadlines(target.clock(), self.every_ns, dither) if power or found.blocking else None
        self._unpack = struct.Struct(f"<{len(found.channels)}d").unpack_from
        self._liveness = Liveness(self.name, found.channels, events)
        self._sensor, self._found, self._target, self._root, self._events = sensor, found, target, root, events
        self._ids = [channel.id for channel in found.channels]
        self._read = found.read
        self._clock = target.clock
        self._lost_ns: int | None = None
        self._retry_at_ns = 0
        self._disk_failed_ns: int | None = None
        self._rows_dropped = 0

    def sample(self) -> None:
        """Read once and append the row; a sensor that is lost gives no row until it is tried again."""
        if self._lost_ns is not None:
            return
        clock = self._clock
        before = clock()
        try:
            values = self._read()
            after = clock()
            row = self.file.pack(before, after, *values)
        except Exception as error:
            self._lose(before, error)
            return
        self.file.waiting += row

    def sample_slowly(self, now_ns: int) -> None:
        """The same for a sensor with a period of its own, stretched when reading it takes much of a core."""
        start = time.thread_time_ns()
        self.sample()
        cost_ns = time.thread_time_ns() - start
        if self._deadlines is None:
            self.due_ns = (now_ns // self.every_ns + 1) * self.every_ns
        else:
            took_ns = self._clock() - now_ns
            self._deadlines.advance(now_ns + took_ns)
            self.due_ns = max(self._deadlines.at_ns, now_ns + int(took_ns / WAITING_SHARE))
        if cost_ns > self._share * self.every_ns:
            self.due_ns = max(self.due_ns, now_ns + int(cost_ns / self._share))

    def retry(self) -> None:
        """Look for a lost sensor again, once a second; a row of NaN says that there is still nothing."""
        now_ns = self._clock()
        if self._lost_ns is None or now_ns < self._retry_at_ns:
            return
        self._retry_at_ns = now_ns + RETRY_NS
        answer = ask(self._sensor, self._root, self._target)
        if isinstance(answer, Missing):
            self._append_nothing(now_ns)
            return
        self._adopt(answer)
        gap_ns = self._clock() - self._lost_ns
        self._lost_ns = None
        message = f"sensor {self.name} answers again after {gap_ns / 1e9:.1f} s"
        self._events.write("sensor-recovered", message, sensor=self.name, gap_ns=gap_ns)

    def flush(self) -> None:
        """Bring the rows to the disk; a full disk costs these rows and an event, not the run."""
        rows = len(self.file.waiting) // self.file.row_bytes
        if rows:
            self._liveness.look(self._clock(), self._unpack(self.file.waiting, (rows - 1) * self.file.row_bytes + 16))
        try:
            self.file.flush()
        except OSError as error:
            if self._disk_failed_ns is None:
                self._disk_failed_ns = self._clock()
                message = f"rows of sensor {self.name} are dropped: {error.strerror or error}"
                self._events.write("samples-dropped", message, sensor=self.name)
            self._rows_dropped += rows
            return
        if self._disk_failed_ns is not None and rows:
            gap_ns = self._clock() - self._disk_failed_ns
            message = f"{self._rows_dropped} rows of sensor {self.name} were lost; the disk takes rows again"
            self._events.write("gap", message, sensor=self.name, gap_ns=gap_ns, rows=self._rows_dropped)
            self._disk_failed_ns, self._rows_dropped = None, 0

    def close(self) -> None:
        """Flush and let go of the files."""
        self.flush()
        self.file.close()
        if self._lost_ns is None:
            self._found.close()

    def _lose(self, before_ns: int, error: Exception) -> None:
        self._found.close()
        self._append_nothing(before_ns)
        self._lost_ns = before_ns
        self._retry_at_ns = before_ns + RETRY_NS
        message = f"sensor {self.name} is lost: {error}; it is tried again every second"
        self._events.write("sensor-lost", message, sensor=self.name)

    def _adopt(self, found: Found) -> None:
        """Take a sensor that came back, with its channels in the places that the file has for them."""
        self._found = found
        ids = [channel.id for channel in found.channels]
        if ids == self._ids:
            self._read = found.read
            return
        # A channel whose name another sensor had taken carries the sensor's own name before it.
        named = {name: place for place, channel in enumerate(ids) for name in (f"{self.name}.{channel}", channel)}
        places = [named.get(name) for name in self._ids]

        def read() -> Sequence[float]:
            values = found.read()
            return [NAN if place is None else values[place] for place in places]

        self._read = read

    def _append_nothing(self, before_ns: int) -> None:
        self.file.waiting += self.file.pack(before_ns, self._clock(), *nothing_read(len(self._ids)))
