"""Busy or idle time of each core: cpuidle state times in us, else /proc/stat in ticks of 1/USER_HZ.

CPU time of the watched process, all threads: perf task clock, else its POSIX CPU clock, else /proc/PID/stat.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from stepscope.clock import Clock
from stepscope.record.access import natural, parse_count, sum_counts
from stepscope.record.sensors.contract import (
    NAN,
    Channel,
    NamedSensor,
    NoSensor,
    OpenSensor,
    Target,
    close_files,
    decoded_later,
    no_sensor_from_error,
    numbered,
    open_files,
    read_small_file,
)

CORES = "cpu_cores"
_MOST_CORES = 8192  # NR_CPUS of the largest kernels
_MOST_US = 1e15
_LOOK_AGAIN_NS = 1_000_000_000
_OF_FILES = 2  # cpuidle may hold one in so many of the files that a process may open; the other sensors need theirs
_BUSY_FIELDS = (1, 2, 3, 6, 7)  # user, nice, system, irq, softirq; steal is time that the core did not run for us


def discover_cores(root: Path, target: Target) -> OpenSensor | NoSensor:
    """Per-core counters, ns; cpuidle is preferred because it is 10,000 times finer than the tick."""
    return _cpuidle(root, target.clock) or _stat_of_cores(root)


def cores_online(text: bytes) -> set[int]:
    """The cores of a kernel list such as b"0-3,6"; raises ValueError where it is none."""
    cores: set[int] = set()
    for part in text.strip().split(b",") if text.strip() else ():
        first, dash, last = part.partition(b"-")
        begin, end = parse_count(first), parse_count(last if dash else first)
        if not begin <= end < _MOST_CORES:
            raise ValueError(f"{part[:20]!r} is not a range of cores")
        cores.update(range(begin, end + 1))
    return cores


def _cpuidle(root: Path, clock: Clock) -> OpenSensor | None:
    """Idle time; None where a core has no cpuidle, the kernel does not count in it, or it takes too many files."""
    folder = root / "sys/devices/system/cpu"
    try:
        online = read_small_file(folder / "online")
        up_first = cores_online(online)
        cores = sorted(up_first | _cores_present(root))
        states = [_states(folder, core) for core in cores]
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if not up_first or not all(paths for core, paths in zip(cores, states, strict=True) if core in up_first):
            return None
        if limit != resource.RLIM_INFINITY and sum(map(len, states)) > limit // _OF_FILES:
            return None
        if not any(natural(read_small_file(path), _MOST_US) > 0 for paths in states for path in paths):
            return None
        files = _IdleFiles(folder, cores, states, clock)
    except (OSError, ValueError):
        return None

    def decode(fetched: tuple[bytes, list[list[bytes]]]) -> list[float]:
        now, texts = fetched
        idle_ns = [1000.0 * sum([natural(text, _MOST_US) for text in of_core]) if of_core else NAN for of_core in texts]
        # A core that is offline counts no idle time: without this it would look busy.
        up = up_first if now == online else cores_online(now)
        return [idle if core in up else NAN for core, idle in zip(cores, idle_ns, strict=True)]

    channels = tuple(
        Channel(
            f"core{core}.idle", CORES, "core_idle_time", "ns", "counter", f"core:{core}",
            str(folder / f"cpu{core}/cpuidle/state*/time"), parent_scope="system", step_size=1000.0,
        )
        for core in cores
    )  # fmt: skip
    return decoded_later(channels, files.fetch, decode, files.close)


def _cores_present(root: Path) -> set[int]:
    """Those online, and those that can come online while the training runs; none where the kernel does not say."""
    with contextlib.suppress(OSError, ValueError):
        return cores_online(read_small_file(root / "sys/devices/system/cpu/present"))
    return set()


def _states(folder: Path, core: int) -> list[Path]:
    return numbered(list(folder.glob(f"cpu{core}/cpuidle/state*/time")))


class _IdleFiles:
    """The open files of all cores; after a sleep, or with another supply, the kernel makes those of a core anew.

    A core whose files fail has none from then on, and they are looked for once a second.
    """

    def __init__(self, folder: Path, cores: Sequence[int], states: Sequence[Sequence[Path]], clock: Clock) -> None:
        self._folder, self._cores, self._clock = folder, cores, clock
        self._online, *files = open_files([folder / "online", *(path for paths in states for path in paths)])
        remaining = iter(files)
        self._files = [[next(remaining) for _ in paths] for paths in states]
        self._lost, self._look_at_ns = not all(self._files), 0

    def fetch(self) -> tuple[bytes, list[list[bytes]]]:
        """Read the files: the cores online, and the idle states of each core; none of one that is lost."""
        pread = os.pread
        if self._lost and self._clock() >= self._look_at_ns:
            self._open_lost()
        now = pread(self._online, 256, 0)
        try:
            return now, [[pread(file, 24, 0) for file in files] for files in self._files]
        except OSError:
            return now, [self._texts_of(place) for place in range(len(self._cores))]

    def close(self) -> None:
        for files in self._files:
            close_files(files)
        os.close(self._online)

    def _texts_of(self, place: int) -> list[bytes]:
        try:
            return [os.pread(file, 24, 0) for file in self._files[place]]
        except OSError:
            close_files(self._files[place])
            self._files[place], self._lost = [], True
            return []

    def _open_lost(self) -> None:
        """Open the files of the cores that have none; raises OSError where not one core has."""
        self._look_at_ns = self._clock() + _LOOK_AGAIN_NS
        for place, core in enumerate(self._cores):
            if not self._files[place]:
                with contextlib.suppress(OSError):
                    self._files[place] = open_files(_states(self._folder, core))
        self._lost = not all(self._files)
        if not any(self._files):
            raise OSError(errno.ENODEV, "no idle state of any core answers")


def busy_ticks(text: bytes) -> dict[bytes, int]:
    """Busy ticks of each core named in /proc/stat (b"cpu0" and so on)."""
    busy: dict[bytes, int] = {}
    for line in text.partition(b"\nintr")[0].split(b"\n"):
        if not line.startswith(b"cpu"):
            break  # the core lines come first
        fields = line.split(None, 8)
        if fields[0] != b"cpu":
            busy[fields[0]] = sum_counts([fields[i] for i in _BUSY_FIELDS])
    return busy


def _stat_of_cores(root: Path) -> OpenSensor | NoSensor:
    path = root / "proc/stat"
    try:
        descriptors = open_files([path])
    except OSError as error:
        return no_sensor_from_error(error, path)
    present = _cores_present(root)
    size = 128 * (max(os.cpu_count() or 1, len(present)) + 2) + 4096
    try:
        up_first = busy_ticks(os.pread(descriptors[0], size, 0))
        names = sorted({*up_first, *(b"cpu%d" % core for core in present)}, key=lambda name: int(name[3:]))
    except (OSError, ValueError, IndexError) as error:
        close_files(descriptors)
        return NoSensor("failed", f"{path}: {error}")
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")

    def decode(text: bytes) -> list[float]:
        busy = busy_ticks(text)
        return [busy[name] * tick_ns if name in busy else NAN for name in names]

    channels = tuple(
        Channel(
            id=f"core{name[3:].decode()}.busy",
            sensor=CORES,
            quantity="core_busy_time",
            unit="ns",
            kind="counter",
            scope=f"core:{name[3:].decode()}",
            parent_scope="system",
            source=str(path),
            refresh_ns=tick_ns,
            step_size=float(tick_ns),
        )
        for name in names
    )
    return decoded_later(channels, partial(os.pread, descriptors[0], size, 0), decode, lambda: close_files(descriptors))


PROCESS = "process_cpu"


def discover_process(root: Path, target: Target) -> OpenSensor | NoSensor:
    """One counter, ns: the freshest source that this kernel and its permissions allow."""
    if root == Path("/"):
        live = _perf(target.pid) or _cpu_clock(target.pid)
        if live is not None:
            return live
    return _stat_of_process(root, target.pid)


def process_ticks(stat: bytes) -> int:
    """utime + stime of /proc/PID/stat, in ticks; the name before them may hold blanks and brackets."""
    fields = stat[stat.rindex(b")") + 2 :].split(None, 14)
    return parse_count(fields[11]) + parse_count(fields[12])


def _channel(source: str, refresh_ns: int | None, step_size: float) -> Channel:
    return Channel(
        id="process.cpu_time",
        sensor=PROCESS,
        quantity="process_cpu_time",
        unit="ns",
        kind="counter",
        scope="process",
        parent_scope="system",
        source=source,
        refresh_ns=refresh_ns,
        step_size=step_size,
    )


def _perf(pid: int) -> OpenSensor | None:
    """Counts from now on; fresh at each read (about 1 us a thread that lives now)."""
    from stepscope.record.access.perf_event import open_task_clocks, read_counts, total_cpu_ns

    descriptors = open_task_clocks(pid)
    if not descriptors:
        return None
    channel = _channel(f"perf_event_open task-clock, threads: {len(descriptors)}, and all that they start", 1, 1.0)
    if len(descriptors) == 1:  # before the training has started threads, which its event counts too
        fetch, decode = partial(os.read, descriptors[0], 8), lambda text: total_cpu_ns([text])
        return decoded_later((channel,), fetch, decode, lambda: close_files(descriptors))
    return decoded_later((channel,), partial(read_counts, descriptors), total_cpu_ns, lambda: close_files(descriptors))


def _cpu_clock(pid: int) -> OpenSensor | None:
    clock = process_cpu_clock(pid)
    if clock is None:
        return None
    read_ns, tick_ns = clock
    channel = _channel(f"CPU clock of process {pid}", tick_ns, 1.0)
    return OpenSensor((channel,), lambda: [read_ns()], lambda: None)


def process_cpu_clock(pid: int) -> tuple[Callable[[], int], int] | None:
    """Return what reads the CPU time of a process, ns, and how often it moves, ns; None where the kernel has no clock.

    The kernel brings another process' clock up to date at its tick and at task switches.
    """
    clock_id = (~pid << 3) | 2  # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of the kernel's posix-timers
    try:
        time.clock_gettime_ns(clock_id)
        tick_ns = int(time.clock_getres(getattr(time, "CLOCK_MONOTONIC_COARSE", 6)) * 1e9)
    except (OSError, AttributeError, OverflowError):
        return None
    return partial(time.clock_gettime_ns, clock_id), tick_ns


def _stat_of_process(root: Path, pid: int) -> OpenSensor | NoSensor:
    path = root / f"proc/{pid}/stat"
    try:
        descriptors = open_files([path])
        process_ticks(os.pread(descriptors[0], 1024, 0))
    except OSError as error:
        return no_sensor_from_error(error, path)
    except (ValueError, IndexError) as error:
        close_files(descriptors)
        return NoSensor("failed", f"{path}: {error}")
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    channel = _channel(str(path), tick_ns, float(tick_ns))
    return decoded_later(
        (channel,),
        partial(os.pread, descriptors[0], 1024, 0),
        lambda text: [process_ticks(text) * tick_ns],
        lambda: close_files(descriptors),
    )


SENSORS = (NamedSensor(CORES, discover_cores), NamedSensor(PROCESS, discover_process))
