"""The sampling process: python -m stepscope.record.sampler --run DIR --pid N --period-ns N; standard library only.

Writes channels.json, samples/<sensor>.rows and events.jsonl of a run, says "ready" on stdout, and samples until it is
told to stop (SIGTERM, any byte or the end of stdin) or the trainer is gone. It never outlives the trainer.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import os
import select
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from stepscope.clock import anchors, monotonic_ns, unix_minus_monotonic_ns
from stepscope.record.characterisation.characterise import recall_or_measure, wanted
from stepscope.record.characterisation.profiles import SensorProfile
from stepscope.record.sampler.crew import Crew
from stepscope.record.sampler.deadlines import Deadlines
from stepscope.record.sampler.newcomers import LOOK_AGAIN_NS
from stepscope.record.sampler.reader_thread import ReaderThread, stop_all
from stepscope.record.sampler.rows import EventLog
from stepscope.record.sampler.stream import Stream
from stepscope.record.sampling import CHARACTERISING
from stepscope.record.sensors import survey
from stepscope.record.sensors.contract import Meter, Pace, Target

CHORES_NS = 240_000_000  # rows reach the disk this often
SUSPENDED_NS = 100_000_000  # more than the two clocks can drift apart between chores
CLOCK_JUMP_NS = 50_000_000  # slewing by NTP (500 ppm) stays a hundred times below this between chores
SWITCH_INTERVAL_S = 0.0005  # the loop waits no longer than this for a thread that computes


class Sampling:
    """The loop: dithered deadlines on a grid, a tick that reads what is due, and the chores between."""

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
        self._every_tick = [stream.sample for stream in streams if not stream.slow]
        self._slow = [stream for stream in streams if stream.slow]
        self._slow_due_ns = 0
        self._events, self._pace, self._period_ns, self._dither = events, pace, period_ns, dither
        self._suspended_ns = _suspended_ns()
        self._wall_ns = _wall_ns()
        self.stopped = False
        self.newcomers: Callable[[], tuple[list[Stream], list[ReaderThread]]] = lambda: ([], [])

    def run(self, wait: Callable[[float], bool]) -> None:
        """Sample until `wait(seconds)` answers True or `stopped` is set; then bring everything to the disk."""
        pace = self._pace
        deadlines = Deadlines(monotonic_ns(), self._period_ns, self._dither)
        chores_ns = deadlines.at_ns + CHORES_NS
        for reader in self._readers:
            reader.start()
        while not self.stopped:
            now_ns = monotonic_ns()
            pace.late(now_ns - deadlines.at_ns)
            self.tick(now_ns)
            if now_ns >= chores_ns:
                chores_ns = now_ns + CHORES_NS
                self.chores()
            now_ns = monotonic_ns()
            pace.missed += deadlines.advance(now_ns)
            left_ns = deadlines.at_ns - now_ns
            if wait(left_ns / 1e9 if left_ns > 0 else 0.0):
                break
        stop_all(self._readers, monotonic_ns)
        for stream in self._streams:
            stream.close()
        self._events.flush()

    def tick(self, now_ns: int) -> None:
        """Read every sensor that is due; the slow ones in the same tick, since a warm cache makes them cheaper."""
        for sample in self._every_tick:
            sample()
        if now_ns >= self._slow_due_ns and self._slow:
            for stream in self._slow:
                if now_ns >= stream.due_ns:
                    stream.sample_slowly(now_ns)
            self._slow_due_ns = min(stream.due_ns for stream in self._slow)

    def chores(self) -> None:
        """Flush, try lost sensors again, take in new ones, and notice a suspended machine and a wall clock set anew."""
        for stream in self._streams:
            stream.flush()
            stream.retry()
        for reader in self._readers:
            reader.look()
        self._take_in(*self.newcomers())
        self._events.flush()
        suspended_ns, wall_ns = _suspended_ns(), _wall_ns()
        gap_ns = suspended_ns - self._suspended_ns
        if gap_ns > SUSPENDED_NS:
            self._events.write("suspend", f"the machine slept for {gap_ns / 1e9:.1f} s", gap_ns=gap_ns)
        jump_ns = wall_ns - self._wall_ns - gap_ns  # monotonic time stands still in sleep, wall time does not
        if abs(jump_ns) > CLOCK_JUMP_NS:
            message = f"the wall clock was set by {jump_ns / 1e9:+.3f} s; samples keep to monotonic time"
            self._events.write("clock-jump", message, jump_ns=jump_ns)
        self._suspended_ns, self._wall_ns = suspended_ns, wall_ns

    def _take_in(self, streams: Sequence[Stream], readers: Sequence[ReaderThread]) -> None:
        self._streams += streams
        self._every_tick += [stream.sample for stream in streams if not stream.slow]
        self._slow += [stream for stream in streams if stream.slow]
        self._slow_due_ns = 0 if streams else self._slow_due_ns
        self._readers += readers
        for reader in readers:
            reader.start()


def _suspended_ns() -> int:
    now = anchors()
    return 0 if now["boottime_ns"] is None else now["boottime_ns"] - now["monotonic_ns"]


def _wall_ns() -> int:
    return unix_minus_monotonic_ns(rounds=1)


def trainer_watch(pid: int) -> Callable[[float], bool]:
    """A wait that ends early, with True, when the trainer closes stdin or writes to it, or when it is gone."""
    parent = os.getppid()
    try:
        watched = [0, os.pidfd_open(pid)]
    except (AttributeError, OSError):  # macOS, Linux before 5.3, or gone already
        return lambda seconds: bool(select.select([0], (), (), seconds)[0]) or os.getppid() != parent or not alive(pid)
    return lambda seconds: bool(select.select(watched, (), (), seconds)[0])


def alive(pid: int) -> bool:
    """Whether there is such a process, be it another user's."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    return True


