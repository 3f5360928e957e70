"""The process behind a simulated board, `python -m stepscope.simulate.process`: the board, and what drives it."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import select
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from stepscope.clock import Clock, monotonic_ns
from stepscope.simulate.boards import BOARDS, Fault, Options
from stepscope.simulate.file_tree import PROC_REFRESH_NS, LiveFile, Tree, UpdateLosses
from stepscope.simulate.layouts import BUILDS, BuildContext
from stepscope.simulate.marks import RingReader, StateReader
from stepscope.simulate.power import SEGMENT, PowerSimulator, PowerTable, Segments, Truth
from stepscope.simulate.sensors import SensorModel, ThermalZones

_LONGEST_TICKS = 2
_BEFORE_NS = 50_000_000  # the board was on before: every converter has shown something when the first reader comes
RING_FILE, STATES_FILE, ROOT_FOLDER = "ring", "states.jsonl", "root"


class BoardRun:
    """Advances with `tick`; segments go to a file, since a long training makes millions."""

    def __init__(
        self,
        board: str,
        home: Path,
        options: Options,
        seed: int,
        segments: IO[bytes],
        clock: Clock = monotonic_ns,
        resident: Callable[[], int] = lambda: 0,
    ) -> None:
        self._board, self._options, self._file = BOARDS[board], options, segments
        self._ring, self._states = RingReader(home / RING_FILE), StateReader(home / STATES_FILE)
        self._table = PowerTable(self._board, options, seed)
        self._table.add(self._states.read())
        self._tree = Tree(home / ROOT_FOLDER, UpdateLosses(options.repeated, options.unread, seed))
        now_ns = clock()
        self._t0_ns = now_ns - _BEFORE_NS
        rng = np.random.default_rng([seed, 2])
        site = BuildContext(self._board, self._tree, options, self._table.idle_w, rng, self._t0_ns, resident)
        built = BUILDS[board](site)
        self._sensors, self._proc = built.sensors, built.proc
        self._faults = Faults(options.faults, self._tree, self._sensors)
        self._plant = PowerSimulator(self._table, options, seed, self._t0_ns, self._keep)
        self._plant.too_hot = built.too_hot
        self._end_ns = self._t0_ns
        self._proc_due_ns = self._t0_ns + PROC_REFRESH_NS
        self.tick(now_ns)

    def tick(self, now_ns: int) -> None:
        """Bring the board to `now_ns` less its latency."""
        until_ns = now_ns - self._options.latency_ns
        if until_ns <= self._end_ns:
            return
        t_ns, states = self._ring.read()
        if len(states) and int(states.max()) >= len(self._table.states):
            self._table.add(self._states.read())
        stretch = self._plant.advance(until_ns, t_ns, states)
        self._end_ns = until_ns
        stretch_with_error = stretch.with_sensor_error(self._options.gain, self._options.offset_w, self._t0_ns)
        for sensor in self._sensors:  # what they say of it heats no board
            sensor.advance(stretch if isinstance(sensor, ThermalZones) else stretch_with_error)
        self._faults.apply_due((until_ns - self._t0_ns) * 1e-9)
        if self._proc is not None and now_ns >= self._proc_due_ns:
            self._proc_due_ns = now_ns + PROC_REFRESH_NS
            self._proc.refresh()

    def next_ns(self, now_ns: int) -> int:
        """Return when to tick again: when a sensor has something new, and soon enough for the marks."""
        new_ns = min(sensor.next_ns for sensor in self._sensors) + self._options.latency_ns
        return math.ceil(min(max(new_ns, now_ns), now_ns + _LONGEST_TICKS * self._board.tick_ns))

    def finish(self, now_ns: int) -> None:
        """The last tick: up to now itself, so that the truth covers all that was measured."""
        self.tick(now_ns + self._options.latency_ns)

    def truth(self) -> Truth:
        """Everything until the last tick."""
        self._file.flush()
        self._file.seek(0)
        return Truth(
            board=self._board.name,
            rails=tuple(self._board.rails),
            states=tuple(self._table.states),
            idle_w=self._table.idle_w,
            above_idle_w=self._table.above_idle_w,
            segments=np.frombuffer(self._file.read(), dtype=SEGMENT),
            end_ns=self._end_ns,
            lost_marks=self._ring.lost,
            processors=self._table.processors,
            busy=self._table.busy,
        )

    def close(self) -> None:
        """Close every file; its last content stays."""
        self._tree.close()
        self._states.close()

    def _keep(self, segments: Segments) -> None:
        self._file.write(segments.tobytes())


_CONTENT = {"stuck": None, "empty": b"", "garbage": b"\xff\x00not a number\n"}


class Faults:
    """Begins and ends each fault once."""

    def __init__(self, faults: Sequence[Fault], tree: Tree, sensors: Sequence[SensorModel]) -> None:
        self._waiting = sorted(faults, key=lambda fault: fault.at_s)
        self._active: list[Fault] = []
        self._tree, self._sensors = tree, sensors

    def apply_due(self, elapsed_s: float) -> None:
        """Bring faults to this moment since the board was ready."""
        while self._waiting and self._waiting[0].at_s <= elapsed_s:
            fault = self._waiting.pop(0)
            self._begin(fault)
            self._active.append(fault)
        for fault in [
            other for other in self._active if other.for_s is not None and other.at_s + other.for_s <= elapsed_s
        ]:
            self._active.remove(fault)
            self._end(fault)

    def _begin(self, fault: Fault) -> None:
        if fault.kind == "renumbered":
            self._tree.renumber()
        elif fault.kind in ("reset", "plugged"):
            self._tell_sensors(fault, on=True)
        for file in self._files(fault):
            if fault.kind == "lost":
                file.remove()
            else:
                file.freeze_content(_CONTENT[fault.kind])

    def _end(self, fault: Fault) -> None:
        self._tell_sensors(fault, on=False)
        for file in self._files(fault):
            file.show_value_again()

    def _files(self, fault: Fault) -> list[LiveFile]:
        if fault.kind != "lost" and fault.kind not in _CONTENT:
            return []
        root = self._tree.root
        return [file for file in self._tree.live if fnmatch(file.path.relative_to(root).as_posix(), fault.files)]

    def _tell_sensors(self, fault: Fault, on: bool) -> None:
        for sensor in self._sensors:
            sensor.set_fault(fault.kind, on)


# The process behind a simulated board: python -m stepscope.simulate.process; it owns the tree and drives it live.
#
# It reads the training process's marks, follows the power model, lets every sensor model see each stretch of time,
# and keeps what was true. It ends when it is told to ("stop" on stdin) or when the training process is gone, and then
# clears its files.


def detach() -> None:
    """Detach from the training process, whose children's CPU time is counted as that of its data loaders."""
    if os.fork():
        os._exit(0)
    os.setsid()


