"""Waits and limits of the training: its main thread and affinity, the kernel's pressure, paging, throttling.

Each tells a cause of slow steps that operators cannot tell: time in a run queue, in a lock, on a disk.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stepscope.record.access import FileSensor, NumberFile, natural, parse_count, word_after
from stepscope.record.sensors.contract import (
    NAN,
    Channel,
    Kind,
    NoSensor,
    OpenSensor,
    Target,
    close_files,
    decoded_later,
    no_sensor_from_error,
    numbered,
    open_files,
    read_line_or_empty,
)
from stepscope.record.sensors.cpu import cores_online

_OFTEN_NS, _SELDOM_NS = 100_000_000, 1_000_000_000
_US, _KHZ = 1000.0, 1000.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MOST_US = 1e18
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
# A sleep; Python's global lock (a futex with a time limit); other locks; a file, a page or swap; a pipe or a child.
WAITS = ("timer", "interpreter", "lock", "disk", "process")


def _channel(name: str, sensor: str, quantity: str, scope: str, source: Path | str, **more: object) -> Channel:
    """A counter, unless `kind` says other; its unit is "1" unless given."""
    facts: dict[str, object] = {"unit": "1", "kind": "counter", "parent_scope": "system", "step_size": 1.0, **more}
    return Channel(name, sensor, quantity, scope=scope, source=str(source), **facts)  # type: ignore[arg-type]


_SYSTEM_CALLS = {  # number of the call that a thread sleeps in: where the kernel names no function
    "x86_64": {202: "lock", 449: "lock", 35: "timer", 230: "timer", 0: "process", 7: "process", 23: "process",
               61: "process", 232: "process", 270: "process", 271: "process", 281: "process", 45: "process",
               47: "process", 247: "process"},
    "aarch64": {98: "lock", 449: "lock", 101: "timer", 115: "timer", 63: "process", 22: "process", 72: "process",
                73: "process", 95: "process", 207: "process", 212: "process", 260: "process"},
}  # fmt: skip
_WAITING_IN = (
    (re.compile(rb"futex"), "lock"),
    (re.compile(rb"nanosleep"), "timer"),
    (re.compile(rb"folio|page|io_schedule|blk_|bio_|swap|jbd2|ext4|xfs|btrfs|f2fs|nfs|fuse|writeback"), "disk"),
    (re.compile(rb"poll|select|pipe|sock|unix_|skb|tcp_|do_wait|kernel_wait|eventfd"), "process"),
)


@dataclass
class TrainingThread:
    """The main thread of the watched process: CPU time, time in the run queue, and what it waits in at each read."""

    NAME: str = "process_thread"

    def discover(self, root: Path, target: Target) -> OpenSensor | NoSensor:
        """Two counters, ns, and a gauge (0 or 1) for each of WAITS; what it waits in needs the rights of its user."""
        folder = root / f"proc/{target.pid}/task/{target.pid}"
        try:
            schedstat, stat = open_files([folder / "schedstat", folder / "stat"])
        except OSError as error:
            return no_sensor_from_error(error, error.filename or folder)
        wait_files = []
        for name in ("syscall", "wchan"):
            with contextlib.suppress(OSError):
                wait_files += open_files([folder / name])
        calls = {b"%d" % call: wait for call, wait in _SYSTEM_CALLS.get(platform.machine(), {}).items()}
        gauges = {waits: [float(wait == waits) for wait in WAITS] for waits in (None, *WAITS)}
        pread = os.pread

        def fetch() -> tuple[bytes, bytes, list[bytes]]:
            times, text = pread(schedstat, 96, 0), pread(stat, 512, 0)
            place = text.rindex(b")") + 2
            state = text[place : place + 1]
            return times, state, _waiting_in(wait_files, calls) if state == b"S" else []

        def decode(fetched: tuple[bytes, bytes, list[bytes]]) -> list[float]:
            times, state, texts = fetched
            ran, delayed = times.split()[:2]
            waits = "disk" if state == b"D" else _classify_wait(texts, calls)
            return [parse_count(ran), parse_count(delayed), *gauges[waits]]

        sensor = decoded_later(
            tuple(self._channels(folder)), fetch, decode, lambda: close_files([schedstat, stat, *wait_files])
        )
        try:
            sensor.read()
        except (OSError, ValueError, IndexError) as error:
            sensor.close()
            return NoSensor("unsupported", f"{folder}/schedstat: {error}")
        return sensor

    def _channels(self, folder: Path) -> Iterator[Channel]:
        for quantity in ("thread_cpu_time", "run_delay"):
            yield _channel(f"thread.{quantity}", self.NAME, quantity, "thread", folder / "schedstat", unit="ns")
        for wait in WAITS:
            name, scope = f"thread.waits_{wait}", f"wait:{wait}"
            yield _channel(name, self.NAME, "thread_waiting", scope, folder / "wchan", kind="gauge")


_SLEEP = re.compile(rb"^(?:23|72|270) 0x0 ")  # select or pselect6 of no files: time.sleep() of Python 3.10
_TIMED_FUTEX = re.compile(rb"^\d+ 0x[0-9a-f]+ 0x(?:8|18)?9 0x[0-9a-f]+ 0x[1-9a-f]")  # FUTEX_WAIT_BITSET and a time


def _waiting_in(wait_files: Sequence[int], calls: Collection[bytes]) -> list[bytes]:
    """Return what /proc/PID/syscall and, where that is no call that is known, wchan state of a sleeping thread."""
    texts = []
    for file in wait_files:
        with contextlib.suppress(OSError):
            texts.append(os.pread(file, 192, 0))
            if texts[-1].partition(b" ")[0] in calls:
                break
    return texts


def _classify_wait(texts: Sequence[bytes], calls: Mapping[bytes, str]) -> str | None:
    """Return what a sleeping thread waits in, by /proc/PID/syscall or wchan; None where neither may be read or tells.

    A Python thread that wants the interpreter's lock sleeps in a futex with a time limit (its switch interval), one
    that waits for the threads of an operator in one without.
    """
    for text in texts:
        number, *arguments = text.split(b" ", 1)
        if arguments and number.isdigit():
            kind = calls.get(number)
            if kind == "lock" and _TIMED_FUTEX.match(text):
                return "interpreter"
            if kind == "process" and _SLEEP.match(text):
                return "timer"
        else:
            kind = next((wait for pattern, wait in _WAITING_IN if pattern.search(text)), None)
        if kind is not None:
            return kind
    return None


def _pressure(root: Path, target: Target) -> Iterator[NumberFile]:
    """Counters, ns: time in which some task, or every one, waited for the CPU, for memory or for a disk (PSI)."""
    for resource in ("cpu", "memory", "io"):
        path = root / "proc/pressure" / resource
        kinds = ("some",) if resource == "cpu" else ("some", "full")
        channels = tuple(
            _channel(f"pressure.{resource}.{kind}", "system_pressure", "stall_time", f"{resource}:{kind}", path,
                     unit="ns", step_size=_US)
            for kind in kinds
        )  # fmt: skip
        yield NumberFile(path, channels, partial(_parse_stall_totals, kinds), 256, tried=True)


def _parse_stall_totals(kinds: Sequence[str], text: bytes) -> list[float]:
    stated = {line[:4].decode(): line.rpartition(b" total=")[2] for line in text.splitlines()}
    return [natural(stated.get(kind, b""), _MOST_US) * _US for kind in kinds]


def _steal_counter(root: Path, target: Target) -> Iterator[NumberFile]:
    """One counter, ns over all cores: time that the hypervisor gave to others."""
    path = root / "proc/stat"
    channel = _channel(
        "system.steal", "system_steal", "steal_time", "system", path,
        unit="ns", parent_scope=None, refresh_ns=_TICK_NS, step_size=float(_TICK_NS),
    )  # fmt: skip
    yield NumberFile(path, (channel,), lambda text: [parse_count(text.split(None, 9)[8]) * _TICK_NS], 256, tried=True)


_PAGES = {"swap_in": b"pswpin", "swap_out": b"pswpout", "direct_reclaim": b"pgsteal_direct"}  # of /proc/vmstat


def _paging(root: Path, target: Target) -> Iterator[NumberFile]:
    """Counters of the machine, B: swapped in and out, and taken back from others while a program waited for memory."""
    path = root / "proc/vmstat"
    channels = tuple(
        _channel(f"paging.{quantity}", "system_paging", quantity, "system", path,
                 unit="B", step_size=float(_PAGE_BYTES), parent_scope=None)
        for quantity in _PAGES
    )  # fmt: skip
    yield NumberFile(path, channels, _page_counts, 16384, tried=True)


def _page_counts(text: bytes) -> list[float]:
    pages = (word_after(name + b" ", text) for name in _PAGES.values())
    return [float(parse_count(word)) * _PAGE_BYTES if word else NAN for word in pages]


def _process_paging(root: Path, target: Target) -> Iterator[NumberFile]:
    """Counters of the watched process: page faults that waited for a disk, and bytes of its files from and to disks."""
    stat, io = (root / f"proc/{target.pid}/{name}" for name in ("stat", "io"))
    faults = _channel("process.major_faults", "process_paging", "major_faults", "process", stat)

    def major_faults(text: bytes) -> list[float]:
        return [float(parse_count(text[text.rindex(b")") + 2 :].split(None, 10)[9]))]

    yield NumberFile(stat, (faults,), major_faults, 1024, tried=True)
    names = {"storage_read": b"read_bytes: ", "storage_written": b"write_bytes: "}
    moved = tuple(_channel(f"process.{name}", "process_paging", name, "process", io, unit="B") for name in names)

    def bytes_moved(text: bytes) -> list[float]:
        words = (word_after(name, text) for name in names.values())
        return [float(parse_count(word)) if word else NAN for word in words]

    yield NumberFile(io, moved, bytes_moved, 512, tried=True)


_SWITCHES = {
    "allowed_cores": re.compile(rb"^Cpus_allowed_list:\s*(\S+)", re.MULTILINE),
    "voluntary_switches": re.compile(rb"^voluntary_ctxt_switches:\s*(\d+)", re.MULTILINE),
    "involuntary_switches": re.compile(rb"^nonvoluntary_ctxt_switches:\s*(\d+)", re.MULTILINE),
}


def _affinity(root: Path, target: Target) -> Iterator[NumberFile]:
    """Cores that the main thread may run on (affinity and cpuset), and how often it gave its core up, or lost it."""
    path = root / f"proc/{target.pid}/task/{target.pid}/status"

    def values(text: bytes) -> list[float]:
        matches = {name: pattern.search(text) for name, pattern in _SWITCHES.items()}
        cores = matches["allowed_cores"]
        allowed = float(len(cores_online(cores[1]))) if cores else NAN
        switches = (matches[name] for name in ("voluntary_switches", "involuntary_switches"))
        return [allowed, *(float(parse_count(match[1])) if match else NAN for match in switches)]

    def channel(quantity: str, kind: Kind) -> Channel:
        return _channel(f"thread.{quantity}", "process_affinity", quantity, "thread", path, kind=kind)

    channels = (
        channel("allowed_cores", "gauge"), channel("voluntary_switches", "counter"),
        channel("involuntary_switches", "counter"),
    )  # fmt: skip
    yield NumberFile(path, channels, values, 8192, tried=True)


# Of ACPI, cpufreq, devfreq, idle injection and Tegra. LCD, TCC Offset, a radio or a charger takes no clock away.
_TAKES_CLOCKS = re.compile(r"processor|[cg]pu|devfreq|idle|powerclamp|throttl|balanced|^(heavy|light)$", re.IGNORECASE)


def _clock_limits(root: Path, target: Target) -> Iterator[NumberFile]:
    """Limit of each clock, Hz, throttling events (x86), steps of cooling that take clocks away, and speed of fans."""
    cpus = root / "sys/devices/system/cpu"
    for policy in numbered(list((cpus / "cpufreq").glob("policy*"))):
        name, path = policy.name, policy / "scaling_max_freq"
        limit = _channel(
            f"{name}.limit", "cpu_limits", "core_frequency_limit", name, path, unit="Hz", kind="gauge", step_size=_KHZ
        )
        yield NumberFile(path, (limit,), lambda text: [natural(text, 1e8) * _KHZ or NAN], tried=True)
    for path in numbered(list(cpus.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"))):
        core = path.parent.parent.name
        events = _channel(f"{core}.throttle_events", "cpu_limits", "throttle_events", f"core:{core[3:]}", path)
        yield NumberFile(path, (events,), lambda text: [natural(text, 1e15)], tried=True)
    for path in numbered(list((root / "sys/class/thermal").glob("cooling_device*/cur_state"))):
        kind = read_line_or_empty(path.parent / "type") or "unnamed"
        if re.search("fan", kind, re.IGNORECASE):  # one that turns takes no clock away
            highest = natural(read_line_or_empty(path.parent / "max_state").encode(), 1e6)
            name, quantity, of = f"{path.parent.name}.level", "fan_level", highest if highest > 0 else NAN
        elif _TAKES_CLOCKS.search(kind):
            name, quantity, of = f"{path.parent.name}.state", "cooling_state", 1.0
        else:
            continue
        state = _channel(name, "cpu_limits", quantity, f"cooling:{kind}", path, kind="gauge")
        yield NumberFile(path, (state,), partial(_parse_share, of), tried=True)


def _parse_share(whole: float, text: bytes) -> list[float]:
    return [natural(text, 1e6) / whole]


SENSORS = (
    TrainingThread(),
    FileSensor(
        "system_pressure", _pressure, "proc/pressure: no pressure stall information (psi=1 boots it)", _OFTEN_NS
    ),
    FileSensor("system_steal", _steal_counter, "proc/stat", _OFTEN_NS),
    FileSensor("system_paging", _paging, "proc/vmstat", 5 * _OFTEN_NS),
    FileSensor("process_paging", _process_paging, "proc", _OFTEN_NS),
    FileSensor("process_affinity", _affinity, "proc", _SELDOM_NS),
    FileSensor(
        "cpu_limits", _clock_limits, "sys/class/thermal: no limits of clocks (usual in virtual machines)", _SELDOM_NS
    ),
)
