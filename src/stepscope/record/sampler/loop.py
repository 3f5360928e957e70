"""The sampling process: python -m stepscope.record.sampler --run DIR --pid N --period-ns N; standard library only.

Writes channels.json, samples/<sensor>.rows and events.jsonl of a run and prints its pid and "ready" on stdout. It
samples until SIGTERM, or until the training process, or the one that started it, is gone.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import queue
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepscope.clock import PERIOD_NS, Clock, monotonic_ns, suspended_ns, unix_minus_monotonic_ns
from stepscope.files import replace_json
from stepscope.liveness import is_running, start_time
from stepscope.privacy import clean_and_redact
from stepscope.record.sampler.calibration import with_calibrations
from stepscope.record.sampler.characterise import (
    SensorProfile,
    may_characterise,
    period_warning,
    recall_or_measure,
    with_profiles,
)
from stepscope.record.sampler.process import CHARACTERISING, PID_FILE, STDERR
from stepscope.record.sampler.rows import CurrentPart, EventLog, PartPacking, RowFile, part_bytes
from stepscope.record.sampler.stream import (
    RETRY_NS,
    SPREAD,
    Deadlines,
    Plan,
    ReaderThread,
    Stream,
    ended_children_cpu_ns,
    needs_thread,
    stop_all,
)
from stepscope.record.sampler.training_processes import TrainingProcesses
from stepscope.record.sensors import NO_ANSWER, Survey, load_sensors, make_ids_unique, processes, survey_sensors
from stepscope.record.sensors.contract import ASLEEP, Meter, NoSensor, OpenSensor, Pace, Target, as_seen_below

CHORES_NS = 240_000_000  # rows reach the disk this often
SUSPENDED_NS = 100_000_000  # more than the two clocks can drift apart between chores
CLOCK_JUMP_NS = 50_000_000  # slewing by NTP (500 ppm) stays a hundred times below this between chores
SWITCH_INTERVAL_S = 0.0005  # the loop waits no longer than this for a thread that computes


class Sampling:
    """The sampling loop: dithered deadlines on a grid, a tick that reads what is due, and chores in between."""

    def __init__(
        self,
        streams: Sequence[Stream],
        events: EventLog,
        pace: Pace,
        period_ns: int,
        dither: bool = False,
        readers: Sequence[ReaderThread] = (),
    ) -> None:
        self._streams = [*streams]
        self._readers = [*readers]
        self._plan = self._planned()
        self._slow = [stream for stream in streams if stream.slow]
        self._slow_due_ns = 0
        self._events, self._pace, self._period_ns, self._dither = events, pace, period_ns, dither
        self._looked_ns, self._offsets_ns = monotonic_ns(), (suspended_ns(), unix_minus_monotonic_ns())
        self.stopped = False
        self.late_streams: Callable[[], tuple[list[Stream], list[ReaderThread]]] = lambda: ([], [])
        self.pack_parts: Callable[[], None] = lambda: None

    def run(self, wait: Callable[[float], bool]) -> None:
        """Sample once and until `wait(seconds)` answers True or `stopped` is set; then bring all of it to the disk."""
        pace = self._pace
        deadlines = Deadlines(monotonic_ns(), self._period_ns, self._dither)
        chores_ns = deadlines.at_ns + CHORES_NS
        for reader in self._readers:
            reader.start()
        while True:
            now_ns = monotonic_ns()
            pace.late(now_ns - deadlines.at_ns)
            self.tick(now_ns)
            if now_ns >= chores_ns:
                chores_ns = now_ns + CHORES_NS
                self.chores()
            now_ns = monotonic_ns()
            pace.missed += deadlines.advance(now_ns)
            left_ns = deadlines.at_ns - now_ns
            if self.stopped or wait(left_ns / 1e9 if left_ns > 0 else 0.0) or self.stopped:
                break
        stop_all(self._readers, monotonic_ns)
        for stream in self._streams:
            stream.close()
        self._events.flush()

    def tick(self, now_ns: int) -> None:
        """Read every sensor that is due; the slow ones in the same tick, since a warm cache makes them cheaper."""
        for stream, clock, fetch, append in self._plan:
            before_ns = clock()
            try:
                fetched = fetch()
            except Exception as error:
                stream.failed(before_ns, error)
                self._plan = self._planned()
            else:
                append((before_ns, clock(), fetched))
        if now_ns >= self._slow_due_ns and self._slow:
            cpu_ns = None
            for stream in self._slow:
                if now_ns >= stream.due_ns:
                    cpu_ns = stream.sample_slowly(now_ns, cpu_ns)
            self._slow_due_ns = min(stream.due_ns for stream in self._slow)

    def _planned(self) -> list[Plan]:
        return [plan for stream in self._streams if not stream.slow and (plan := stream.plan) is not None]

    def chores(self) -> None:
        """Flush, retry lost sensors, add late ones, and detect suspends and jumps of the wall clock."""
        for stream in self._streams:
            stream.flush()
            stream.retry()
        self._plan = self._planned()
        for reader in self._readers:
            reader.start()  # one that was refused a thread
            reader.report_hung_read()
        self._close_ended_streams()
        self._add_streams(*self.late_streams())
        self.pack_parts()
        self._events.flush()
        self._detect_interruptions()

    def _detect_interruptions(self) -> None:
        (asleep_ns, wall_ns), since_ns = self._offsets_ns, self._looked_ns
        self._looked_ns, self._offsets_ns = monotonic_ns(), (suspended_ns(), unix_minus_monotonic_ns())
        gap_ns = self._offsets_ns[0] - asleep_ns
        if gap_ns > SUSPENDED_NS:
            message = f"the machine slept for {gap_ns / 1e9:.1f} s"
            self._events.write("suspend", message, gap_ns=gap_ns, since_ns=since_ns)
        jump_ns = self._offsets_ns[1] - wall_ns - gap_ns  # monotonic time stands still in sleep, wall time does not
        if abs(jump_ns) > CLOCK_JUMP_NS:
            message = f"the wall clock was set by {jump_ns / 1e9:+.3f} s; samples keep to monotonic time"
            self._events.write("clock-jump", message, jump_ns=jump_ns, since_ns=since_ns)

    def _add_streams(self, streams: Sequence[Stream], readers: Sequence[ReaderThread]) -> None:
        self._streams += streams
        self._plan = self._planned()
        self._slow += [stream for stream in streams if stream.slow]
        self._slow_due_ns = 0 if streams else self._slow_due_ns
        self._readers += readers
        for reader in readers:
            reader.start()

    def _close_ended_streams(self) -> None:
        """Close the streams of processes that have ended: a run may start hundreds of them."""
        for reader in [reader for reader in self._readers if reader.done]:
            self._readers.remove(reader)
            reader.join_and_close(0.0)
        ended = [stream for stream in self._streams if stream.ended]
        if not ended:
            return
        for stream in ended:
            stream.close()
        self._streams = [stream for stream in self._streams if not stream.ended]
        self._plan = self._planned()
        self._slow = [stream for stream in self._streams if stream.slow]


SHORT_S = 0.05  # how late a signal or the end of a process may be seen
_LOOK_NS = 100_000_000


def make_cheap_wait(watching: Callable[[float], bool], clock: Clock = monotonic_ns) -> Callable[[float], bool]:
    """Return a wait function that watches only in long waits, and ten times a second.

    Of a wait of 10 ms, a sleep takes 40 us of CPU and a select 58 us where the training empties the caches.
    """
    look_ns = 0

    def wait(seconds: float) -> bool:
        nonlocal look_ns
        now_ns = clock()
        if seconds > SHORT_S or now_ns >= look_ns:
            look_ns = now_ns + _LOOK_NS
            return watching(seconds)
        time.sleep(seconds)
        return False

    return wait


def make_process_wait(pids: Collection[int]) -> Callable[[float], bool]:
    """Return a wait function that ends early, with True, at a handled signal or when one of these processes is gone."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    try:
        watched = [wake, *(os.pidfd_open(pid) for pid in pids)]
    except (AttributeError, OSError):  # macOS, Linux before 5.3, or gone already
        started = {pid: start_time(pid) for pid in pids}

        def gone() -> bool:
            return not all(is_running(pid, began) for pid, began in started.items())

        return lambda seconds: bool(select.select([wake], (), (), seconds)[0]) or gone()
    return lambda seconds: bool(select.select(watched, (), (), seconds)[0])


