"""The training processes of a run, as its parts name them: CPU time and memory of each, from when it trains to its end.

The watched process may only launch: `torchrun`, `mp.spawn`. A process that trains writes its pid into the run.json of
its part; the sampler looks there between two ticks. What such a process starts itself (data loader workers) is in the
`children` sensor.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stepscope.liveness import start_time
from stepscope.record.access import parse_count
from stepscope.record.sensors.contract import (
    NAN,
    Channel,
    Kind,
    NoSensor,
    OpenSensor,
    ProcessEnded,
    Sensor,
    Target,
    close_files,
    measure_read_cost,
    no_sensor_from_error,
    open_files,
    read_small_file,
)
from stepscope.record.sensors.cpu import process_cpu_clock, process_ticks
from stepscope.record.sensors.number_files import PEAK, PSS, parse_kb_as_bytes

EVERY_NS = 50_000_000
PSS_EVERY_NS = 500_000_000  # at most: the kernel walks page tables, so that the sampler stretches it
MOST = 64  # training processes with streams of their own; the sum over all processes has the others too
_PARTS = "ranks"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

Begun = dict[str, tuple[Sensor, OpenSensor | NoSensor]]
Read = Callable[[], Sequence[float]]


@dataclass
class _Process:
    """One process that trains: the number of its part, its pid, and when it began, in ticks since the boot."""

    part: str
    pid: int
    began: int
    ended: bool = False


@dataclass
class _ProcessSensor:
    """A sensor of one process, which nothing but the process itself brings back."""

    NAME: str

    def discover(self, root: Path, target: Target) -> NoSensor:
        """Return NoSensor: a process that has ended does not come back."""
        return NoSensor("absent", "the process has ended")


class TrainingProcesses:
    """Finds the processes that train, each once; a look at what has not changed is two file states."""

    def __init__(self, run: Path, root: Path, target: Target) -> None:
        self._run, self._proc, self._target = run, root / "proc", target
        self._parts = run / _PARTS
        self._states: dict[str, tuple[int, int] | None] = {}  # of each run.json that was read
        self._seen: dict[str, int] = {}  # pid by part
        self._alive: list[_Process] = []

    def collect(self) -> Begun:
        """Sensors of the processes that have begun to train since the last call, by name."""
        for process in self._alive:
            process.ended = start_time(process.pid, self._proc) != process.began
            if process.ended:
                self._target.training.discard(process.pid)
        self._alive = [process for process in self._alive if not process.ended]
        begun: Begun = {}
        for part, header in self._changed_headers():
            training = self._find_training_process(part, header)
            if training is not None and len(self._alive) < MOST:
                self._alive.append(training)
                self._target.training.add(training.pid)
                begun |= self._sensors(training)
        return begun

    def _changed_headers(self) -> Iterator[tuple[str, dict[str, object]]]:
        """Number and content of every run.json that is new, or was written again before it had a pid."""
        names = ["0"]
        with contextlib.suppress(OSError):
            names += sorted(filter(str.isdigit, os.listdir(self._parts)))  # noqa: PTH208 - the cheapest look
        for part in names:
            if part in self._seen:
                continue
            path = self._run / "run.json" if part == "0" else self._parts / part / "run.json"
            try:
                status = path.stat()
                state = (status.st_mtime_ns, status.st_size)
                if self._states.get(part) == state:
                    continue
                header = json.loads(read_small_file(path))
            except (OSError, ValueError, RecursionError):
                continue  # not there yet, or damaged: another look follows
            self._states[part] = state
            if isinstance(header, dict):
                yield part, header

    def _find_training_process(self, part: str, header: dict[str, object]) -> _Process | None:
        """The process of a part; None where it is the watched one, has ended, or its number is another's by now."""
        pid = header.get("pid")
        if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0 or pid == header.get("launcher_pid"):
            return None  # nothing trains yet: whoever started it stands there until then
        self._seen[part] = pid
        if pid == self._target.pid or pid in self._target.training:
            return None
        began = start_time(pid, self._proc)
        clock = header.get("clock")
        said_ns = clock.get("boottime_ns") if isinstance(clock, dict) else None
        if began is None or (isinstance(said_ns, int) and (began - 1) * 1_000_000_000 > said_ns * _TICKS_PER_S):
            return None
        return _Process(part, pid, began)

    def _sensors(self, process: _Process) -> Begun:
        begun: Begun = {}
        for name, discover in (("training", _cpu_and_resident), ("training_pss", _proportional)):
            answer = discover(self._proc, process, f"{name}-{process.part}")
            if isinstance(answer, OpenSensor):
                answer = _with_cost(answer, self._target)
            if isinstance(answer, NoSensor) and answer.reason == "absent":
                continue  # it has ended meanwhile
            sensor = _ProcessSensor(f"{name}-{process.part}")
            begun[sensor.NAME] = (sensor, answer)
        return begun


