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
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepscope.clock import anchors, monotonic_ns
from stepscope.record.rows import EventLog, RowFile, write_json
from stepscope.record.sensors import Survey, load, survey
from stepscope.record.sensors.contract import Pace, Target
from stepscope.record.stream import Stream

CHORES_NS = 240_000_000  # rows reach the disk this often
SUSPENDED_NS = 100_000_000  # more than the two clocks can drift apart between chores


class Sampling:
    """The loop: deadlines that accumulate, a tick that reads what is due, and the chores between."""

    def __init__(self, streams: Sequence[Stream], events: EventLog, pace: Pace, period_ns: int) -> None:
        self._streams = streams
        self._every_tick = [stream.sample for stream in streams if not stream.slow]
        self._slow = [stream for stream in streams if stream.slow]
        self._slow_due_ns = 0
        self._events, self._pace, self._period_ns = events, pace, period_ns
        self._suspended_ns = _suspended_ns()
        self.stopped = False

    def run(self, wait: Callable[[float], bool]) -> None:
        """Sample until `wait(seconds)` answers True or `stopped` is set; then bring everything to the disk."""
        pace, period_ns = self._pace, self._period_ns
        deadline_ns = monotonic_ns()
        chores_ns = deadline_ns + CHORES_NS
        while not self.stopped:
            now_ns = monotonic_ns()
            pace.late(now_ns - deadline_ns)
            self.tick(now_ns)
            if now_ns >= chores_ns:
                chores_ns = now_ns + CHORES_NS
                self.chores()
            deadline_ns += period_ns
            left_ns = deadline_ns - monotonic_ns()
            if left_ns < -period_ns:
                skipped = -left_ns // period_ns
                pace.missed += skipped
                deadline_ns += skipped * period_ns
                left_ns += skipped * period_ns
            if wait(left_ns / 1e9 if left_ns > 0 else 0.0):
                break
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
        """Flush, try lost sensors again, and notice a suspended machine."""
        for stream in self._streams:
            stream.flush()
            stream.retry()
        self._events.flush()
        suspended_ns = _suspended_ns()
        if suspended_ns - self._suspended_ns > SUSPENDED_NS:
            gap_ns = suspended_ns - self._suspended_ns
            self._events.write("suspend", f"the machine slept for {gap_ns / 1e9:.1f} s", gap_ns=gap_ns)
        self._suspended_ns = suspended_ns


def _suspended_ns() -> int:
    now = anchors()
    return 0 if now["boottime_ns"] is None else now["boottime_ns"] - now["monotonic_ns"]


def open_streams(run: Path, root: Path, target: Target, period_ns: int, events: EventLog, seen: Survey) -> list[Stream]:
    """A row file for every sensor that answers; channels.json says what its columns are."""
    (run / "samples").mkdir(exist_ok=True)
    write_json(run / "channels.json", channel_table(seen, period_ns))
    sensors = load()
    return [
        Stream(sensors[name], found, target, root, _row_file(run, name, len(found.channels)), events, period_ns)
        for name, found in seen.found.items()
    ]


def channel_table(seen: Survey, period_ns: int) -> dict[str, Any]:
    """The content of channels.json: what is sampled, and what is not and why."""
    return {
        "period_ns": period_ns,
        "channels": [asdict(channel) for found in seen.found.values() for channel in found.channels],
        "missing": [{"sensor": name, **asdict(why)} for name, why in seen.missing.items()],
    }


def _row_file(run: Path, name: str, channels: int) -> RowFile:
    return RowFile(run / "samples" / f"{name}.rows", channels)


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
    """Make this process small and punctual: its core, its timer slack, no collector; each only where allowed."""
    if cpu is not None:
        with contextlib.suppress(OSError, AttributeError):
            os.sched_setaffinity(0, {cpu})
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    with contextlib.suppress(OSError):
        Path("/proc/self/timerslack_ns").write_text("1000")  # the default lets the kernel be 50 us late
    gc.collect()
    gc.freeze()
    gc.disable()


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m stepscope.record.sampler", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    parser.add_argument("--pid", type=int, required=True, help="process that trains")
    parser.add_argument("--period-ns", type=int, default=10_000_000)
    parser.add_argument("--root", type=Path, default=Path(os.environ.get("STEPSCOPE_ROOT") or "/"))
    parser.add_argument("--cpu", type=int, help="core to run on")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Sample until told to stop; 0 after an orderly end."""
    options = arguments(argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which then stops this process
    target = Target(options.pid)
    events = EventLog(options.run / "events.jsonl")
    seen = survey(options.root, target)
    streams = open_streams(options.run, options.root, target, options.period_ns, events, seen)
    sampling = Sampling(streams, events, target.pace, options.period_ns)
    signal.signal(signal.SIGTERM, lambda *_: setattr(sampling, "stopped", True))
    wait = trainer_watch(options.pid)
    if not streams:
        events.write("no-sensors", "no sensor answers on this machine; channels.json says why")
    settle(options.cpu)
    with contextlib.suppress(OSError):  # a trainer that is gone already is noticed by the first wait
        os.write(1, b"ready\n")
    sampling.run(wait)
    return 0


if __name__ == "__main__":
    sys.exit(main())