def settle(cpu: int | None) -> None:
    """Make this process small and punctual: core, timer slack, quick threads, no collector; each where allowed."""
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
    parser.add_argument("--pid", type=int, required=True, help="process that trains")
    parser.add_argument("--period-ns", type=int, default=10_000_000)
    parser.add_argument("--root", type=Path, default=Path(os.environ.get("STEPSCOPE_ROOT") or "/"))
    parser.add_argument("--cpu", type=int, help="core to run on")
    parser.add_argument("--dither", action=on_or_off, default=True, help="spread the deadlines over the period")
    parser.add_argument(
        "--characterise", action=on_or_off, default=True, help="measure power sensors new to this device"
    )
    parser.add_argument("--meter", nargs=3, action="append", default=[], metavar=("KIND", "NAME", "ADDRESS"))
    parser.add_argument("--look-again-ns", type=int, default=LOOK_AGAIN_NS, help="between asking missing ones")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Sample until told to stop; 0 after an orderly end."""
    options = arguments(argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which then stops this process
    meters = tuple(Meter(kind, address, name) for kind, name, address in options.meter)
    target = Target(options.pid, meters=meters)
    events = EventLog(options.run / "events.jsonl")
    crew = Crew(options.run, options.root, target, events, options.period_ns, options.dither)
    seen = survey(options.root, target)
    profiles: Mapping[str, SensorProfile] = {}
    if wanted(options.root, options.characterise):
        profiles = recall_or_measure(options.root, seen.found, target.clock, _announce, events)
    streams, readers = crew.hire(seen, profiles)
    sampling = Sampling(streams, events, target.pace, options.period_ns, options.dither, readers)
    sampling.newcomers = crew.newcomers(seen, options.look_again_ns)
    signal.signal(signal.SIGTERM, lambda *_: setattr(sampling, "stopped", True))
    wait = trainer_watch(options.pid)
    if not seen.found:
        events.write("no-sensors", "no sensor answers on this machine; channels.json says why")
    settle(options.cpu)
    _say(b"ready\n")
    sampling.run(wait)
    return 0


def _announce(seconds: float) -> None:
    _say(CHARACTERISING + b" %.3f\n" % seconds)


def _say(line: bytes) -> None:
    with contextlib.suppress(OSError):  # a trainer that is gone already is noticed by the first wait
        os.write(1, line)