_MOST_FILES = 65_536  # programs that the sampler starts inherit the limit, and some go through all numbers below it


def raise_file_limit() -> None:
    """Let this process open as many files as its hard limit allows: on 128 cores the sensors need more than 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with contextlib.suppress(OSError, ValueError):  # macOS allows less than it states
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def reduce_jitter(cpu: int | None) -> None:
    """Reduce the jitter of this process, where allowed: core, priority, timer slack, switch interval, no collector."""
    if cpu is not None:
        with contextlib.suppress(OSError, AttributeError):
            os.sched_setaffinity(0, {cpu})
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    with contextlib.suppress(OSError):
        Path("/proc/self/timerslack_ns").write_text("1000")  # the default lets the kernel be 50 us late
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    gc.disable()


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    on_or_off = argparse.BooleanOptionalAction
    parser = argparse.ArgumentParser(prog="python -m stepscope.record.sampler", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    parser.add_argument("--pid", type=int, required=True, help="process that trains, or starts those that do")
    parser.add_argument("--starter", type=int, help="process that started this one, which then leaves its family")
    parser.add_argument("--period-ns", type=int, default=PERIOD_NS)
    parser.add_argument("--root", type=Path, default=Path(os.environ.get("STEPSCOPE_ROOT") or "/"))
    parser.add_argument("--cpu", type=int, help="core to run on")
    parser.add_argument("--dither", action=on_or_off, default=True, help="spread the deadlines over the period")
    parser.add_argument(
        "--characterise", action=on_or_off, default=True, help="measure power sensors new to this device"
    )
    parser.add_argument("--meter", nargs=3, action="append", default=[], metavar=("KIND", "NAME", "ADDRESS"))
    parser.add_argument("--folder", type=Path, help="where the commands of meters run")
    parser.add_argument("--look-again-ns", type=int, default=LOOK_AGAIN_NS, help="between asking missing ones")
    parser.add_argument("--max-disk", type=int, help="bytes that the run may take on the disk")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Sample until SIGTERM; return 0 after an orderly end."""
    options = arguments(argv)
    samples = options.run / "samples"
    if options.starter is not None:
        _detach(samples / PID_FILE)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # what the training process's thread has blocked is not blocked here
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, there would be no exit codes of what sensors start
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the training process, which then stops this process
    raise_file_limit()
    if options.folder is not None:
        with contextlib.suppress(OSError):
            os.chdir(options.folder)
    # Before the sensors: select() takes no descriptor above 1023.
    wait = make_cheap_wait(make_process_wait({options.pid, options.starter or options.pid}))
    meters = tuple(Meter(kind, address, name) for kind, name, address in options.meter)
    target = Target(options.pid, meters=meters)
    events = EventLog(options.run / "events.jsonl")
    turn = CurrentPart(samples, most_bytes=part_bytes(options.max_disk))
    packing = PartPacking(options.run, turn, options.max_disk)
    opener = StreamOpener(options.run, options.root, target, events, options.period_ns, options.dither, turn)
    survey = survey_sensors(options.root, target)
    profiles: Mapping[str, SensorProfile] = {}
    if may_characterise(options.root, options.characterise):
        announce = lambda seconds: _print_line(CHARACTERISING + b" %.3f\n" % seconds)  # noqa: E731
        profiles = recall_or_measure(options.root, survey.sensors, target.clock, announce, events)
    survey = with_calibrations(survey, options.root)
    streams, readers = opener.open(survey, profiles)
    sampling = Sampling(streams, events, target.pace, options.period_ns, options.dither, readers)
    sampling.late_streams = opener.late_streams(survey, options.look_again_ns)
    sampling.pack_parts = packing.start_packing_if_due
    signal.signal(signal.SIGTERM, lambda *_: setattr(sampling, "stopped", True))
    if not survey.sensors:
        events.write("no-sensors", "no sensor answers on this machine; channels.json says why")
    reduce_jitter(options.cpu)
    _print_line(b"ready\n")
    try:
        sampling.run(wait)
    finally:
        packing.stop()
    if options.starter is not None:
        _remove_traces(samples)
    return 0


