"""CPU time and memory of the processes beside the training: its children, and the sampling process itself."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from stepscope.clock import Clock
from stepscope.record.access import parse_count
from stepscope.record.sensors.contract import (
    NAN,
    Channel,
    Kind,
    NamedSensor,
    NoSensor,
    OpenSensor,
    Target,
    make_channel,
    no_sensor_from_error,
    open_files,
    read_small_file,
)
from stepscope.record.sensors.number_files import PSS

# Resident memory and CPU time of all child processes (training processes of a launcher, data loader workers).
#
# Read from /proc/PID/stat of each.
#
# Proportional memory of child processes that have no streams of their own (data loader workers): smaps_rollup of
# each.
#
# Kept apart from `children`, since the kernel walks page tables for it.

CHILDREN = "children"
EVERY_NS = 100_000_000
LOOK_AGAIN_NS = 1_000_000_000
MOST_HELD = 256  # files that stay open: of hundreds of workers the others are opened for each read


def discover_children(root: Path, target: Target) -> OpenSensor | NoSensor:
    """Two channels over all descendants but this process; 0 where there are none."""
    tasks = root / f"proc/{target.pid}/task"
    unlisted = _why_unlisted(tasks)
    if unlisted is not None:
        return unlisted
    family = _Descendants(root / "proc", target.pid, target.clock)
    return OpenSensor(_channels(tasks), family.read, family.close, every_ns=EVERY_NS)


def _why_unlisted(tasks: Path) -> NoSensor | None:
    """Return why the children of a process cannot be listed; None where they can."""
    try:
        read_small_file(next(tasks.iterdir()) / "children")
    except StopIteration:
        return NoSensor("absent", f"{tasks} is empty")
    except OSError as error:
        remedy = "a kernel with CONFIG_PROC_CHILDREN=y" if error.errno == errno.ENOENT and tasks.is_dir() else None
        return no_sensor_from_error(error, error.filename or tasks, remedy)
    return None


def descendants(proc: Path, pid: int) -> set[int]:
    """Every living process below pid, without this one; raises OSError where no more files can be opened."""
    pids: set[int] = set()
    parents = [pid]
    while parents:
        tasks = proc / str(parents.pop()) / "task"
        with _suppress_ended():
            for task in tasks.iterdir():
                with _suppress_ended():
                    children = read_small_file(task / "children").split()
                    new = {parse_count(child) for child in children} - pids - {os.getpid()}
                    pids |= new
                    parents.extend(new)
    return pids


_TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)


@contextlib.contextmanager
def _suppress_ended() -> Iterator[None]:
    """Suppress the error of a process or thread that has ended meanwhile; too many open files say nothing of it."""
    try:
        yield
    except OSError as error:
        if error.errno in _TOO_MANY_FILES:
            raise


def stat_numbers(stat: bytes) -> tuple[int, int]:
    """CPU time in ticks (utime + stime) and resident pages of one /proc/PID/stat."""
    fields = stat[stat.rindex(b")") + 2 :].split(None, 22)
    return parse_count(fields[11]) + parse_count(fields[12]), parse_count(fields[21])


class _Descendants:
    """The living descendants with their open files; CPU time of those that ended stays in the sum."""

    def __init__(self, proc: Path, pid: int, clock: Clock) -> None:
        self._proc, self._pid, self._clock = proc, pid, clock
        self._files: dict[int, int | None] = {}  # None: not held open
        self._held = 0
        self._ticks: dict[int, int] = {}
        self._ended_ticks = 0
        self._looked_ns: int | None = None
        self._tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    def read(self) -> Sequence[float]:
        now = self._clock()
        if self._looked_ns is None or now - self._looked_ns >= LOOK_AGAIN_NS:
            try:
                self._update_descendants()
            except OSError:
                return [NAN, NAN]
            self._looked_ns = now
        pages, garbled = 0, False
        for pid, file in list(self._files.items()):
            try:
                stat = read_small_file(self._proc / f"{pid}/stat") if file is None else os.pread(file, 1024, 0)
                self._ticks[pid], resident = stat_numbers(stat)
                pages += resident
            except OSError as error:
                if error.errno in _TOO_MANY_FILES:
                    return [NAN, NAN]
                self._drop_ended(pid)
            except (ValueError, IndexError):  # garbage does not say that it has ended
                garbled = True
        if garbled:
            return [NAN, NAN]
        ticks = self._ended_ticks + sum(self._ticks.values())
        return [ticks * self._tick_ns, pages * self._page_bytes]

    def close(self) -> None:
        for file in self._files.values():
            if file is not None:
                os.close(file)
        self._files.clear()
        self._held = 0

    def _update_descendants(self) -> None:
        alive = descendants(self._proc, self._pid)
        for pid in set(self._files) - alive:
            self._drop_ended(pid)
        for pid in alive - set(self._files):
            self._files[pid] = None
            if self._held < MOST_HELD:
                with contextlib.suppress(OSError):  # the read will tell why
                    self._files[pid] = open_files([self._proc / f"{pid}/stat"])[0]
                    self._held += 1

    def _drop_ended(self, pid: int) -> None:
        file = self._files.pop(pid)
        if file is not None:
            os.close(file)
            self._held -= 1
        self._ended_ticks += self._ticks.pop(pid, 0)


def _channels(tasks: Path) -> tuple[Channel, ...]:
    source = f"{tasks.parent.parent}/PID/stat of the processes in {tasks}/*/children"
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")

    def channel(name: str, quantity: str, unit: str, kind: Kind, step: float, refresh_ns: int | None) -> Channel:
        return Channel(
            f"children.{name}", CHILDREN, quantity, unit, kind, "children", source, None, "system", refresh_ns, step
        )

    return (
        channel("cpu_time", "process_cpu_time", "ns", "counter", float(tick_ns), tick_ns),
        channel("rss", "rss", "B", "gauge", float(os.sysconf("SC_PAGE_SIZE")), None),
    )


MEMORY = "children_memory"
MEMORY_EVERY_NS = 1_000_000_000
MOST = 64  # processes that are read; with more, the sum is not known


def discover_memory(root: Path, target: Target) -> OpenSensor | NoSensor:
    """One gauge, B: `pss` over all descendants but the training processes; 0 where there are none."""
    proc = root / "proc"
    tasks, rollup = proc / f"{target.pid}/task", proc / f"{target.pid}/smaps_rollup"
    unlisted = _why_unlisted(tasks)
    if unlisted is not None:
        return unlisted
    try:
        if PSS.search(read_small_file(rollup)) is None:
            return NoSensor("unsupported", f"{rollup} states no pss")
    except OSError as error:
        return no_sensor_from_error(error, rollup)

    def read() -> list[float]:
        others = descendants(proc, target.pid) - target.training
        return [NAN if len(others) > MOST else sum(_proportional(proc, pid) for pid in others)]

    source = f"{proc}/PID/smaps_rollup of the processes in {tasks}/*/children"
    channel = make_channel(MEMORY, "children", "pss", "B", source, step_size=1024.0)
    return OpenSensor((channel,), read, lambda: None, every_ns=MEMORY_EVERY_NS, blocking=True)


def _proportional(proc: Path, pid: int) -> float:
    """Proportional memory of a process, B; 0 where it has ended."""
    match = None
    with _suppress_ended():
        match = PSS.search(read_small_file(proc / f"{pid}/smaps_rollup"))
    return int(match[1]) * 1024.0 if match else 0.0


# Cost of sampling itself: CPU time of the sampling process, worst lateness of its ticks, ticks missed.

SAMPLER = "sampler"
SAMPLER_EVERY_NS = 100_000_000


def discover_sampler(root: Path, target: Target) -> OpenSensor | NoSensor:
    """Three channels of the process that samples; there is no machine without them."""
    pace = target.pace
    process_time_ns = time.process_time_ns

    def read() -> list[float]:
        return [process_time_ns(), pace.take_lateness(), pace.missed]

    def channel(name: str, unit: str, kind: Kind, source: str) -> Channel:
        return Channel(f"sampler.{name}", SAMPLER, f"sampler_{name}", unit, kind, "sampler", source, step_size=1.0)

    channels = (
        channel("cpu_time", "ns", "counter", "CLOCK_PROCESS_CPUTIME_ID"),
        channel("lateness", "ns", "gauge", "sampling loop, worst tick since the sample before"),
        channel("missed", "1", "counter", "sampling loop"),
    )
    return OpenSensor(channels, read, lambda: None, every_ns=SAMPLER_EVERY_NS)


SENSORS = (
    NamedSensor(CHILDREN, discover_children),
    NamedSensor(MEMORY, discover_memory),
    NamedSensor(SAMPLER, discover_sampler),
)
