"""Busy or idle time of each core: cpuidle state times in us, else /proc/stat in ticks of 1/USER_HZ.

CPU time of the watched process, all threads: perf task clock, else its POSIX CPU clock, else /proc/PID/stat.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

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
_BUSY_FIELDS = (1, 2, 3, 6, 7)  # user, nice, system, irq, softirq; steal is time that the core did not run for us


def discover_cores(root: Path, target: Target) -> OpenSensor | NoSensor:
    """Per-core counters, ns; cpuidle is preferred because it is 10,000 times finer than the tick."""
    return _cpuidle(root) or _stat_of_cores(root)


def cores_online(text: bytes) -> set[int]:
    """The cores of a kernel list such as b"0-3,6"; raises ValueError where it is none."""
    cores: set[int] = set()
    for part in filter(None, text.strip().split(b",")):
        first, dash, last = part.partition(b"-")
        begin, end = parse_count(first), parse_count(last if dash else first)
        if not begin <= end < _MOST_CORES:
            raise ValueError(f"{part[:20]!r} is no range of cores")
        cores.update(range(begin, end + 1))
    return cores


def _cpuidle(root: Path) -> OpenSensor | None:
    """Idle time; None where one online core has no cpuidle, or where the kernel does not count in it."""
    folder = root / "sys/devices/system/cpu"
    try:
        online = read_small_file(folder / "online")
        cores = sorted(cores_online(online))
        states = {core: numbered(list(folder.glob(f"cpu{core}/cpuidle/state*/time"))) for core in cores}
        if not cores or not all(states.values()):
            return None
        if not any(natural(read_small_file(path), _MOST_US) > 0 for paths in states.values() for path in paths):
            return None
        descriptors = open_files([folder / "online", *(path for paths in states.values() for path in paths)])
    except (OSError, ValueError):
        return None
    rest = iter(descriptors[1:])
    per_core = [[next(rest) for _ in states[core]] for core in cores]
    pread = os.pread

    def fetch() -> tuple[bytes, list[list[bytes]]]:
        now = pread(descriptors[0], 256, 0)
        try:
            return now, [[pread(file, 24, 0) for file in files] for files in per_core]
        except OSError:
            return now, [_texts_of(files) for files in per_core]

    def decode(fetched: tuple[bytes, list[list[bytes]]]) -> list[float]:
        now, texts = fetched
        idle_ns = [1000.0 * sum([natural(text, _MOST_US) for text in of_core]) for of_core in texts]
        if now == online:
            return idle_ns
        # A core that went offline stops counting idle time: without this it would look busy.
        up = cores_online(now)
        return [idle if core in up else NAN for core, idle in zip(cores, idle_ns, strict=True)]

    channels = tuple(
        Channel(
            id=f"core{core}.idle",
            sensor=CORES,
            quantity="core_idle_time",
            unit="ns",
            kind="counter",
            scope=f"core:{core}",
            parent_scope="system",
            source=str(folder / f"cpu{core}/cpuidle/state*/time"),
            step_size=1000.0,
        )
        for core in cores
    )
    return decoded_later(channels, fetch, decode, lambda: close_files(descriptors))


def _texts_of(files: Sequence[int]) -> list[bytes]:
    try:
        return [os.pread(file, 24, 0) for file in files]
    except OSError:
        return [b""]  # no number: this core is lost, and no other


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
    size = 128 * ((os.cpu_count() or 1) + 2) + 4096
    try:
        names = list(busy_ticks(os.pread(descriptors[0], size, 0)))
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
    """The kernel brings another process' clock up to date at its tick and at task switches."""
    clock_id = (~pid << 3) | 2  # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of the kernel's posix-timers
    try:
        time.clock_gettime_ns(clock_id)
        coarse = getattr(time, "CLOCK_MONOTONIC_COARSE", 6)
        tick_ns = int(time.clock_getres(coarse) * 1e9)
    except (OSError, AttributeError, OverflowError):
        return None
    channel = _channel(f"CPU clock of process {pid}", tick_ns, 1.0)
    return OpenSensor((channel,), lambda: [time.clock_gettime_ns(clock_id)], lambda: None)


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