def _with_cost(sensor: OpenSensor, target: Target) -> OpenSensor | NoSensor:
    try:
        cost = measure_read_cost(sensor, target.clock, rounds=1)
    except ProcessEnded:
        sensor.close()
        return NoSensor("absent", "the process has ended")
    return replace(sensor, channels=tuple(replace(channel, read_cost_ns=cost) for channel in sensor.channels))


def _cpu_and_resident(proc: Path, process: _Process, sensor: str) -> OpenSensor | NoSensor:
    """CPU time since the process began, resident memory, and the kernel's high-water mark of it."""
    folder = proc / str(process.pid)
    try:
        files = open_files([folder / name for name in ("stat", "statm", "status")])
    except OSError as error:
        return no_sensor_from_error(error, error.filename or folder)
    stat, statm, status = files
    page_bytes, tick_ns = os.sysconf("SC_PAGE_SIZE"), 1_000_000_000 // _TICKS_PER_S
    cpu_time, cpu_source, refresh_ns = _cpu_time(proc, process.pid, stat)

    def read() -> list[float]:
        resident = parse_count(os.pread(statm, 64, 0).split(b" ", 2)[1]) * page_bytes or NAN  # 0 pages: it has ended
        return [cpu_time(), resident, *parse_kb_as_bytes(PEAK, os.pread(status, 4096, 0))]

    def channel(quantity: str, unit: str, kind: Kind, source: str, step: float, refresh: int | None) -> Channel:
        name = "cpu_time" if quantity == "process_cpu_time" else quantity
        scope = f"rank:{process.part}"
        return Channel(
            f"rank-{process.part}.{name}", sensor, quantity, unit, kind, scope, source, None, "system", refresh, step
        )

    step = 1.0 if refresh_ns < tick_ns else float(tick_ns)
    channels = (
        channel("process_cpu_time", "ns", "counter", cpu_source, step, refresh_ns),
        channel("rss", "B", "gauge", f"{folder}/statm", float(page_bytes), None),
        channel("peak_rss", "B", "gauge", f"{folder}/status", 1024.0, None),
    )
    return OpenSensor(
        channels, _with_end_detection(read, process, proc, 3), lambda: close_files(files), every_ns=EVERY_NS
    )


def _proportional(proc: Path, process: _Process, sensor: str) -> OpenSensor | NoSensor:
    """Proportional memory: pages that processes share are divided by their users."""
    path = proc / f"{process.pid}/smaps_rollup"
    try:
        files = open_files([path])
    except OSError as error:
        return no_sensor_from_error(error, path)
    channel = Channel(
        id=f"rank-{process.part}.pss",
        sensor=sensor,
        quantity="pss",
        unit="B",
        kind="gauge",
        scope=f"rank:{process.part}",
        source=str(path),
        parent_scope="system",
        step_size=1024.0,
    )
    read = _with_end_detection(lambda: parse_kb_as_bytes(PSS, os.pread(files[0], 4096, 0)), process, proc, 1)
    return OpenSensor((channel,), read, lambda: close_files(files), every_ns=PSS_EVERY_NS)


def _cpu_time(proc: Path, pid: int, stat: int) -> tuple[Callable[[], float], str, int]:
    """The process's CPU time in ns, its source, and how often it moves: a POSIX CPU clock, else ticks."""
    clock = process_cpu_clock(pid) if proc == Path("/proc") else None
    if clock is not None:
        return clock[0], f"CPU clock of process {pid}", clock[1]
    tick_ns = 1_000_000_000 // _TICKS_PER_S
    return lambda: process_ticks(os.pread(stat, 1024, 0)) * tick_ns, f"{proc}/{pid}/stat", tick_ns


def _with_end_detection(read: Read, process: _Process, proc: Path, channels: int) -> Read:
    """The read; NaN where it fails, and ProcessEnded where that is because the process has ended."""

    def guarded() -> Sequence[float]:
        if process.ended:
            raise ProcessEnded
        values: Sequence[float] = [NAN] * channels
        with contextlib.suppress(OSError, ValueError, IndexError):
            values = read()
        if any(math.isnan(value) for value in values) and start_time(process.pid, proc) != process.began:
            process.ended = True
            raise ProcessEnded
        return values

    return guarded
