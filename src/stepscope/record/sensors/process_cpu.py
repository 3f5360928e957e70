"""CPU time of the watched process, all threads: perf task clock, else its POSIX CPU clock, else /proc/PID/stat."""

from __future__ import annotations

import os
import time
from pathlib import Path

from stepscope.record.access.files import count
from stepscope.record.sensors.contract import Channel, Found, Missing, Target, close_files, missing_because, open_files

NAME = "process_cpu"


def discover(root: Path, target: Target) -> Found | Missing:
    """One counter, ns: the freshest source that this kernel and its permissions allow."""
    if root == Path("/"):
        live = _perf(target.pid) or _cpu_clock(target.pid)
        if live is not None:
            return live
    return _proc_stat(root, target.pid)


def process_ticks(stat: bytes) -> int:
    """utime + stime of /proc/PID/stat, in ticks; the name before them may hold blanks and brackets."""
    fields = stat[stat.rindex(b")") + 2 :].split(None, 14)
    return count(fields[11]) + count(fields[12])


def _channel(source: str, refresh_ns: int | None, step_size: float) -> Channel:
    return Channel(
        id="process.cpu_time",
        sensor=NAME,
        quantity="process_cpu_time",
        unit="ns",
        kind="counter",
        scope="process",
        parent_scope="system",
        source=source,
        refresh_ns=refresh_ns,
        step_size=step_size,
    )


def _perf(pid: int) -> Found | None:
    """Counts from now on; fresh at each read (about 1 us a thread that lives now)."""
    from stepscope.record.access.perf_event import open_task_clocks, total_ns

    descriptors = open_task_clocks(pid)
    if not descriptors:
        return None
    channel = _channel(f"perf_event_open task-clock, threads: {len(descriptors)}, and all that they start", 1, 1.0)
    return Found((channel,), lambda: [total_ns(descriptors)], lambda: close_files(descriptors))


def _cpu_clock(pid: int) -> Found | None:
    """The kernel brings another process' clock up to date at its tick and at task switches."""
    clock_id = (~pid << 3) | 2  # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of the kernel's posix-timers
    try:
        time.clock_gettime_ns(clock_id)
        coarse = getattr(time, "CLOCK_MONOTONIC_COARSE", 6)
        tick_ns = int(time.clock_getres(coarse) * 1e9)
    except (OSError, AttributeError, OverflowError):
        return None
    channel = _channel(f"CPU clock of process {pid}", tick_ns, 1.0)
    return Found((channel,), lambda: [time.clock_gettime_ns(clock_id)], lambda: None)


def _proc_stat(root: Path, pid: int) -> Found | Missing:
    path = root / f"proc/{pid}/stat"
    try:
        descriptors = open_files([path])
        process_ticks(os.pread(descriptors[0], 1024, 0))
    except OSError as error:
        return missing_because(error, path)
    except (ValueError, IndexError) as error:
        close_files(descriptors)
        return Missing("failed", f"{path}: {error}")
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    channel = _channel(str(path), tick_ns, float(tick_ns))
    return Found(
        (channel,),
        lambda: [process_ticks(os.pread(descriptors[0], 1024, 0)) * tick_ns],
        lambda: close_files(descriptors),
    )