def _detach(pid_file: Path) -> None:
    """Continue as a child of init and print the pid, so that the training process never has to reap this one."""
    if os.fork():
        os._exit(0)
    pid_file.write_text(f"{os.getpid()}\n")
    _print_line(b"%d\n" % os.getpid())


def _remove_traces(samples: Path) -> None:
    """Remove the PID file, and the stderr file where it is empty."""
    with contextlib.suppress(OSError):
        if (samples / STDERR).stat().st_size == 0:
            (samples / STDERR).unlink()
    with contextlib.suppress(OSError):
        (samples / PID_FILE).unlink()


def _print_line(line: bytes) -> None:
    with contextlib.suppress(OSError):  # a training process that is gone is noticed by the first wait
        os.write(1, line)


OpenStreams = tuple[list[Stream], list[ReaderThread]]


class StreamOpener:
    """Opens a row file for every sensor that answers, now or later."""

    def __init__(
        self,
        run: Path,
        root: Path,
        target: Target,
        events: EventLog,
        period_ns: int,
        dither: bool = False,
        turn: CurrentPart | None = None,
    ) -> None:
        self._run, self._root, self._target, self._events = run, root, target, events
        self._period_ns, self._dither, self._turn = period_ns, dither, turn
        self._sensors = load_sensors()
        self._opened: dict[str, OpenSensor] = {}
        self._missing: dict[str, NoSensor] = {}
        self._profiles: Mapping[str, SensorProfile] = {}
        self._table_is_old = False  # channels.json could not be written
        self._others: ReaderThread | None = None  # of the processes that have no streams of their own

    def open(self, survey: Survey, profiles: Mapping[str, SensorProfile]) -> OpenStreams:
        """Open the streams of the sensors that answer: those for the loop, and readers with threads of their own."""
        self._missing, self._profiles = dict(survey.missing), profiles
        return self._open_streams(survey.sensors)

    def late_streams(self, survey: Survey, every_ns: int) -> Callable[[], OpenStreams]:
        """Return a function that opens, at each call, streams of sensors and training processes that are new."""
        waiting = LateSensors(survey.missing, self._root, self._target, self._target.clock, every_ns)
        training = TrainingProcesses(self._run, self._root, self._target)

        def collect() -> OpenStreams:
            if self._table_is_old:
                self._write_table()
            arrived = waiting.collect()
            begun = training.collect()
            self._sensors |= {name: sensor for name, (sensor, _) in begun.items()}
            self._missing |= {name: answer for name, (_, answer) in begun.items() if isinstance(answer, NoSensor)}
            opened = {name: answer for name, (_, answer) in begun.items() if isinstance(answer, OpenSensor)}
            if opened and self._others is not None:
                self._others.read_now()  # without the processes that have streams of their own from now on
            if not arrived:
                return self._open_streams(opened) if begun else ([], [])
            ids = [channel.id for sensor in self._opened.values() for channel in sensor.channels]
            for name in arrived:
                message = f"sensor {name} answers now: {self._missing[name].reason} before"
                self._events.write("sensor-joined", message, sensor=name)
            return self._open_streams({**make_ids_unique(arrived, ids), **opened})

        return collect

    def channel_table(self) -> dict[str, Any]:
        """The content of channels.json: what is sampled, and what is not and why."""
        channels = [asdict(channel) for sensor in self._opened.values() for channel in sensor.channels]
        missing = [{"sensor": name, **asdict(why)} for name, why in self._missing.items()]
        return {
            "period_ns": self._period_ns,
            "pid": self._target.pid,
            "dither": SPREAD if self._dither else 0.0,  # deadlines lie within so much of a period of their grid
            "channels": [{**row, "source": as_seen_below(self._root, row["source"])} for row in channels],
            "missing": [{**row, "detail": as_seen_below(self._root, row["detail"])} for row in missing],
        }

    def _open_streams(self, arrived: Mapping[str, OpenSensor]) -> OpenStreams:
        with contextlib.suppress(OSError):
            (self._run / "samples").mkdir(exist_ok=True)
        streams: list[Stream] = []
        readers: list[ReaderThread] = []
        for name, plain in arrived.items():
            sensor = with_profiles(plain, self._profiles, self._period_ns)
            self._opened[name] = sensor
            self._missing.pop(name, None)
            self._warn(name, sensor)
        self._write_table()
        for name in arrived:
            sensor = self._opened[name]
            stream = self._stream(name, sensor)
            if needs_thread(sensor, self._period_ns):
                readers.append(ReaderThread(stream, self._events, self._target.clock))
                self._others = readers[-1] if name == processes.MEMORY else self._others
            else:
                streams.append(stream)
        return streams, readers

    def _write_table(self) -> None:
        """Write channels.json; where the disk refuses it, again with the next late sensors."""
        try:
            replace_json(self._run / "channels.json", clean_and_redact(self.channel_table()), whole=True)
            self._table_is_old = False
        except OSError as error:
            if not self._table_is_old:
                message = f"channels.json could not be written: {error.strerror or error}; it is tried again"
                self._events.write("channels-not-written", message)
            self._table_is_old = True

    def _stream(self, name: str, opened: OpenSensor) -> Stream:
        file = RowFile(self._run / "samples" / f"{name}.rows", len(opened.channels), self._turn)
        sensor = self._sensors[name]
        return Stream(sensor, opened, self._target, self._root, file, self._events, self._period_ns, self._dither)

    def _warn(self, name: str, sensor: OpenSensor) -> None:
        finer = period_warning(sensor, self._period_ns)
        if finer:
            message = f"the period of {self._period_ns / 1e6:g} ms is finer than sensor {name}: it {finer}"
            self._events.write("period-too-fine", message, sensor=name)


