"""One sensor while it is sampled: its deadlines, rows, loss and recovery, and its own thread where it is slow."""

from __future__ import annotations

import contextlib
import math
import resource
import struct
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stepscope.clock import Clock
from stepscope.liveness import is_running
from stepscope.record.sampler.characterise import measures_power
from stepscope.record.sampler.rows import EventLog, RowFile, nan_values
from stepscope.record.sensors import discover_sensor
from stepscope.record.sensors.contract import NAN, Channel, NoSensor, OpenSensor, ProcessEnded, Sensor, Target

RETRY_NS = 1_000_000_000
_MOST_RETRY_NS = 64 * RETRY_NS  # between two looks for channels that did not come back with their sensor
CPU_SHARE = 0.001  # a slow sensor is read so seldom that it takes no more than this of a core
POWER_CPU_SHARE = 0.02  # the same for a power sensor: energy is what its readings are for
DEAR_NS = 200_000  # a read and its decoding: then the decoding is counted, and not left for the flush
WAITING_SHARE = 0.5  # of the time at most is spent in reads that wait: a bus has other users
OF_THE_PROCESS = ("process", "children")  # sensors of these names end with the process that trains


class Stream:
    """Reads one sensor into its row file; a sensor that fails is turned off, tried again, and never ends the run."""

    def __init__(
        self,
        sensor: Sensor,
        opened: OpenSensor,
        target: Target,
        root: Path,
        file: RowFile,
        events: EventLog,
        period_ns: int,
        dither: bool = False,
    ) -> None:
        self.name = sensor.NAME
        self.every_ns = max(opened.every_ns, period_ns)
        self.slow = opened.every_ns > period_ns
        self.due_ns = 0
        self.file = file
        self.ended = False  # what it is of has ended: nothing more is read
        power = measures_power(opened)
        self._share = POWER_CPU_SHARE if power else CPU_SHARE
        self._starts_processes = opened.blocking  # or may do so
        self._last_cost_ns = read_cost_ns(opened)
        self._dear = read_cost_ns(opened) > DEAR_NS
        # A power sensor keeps to deadlines of its own; the others meet in one tick, which is cheaper.
        self._deadlines = Deadlines(target.clock(), self.every_ns, dither) if power or opened.blocking else None
        self._unpack = struct.Struct(f"<{len(opened.channels)}d").unpack_from
        self._liveness = Liveness(self.name, opened.channels, events)
        self._sensor, self._opened, self._target, self._root, self._events = sensor, opened, target, root, events
        self._ids = [channel.id for channel in opened.channels]
        self._fetch, self._decode = opened.fetch or opened.read, opened.decode
        self._fetched: list[tuple[int, int, Any]] = []  # what the loop has read, and when, since it was decoded last
        self._clock = target.clock
        self._lost_ns: int | None = None
        self._loss: str | None = None  # not written yet: it may be the end of the training process
        self._retry_at_ns, self._retry_ns = 0, RETRY_NS
        self._absent = 0  # channels that did not come back with the sensor
        self._disk_failed_ns: int | None = None
        self._rows_dropped = 0

    def sample(self) -> None:
        """Read once; a sensor that is lost gives no row until it is tried again."""
        if self._lost_ns is not None or self.ended:
            return
        clock = self._clock
        before = clock()
        try:
            values = self._fetch()
        except Exception as error:
            self.failed(before, error)
        else:
            self._fetched.append((before, clock(), values))

    def failed(self, before_ns: int, error: Exception) -> None:
        """Note that a read begun then has failed."""
        if isinstance(error, ProcessEnded):
            self.ended = True
        else:
            self.decode()
            self._lose(before_ns, error)

    @property
    def plan(self) -> Plan | None:
        """Return what `sample` does, in parts, for a loop that has no time for its call; None where it does nothing."""
        if self._lost_ns is not None or self.ended:
            return None
        return self, self._clock, self._fetch, self._fetched.append

    def decode(self) -> None:
        """Make rows of what was read; a sensor that gave garbage is lost from then on."""
        fetched = self._fetched[:]
        self._fetched.clear()
        pack, decode, waiting = self.file.pack, self._decode, self.file.waiting
        for before, after, values in fetched:
            try:
                row = pack(before, after, *(values if decode is None else decode(values)))
            except Exception as error:
                self._lose(before, error)
                return
            waiting += row

    def sample_slowly(self, now_ns: int, cpu_ns: int | None = None) -> int:
        """Sample a sensor that has its own period; the period is stretched when reading takes much of a core.

        cpu_ns: CPU time of this thread, where it was just read. Return that after the reading.

        One dear read among cheap ones stretches nothing: on a virtual machine the time that the host took from it
        counts as CPU time, and a pause of a second after it would be a gap in the energy.
        """
        start = _cpu_ns(self._starts_processes) if cpu_ns is None else cpu_ns
        self.sample()
        if self._dear:
            self.decode()
        end = _cpu_ns(self._starts_processes)
        took_cpu_ns = end - start
        cost_ns, self._last_cost_ns = min(took_cpu_ns, self._last_cost_ns), took_cpu_ns
        if self._deadlines is None:
            self.due_ns = (now_ns // self.every_ns + 1) * self.every_ns
        else:
            took_ns = self._clock() - now_ns
            self._deadlines.advance(now_ns + took_ns)
            self.due_ns = max(self._deadlines.at_ns, now_ns + int(took_ns / WAITING_SHARE))
        if cost_ns > self._share * self.every_ns:
            self.due_ns = max(self.due_ns, now_ns + int(cost_ns / self._share))
        return end

    def retry(self) -> None:
        """Look for a lost sensor again, once a second; a row of NaN says that there is still nothing.

        For channels that did not come back with their sensor it looks ever more seldom: each look opens it anew.
        """
        now_ns = self._clock()
        if now_ns < self._retry_at_ns or (self._lost_ns is None and not self._absent):
            return
        if self._lost_ns is None:
            self._retry_ns = min(2 * self._retry_ns, _MOST_RETRY_NS)
            self._retry_at_ns = now_ns + self._retry_ns
            again = discover_sensor(self._sensor, self._root, self._target)
            if not isinstance(again, NoSensor):
                self._use_rediscovered_sensor(again)
            return
        self._retry_at_ns = now_ns + RETRY_NS
        self._write_loss()
        answer = discover_sensor(self._sensor, self._root, self._target)
        if isinstance(answer, NoSensor) or not self._use_rediscovered_sensor(answer):
            self._append_nothing(now_ns)
            return
        gap_ns = self._clock() - self._lost_ns
        self._lost_ns, self._retry_ns = None, RETRY_NS
        message = f"sensor {self.name} answers again after {gap_ns / 1e9:.1f} s"
        self._events.write("sensor-recovered", message, sensor=self.name, gap_ns=gap_ns)

    def flush(self) -> None:
        """Bring the rows to the disk; a full disk costs these rows and an event, not the run."""
        self.decode()
        rows = len(self.file.waiting) // self.file.row_bytes
        if rows:
            self._liveness.check_newest_row(
                self._clock(), self._unpack(self.file.waiting, (rows - 1) * self.file.row_bytes + 16)
            )
        try:
            self.file.flush()
        except OSError as error:
            if self._disk_failed_ns is None:
                self._disk_failed_ns = self._clock()
                message = f"rows of sensor {self.name} are dropped: {error.strerror or error}"
                self._events.write("samples-dropped", message, sensor=self.name)
            self._rows_dropped += rows
            return
        if rows:
            self._end_gap("the disk takes rows again")

    def _end_gap(self, why: str) -> None:
        """Write how many rows the disk has refused, if it did."""
        if self._disk_failed_ns is not None:
            gap_ns = self._clock() - self._disk_failed_ns
            message = f"{self._rows_dropped} rows of sensor {self.name} were lost; {why}"
            self._events.write("gap", message, sensor=self.name, gap_ns=gap_ns, rows=self._rows_dropped)
            self._disk_failed_ns, self._rows_dropped = None, 0

    def close(self) -> None:
        """Flush and let go of the files."""
        if is_running(self._target.pid):
            self._write_loss()
        self.flush()
        self._end_gap("its recording has ended")
        self.file.close()
        if self._lost_ns is None:
            _let_go(self._opened)

    def _lose(self, before_ns: int, error: Exception) -> None:
        if self._lost_ns is not None:
            return  # by what was read before
        _let_go(self._opened)
        self._append_nothing(before_ns)
        self._lost_ns = before_ns
        self._retry_at_ns = before_ns + RETRY_NS
        self._loss = f"sensor {self.name} is lost: {error}; it is tried again every second"
        if not self.name.startswith(OF_THE_PROCESS):
            self._write_loss()

    def _write_loss(self) -> None:
        if self._loss is not None:
            self._events.write("sensor-lost", self._loss, sensor=self.name)
            self._loss = None

    def _use_rediscovered_sensor(self, sensor: OpenSensor) -> bool:
        """Take a sensor that came back, with its channels in the places that the file has for them.

        False where it has no more of them than answer now: of a lost one none, where another source answers in its
        place (/proc/stat for idle states).
        """
        ids = [channel.id for channel in sensor.channels]
        # A channel whose name another sensor had taken carries the sensor's own name before it.
        named = {name: place for place, channel in enumerate(ids) for name in (f"{self.name}.{channel}", channel)}
        places = [named.get(name) for name in self._ids]
        absent = places.count(None)
        if absent >= (len(places) if self._lost_ns is not None else self._absent):
            _let_go(sensor)
            return False
        if self._lost_ns is None:
            self.decode()
            _let_go(self._opened)
        self._absent = absent
        if places == list(range(len(ids))):
            self._opened, self._fetch, self._decode = sensor, sensor.fetch or sensor.read, sensor.decode
            return True

        def read() -> Sequence[float]:
            values = sensor.read()
            return [NAN if place is None else values[place] for place in places]

        self._opened, self._fetch, self._decode = sensor, read, None
        return True

    def _append_nothing(self, before_ns: int) -> None:
        self.file.waiting += self.file.pack(before_ns, self._clock(), *nan_values(len(self._ids)))


def _let_go(sensor: OpenSensor) -> None:
    with contextlib.suppress(Exception):  # of one that is gone, a file or a library may be gone as well
        sensor.close()


def _cpu_ns(of_children: bool) -> int:
    """CPU time of this thread, and with that of all child processes that have ended."""
    return time.thread_time_ns() + (ended_children_cpu_ns() if of_children else 0)


def ended_children_cpu_ns() -> int:
    """Return the CPU time of all child processes of this process that have ended, ns."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return int((ended.ru_utime + ended.ru_stime) * 1e9)


Plan = tuple[Stream, Clock, Callable[[], Any], Callable[[tuple[int, int, Any]], None]]

SPREAD = 0.5  # a dithered deadline lies within so much of a period before or after its place on the grid
_GOLDEN = 0.6180339887498949


class Deadlines:
    """One deadline a period. Dither keeps sampling from locking to a training step that lasts as long as the period.

    The places follow the golden ratio, the low-discrepancy sequence whose gaps are never short: two deadlines are
    0.62 or 1.62 periods apart, and any few of them in a row cover the period evenly.
    """

    def __init__(self, start_ns: int, period_ns: int, dither: bool) -> None:
        self._period_ns = period_ns
        self._spread_ns = 2 * SPREAD * period_ns if dither else 0.0
        self._grid_ns = start_ns + int(self._spread_ns / 2)
        self._turn = 0
        self.at_ns = start_ns

    def advance(self, now_ns: int) -> int:
        """Go to the next deadline; gives how many were passed over because they lie a period or more in the past."""
        missed = 0
        self._step(1)
        if now_ns - self.at_ns > self._period_ns:
            missed = (now_ns - self.at_ns) // self._period_ns
            self._step(missed)
        return missed

    def _step(self, turns: int) -> None:
        self._turn += turns
        self._grid_ns += turns * self._period_ns
        self.at_ns = self._grid_ns + int((self._turn * _GOLDEN % 1.0 - 0.5) * self._spread_ns)


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
        self._nothing_ns: list[int | None] = [None] * len(self._ids)  # since then
        self._silent = [False] * len(self._ids)
        self._meters = [place for place, channel in enumerate(channels) if channel.quantity in ("power", "energy")]
        self._stale_after_ns = max((_stale_after_ns(channels[place]) for place in self._meters), default=0)
        self._displayed: list[float] = []
        self._moved_ns: int | None = None
        self._stale = False

    def check_newest_row(self, now_ns: int, values: Sequence[float]) -> None:
        """Compare the newest row with what was seen before."""
        for place, value in enumerate(values):
            if math.isnan(value):
                self._note_missing_reading(place, now_ns)
            else:
                self._note_valid_reading(place, now_ns)
        if self._meters:
            self._look_whether_it_moves(now_ns, [values[place] for place in self._meters])

    def _note_missing_reading(self, place: int, now_ns: int) -> None:
        if self._valid_ns[place] is None or self._silent[place]:
            return
        since_ns = self._nothing_ns[place] = self._nothing_ns[place] or now_ns
        if now_ns - since_ns < SILENT_NS:  # a process that is ending has no memory left to tell of
            return
        self._silent[place] = True
        self._write_limited_event(
            "channel-lost", f"channel {self._ids[place]} gives no reading any more", channel=self._ids[place]
        )

    def _note_valid_reading(self, place: int, now_ns: int) -> None:
        valid_ns, self._valid_ns[place] = self._valid_ns[place], now_ns
        self._nothing_ns[place] = None
        if self._silent[place] and valid_ns is not None:
            self._silent[place] = False
            gap_ns = now_ns - valid_ns
            message = f"channel {self._ids[place]} reads again after {gap_ns / 1e9:.1f} s"
            self._write_limited_event("channel-recovered", message, channel=self._ids[place], gap_ns=gap_ns)

    def _look_whether_it_moves(self, now_ns: int, values: list[float]) -> None:
        if all(math.isnan(value) for value in values):
            return
        if self._moved_ns is None or values != self._displayed:
            if self._stale and self._moved_ns is not None:
                gap_ns = now_ns - self._moved_ns
                message = f"sensor {self._sensor} moves again after {gap_ns / 1e9:.1f} s of the same numbers"
                self._write_limited_event("stale-ended", message, gap_ns=gap_ns)
            self._displayed, self._moved_ns, self._stale = values, now_ns, False
        elif not self._stale and now_ns - self._moved_ns > self._stale_after_ns:
            self._stale = True
            message = f"sensor {self._sensor} has given the same numbers for {(now_ns - self._moved_ns) / 1e9:.1f} s"
            self._write_limited_event("stale", message)

    def _write_limited_event(self, kind: str, message: str, **fields: object) -> None:
        if self._left > 0:
            self._left -= 1
            last = "; further ones are not reported" if self._left == 0 else ""
            self._events.write(kind, message + last, sensor=self._sensor, **fields)


def _stale_after_ns(channel: Channel) -> int:
    """Return how long the numbers may stand still before a warning, ns."""
    refreshes_ns = _REFRESHES * (channel.refresh_ns or 0)
    if channel.kind != "counter":
        return max(_STALE_GAUGE_NS, refreshes_ns) if channel.refresh_ns else _STALE_UNKNOWN_NS
    if channel.step_size is None and channel.refresh_ns is None:
        return _STALE_GAUGE_NS
    return max(_STALE_NS, refreshes_ns, int((channel.step_size or 0.0) / _LEAST_W * 1e9))


HUNG_NS = 5_000_000_000
JOIN_S = 1.0
_SHARE_OF_PERIOD = 10  # a read longer than this part of the sampler's period would make the other sensors late


def needs_thread(sensor: OpenSensor, period_ns: int) -> bool:
    """Return whether a sensor would hold up the loop: it may wait, or its measured read takes a tenth of the period."""
    return sensor.blocking or read_cost_ns(sensor) > period_ns // _SHARE_OF_PERIOD


def read_cost_ns(sensor: OpenSensor) -> int:
    """Return what one read of the sensor takes, ns, as measured when the sensor was opened."""
    return sensor.channels[0].read_cost_ns or 0


class ReaderThread:
    """Reads, flushes and retries one stream; nobody else touches that stream until the thread has ended."""

    def __init__(self, stream: Stream, events: EventLog, clock: Clock) -> None:
        self.stream = stream
        self._events, self._clock = events, clock
        self._reading_since_ns: int | None = None
        self._reported = self._refused = False
        self._stopping = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=stream.name, daemon=True)

    def start(self) -> None:
        """Begin, if it has not; the thread takes over core, priority and timer slack of its starter.

        Where this process may have no more threads (a training may use up those of its user or container), an event
        says so once, and the next call tries again.
        """
        if self._thread.ident is not None:
            return
        try:
            self._thread.start()
        except RuntimeError as error:
            if not self._refused:
                self._refused = True
                message = f"sensor {self.stream.name} is lost: {error}; it is tried again every second"
                self._events.write("sensor-lost", message, sensor=self.stream.name)

    def report_hung_read(self) -> None:
        """Write an event when a read has not returned for long."""
        since_ns = self._reading_since_ns
        if since_ns is not None and not self._reported and self._clock() - since_ns > HUNG_NS + self.stream.every_ns:
            self._reported = True
            message = (
                f"a read of sensor {self.stream.name} has not returned for {(self._clock() - since_ns) / 1e9:.0f} s"
            )
            self._events.write("sensor-hung", message, sensor=self.stream.name)

    @property
    def done(self) -> bool:
        """Return whether what it read has ended, and the thread with it."""
        return self.stream.ended and not self._thread.is_alive()

    def ask_to_stop(self) -> None:
        """Request the end of the thread after its current read."""
        self._stopping = True
        self._wake.set()

    def read_now(self) -> None:
        """Read before it is due: what the last reading was of has changed."""
        self.stream.due_ns = 0
        self._wake.set()

    def join_and_close(self, timeout_s: float) -> bool:
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
        while True:
            self._wake.wait(max(0, stream.due_ns - clock()) / 1e9)
            self._wake.clear()
            if self._stopping:
                return
            self._reading_since_ns = began_ns = clock()
            stream.sample_slowly(began_ns)
            self._reading_since_ns = None
            if self._reported:
                self._reported = False
                gap_ns = clock() - began_ns
                message = f"the read of sensor {stream.name} returned after {gap_ns / 1e9:.1f} s"
                self._events.write("sensor-recovered", message, sensor=stream.name, gap_ns=gap_ns)
            stream.flush()  # at once: what lies in memory would be lost if the next read never returns
            if stream.ended:
                return
            stream.retry()


def stop_all(readers: Sequence[ReaderThread], clock: Clock) -> None:
    """End all threads, and wait a second for all of them together."""
    until_ns = clock() + int(JOIN_S * 1e9)
    for reader in readers:
        reader.ask_to_stop()
    for reader in readers:
        reader.join_and_close(max(0.0, (until_ns - clock()) / 1e9))