def reduce_wakeup_latency() -> None:
    """Reduce scheduling latency where allowed: a late wake-up makes a sensor refresh late."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the training process
    with contextlib.suppress(OSError):
        Path("/proc/self/timerslack_ns").write_text("1000")
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except (OSError, AttributeError):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, -10)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m stepscope.simulate.process", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="folder with the ring; the tree is made in it")
    parser.add_argument("--truth", type=Path, required=True, help="folder for truth.npz")
    parser.add_argument("--board", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--options", default="{}")
    parser.add_argument("--pid", type=int, required=True, help="process that trains")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate until "stop" on stdin; return 0 after an orderly end."""
    options = arguments(argv)
    detach()
    from stepscope.simulate.boards import parse_options

    with tempfile.TemporaryFile(dir=options.truth) as segments:
        parsed = parse_options(json.loads(options.options))
        resident = partial(resident_bytes, options.pid)
        run = BoardRun(options.board, options.home, parsed, options.seed, segments, resident=resident)
        reduce_wakeup_latency()
        os.write(1, f"ready {os.getpid()}\n".encode())
        stopped = tick_until_stopped(run, options.pid)
        run.truth().save(options.truth)
        run.close()
    if stopped:
        os.write(1, b"done\n")
    else:
        shutil.rmtree(options.home, ignore_errors=True)
    return 0


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 where it is gone."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def tick_until_stopped(run: BoardRun, pid: int) -> bool:
    """Tick until the training process says stop (True) or is gone (False)."""
    watched = [0]
    with contextlib.suppress(AttributeError, OSError):  # before Linux 5.3, or gone already
        watched.append(os.pidfd_open(pid))
    while True:
        run.tick(monotonic_ns())
        now_ns = monotonic_ns()
        ready = select.select(watched, (), (), (run.next_ns(now_ns) - now_ns) / 1e9)[0]
        if ready:
            run.finish(monotonic_ns())
            return 0 in ready and bool(os.read(0, 16))


if __name__ == "__main__":
    sys.exit(main())