LOOK_AGAIN_NS = 10_000_000_000
_SHARE = 0.002  # of a core at most is spent on looking for absent sensors
_PATIENCE_S = 60.0  # nobody waits for them; a driver that is not kept loaded takes seconds for each of many GPUs


class LateSensors:
    """Looks for missing sensors in a thread, since a vendor library may be slow; the loop collects what answers."""

    def __init__(
        self,
        missing: Mapping[str, NoSensor],
        root: Path,
        target: Target,
        clock: Clock,
        every_ns: int = LOOK_AGAIN_NS,
    ) -> None:
        self._root, self._target, self._clock, self._every_ns = root, target, clock, every_ns
        self._names = set(missing)
        self._asleep = {name for name, why in missing.items() if why.detail.endswith(ASLEEP)}
        self._due_ns = clock() + every_ns
        self._asleep_due_ns = clock() + min(every_ns, RETRY_NS)
        self._asking: threading.Thread | None = None
        self._answers: queue.SimpleQueue[Survey] = queue.SimpleQueue()

    def collect(self) -> dict[str, OpenSensor]:
        """The sensors that have begun to answer; starts the next round when it is due."""
        try:
            survey = self._answers.get_nowait()
        except queue.Empty:
            now_ns = self._clock()
            names = self._names if now_ns >= self._due_ns else self._asleep if now_ns >= self._asleep_due_ns else set()
            if names and self._asking is None:
                thread = threading.Thread(target=self._survey_missing, args=(frozenset(names),), daemon=True)
                with contextlib.suppress(RuntimeError):  # no more threads for this process: at the next call
                    thread.start()
                    self._asking = thread
            return {}
        self._asking = None
        self._names -= set(survey.sensors)
        self._asleep -= {*survey.sensors, *survey.missing}
        self._asleep |= {name for name, why in survey.missing.items() if why.detail.endswith(ASLEEP)}
        # One that hangs for a minute would do so again, and cost a thread each time.
        self._names -= {name for name, why in survey.missing.items() if why.detail == NO_ANSWER}
        return survey.sensors

    def _survey_missing(self, names: frozenset[str]) -> None:
        began_ns, children_ns = self._clock(), ended_children_cpu_ns()
        survey = with_calibrations(survey_sensors(self._root, self._target, names, _PATIENCE_S), self._root)
        pause_ns = int((survey.cpu_ns + ended_children_cpu_ns() - children_ns) / _SHARE)
        self._asleep_due_ns = began_ns + max(min(self._every_ns, RETRY_NS), pause_ns)
        if names >= self._names:
            self._due_ns = began_ns + max(self._every_ns, pause_ns)
        self._answers.put(survey)
