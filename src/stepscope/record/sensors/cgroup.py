"""Limits of the watched process's cgroup and of those above it: the CPU quota, and hits of the memory limit."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from stepscope.clock import Clock
from stepscope.record.access import natural, word_after
from stepscope.record.sensors.contract import (
    NAN,
    READ_ONLY,
    Channel,
    Kind,
    NoSensor,
    OpenSensor,
    Target,
    close_files,
    no_sensor_from_error,
    read_small_file,
)

_EVERY_NS = 200_000_000
_ANEW_NS = 10_000_000_000
_US = 1000.0


@dataclass
class CgroupCpu:
    """The CPU quota of the watched process's cgroup and of those above it, and how long they held it back."""

    NAME: str = "process_cgroup"

    def discover(self, root: Path, target: Target) -> OpenSensor | NoSensor:
        """Counters (throttled ns over all cores, periods, throttled periods, hits of the memory limit), the quota."""
        own = root / f"proc/{target.pid}/cgroup"
        try:
            totals = _ThrottleTotals(root, own, target.clock)
        except OSError as error:
            return no_sensor_from_error(error, own)
        names = {"throttled_time": "ns", "throttled_periods": "1", "quota_periods": "1", "memory_limit_hits": "1"}
        counters = [self._channel(name, unit, "counter", own) for name, unit in names.items()]
        return OpenSensor(
            (*counters, self._channel("cpu_quota", "cores", "gauge", own)), totals.read, totals.close, _EVERY_NS
        )

    def _channel(self, quantity: str, unit: str, kind: Kind, own: Path) -> Channel:
        name = f"cgroup.{quantity}"
        return Channel(name, self.NAME, quantity, unit, kind, "cgroup", str(own), parent_scope="system", step_size=1.0)


class _ThrottleTotals:
    """Sums over the groups that hold a process back; a process that moves into another group goes on counting.

    The files stay open, and are looked for anew when the process has moved, and every ten seconds.
    """

    def __init__(self, root: Path, own: Path, clock: Clock) -> None:
        self._root, self._own, self._clock = root, own, clock
        self._files: dict[Path, int | None] = {}
        self._anew_ns = 0
        self._membership = b""
        self._cpu: list[Path] = []  # folders of the controllers, the process's own group first
        self._memory: list[Path] = []
        self._last: dict[tuple[str, Path], list[float]] = {}
        self._totals = [0.0, 0.0, 0.0, 0.0]
        self.read()

    def read(self) -> list[float]:
        """Growth since the first read, and the least quota, cores; NaN where there is none."""
        now_ns = self._clock()
        membership = read_small_file(self._own)
        if membership != self._membership or now_ns >= self._anew_ns:
            self.close()
            self._membership, self._anew_ns = membership, now_ns + _ANEW_NS
            self._cpu, self._memory = _groups_of(self._root / "sys/fs/cgroup", membership)
        counted = {("cpu", group): [*self._throttled(group), 0.0] for group in self._cpu}
        counted |= {("memory", group): [0.0, 0.0, 0.0, self._limit_hits(group)] for group in self._memory}
        for group, now in counted.items():
            before = self._last.get(group, now)
            self._totals = [
                total + max(0.0, new - old) for total, new, old in zip(self._totals, now, before, strict=True)
            ]
        self._last |= counted
        return [*self._totals, min((cores for group in self._cpu for cores in self._quota(group)), default=NAN)]

    def close(self) -> None:
        close_files([file for file in self._files.values() if file is not None])
        self._files = {}

    def _read_kept_file(self, path: Path) -> bytes:
        """What a file states; nothing where it is missing or does not answer."""
        if path not in self._files:
            self._files[path] = None
            with contextlib.suppress(OSError):
                self._files[path] = os.open(path, READ_ONLY)
        file = self._files[path]
        if file is not None:
            with contextlib.suppress(OSError):
                return os.pread(file, 4096, 0)
        return b""

    def _throttled(self, group: Path) -> list[float]:
        """Time throttled, ns, throttled periods, and periods that the quota counted."""
        stat = self._read_kept_file(group / "cpu.stat")
        microseconds, held_ns = (
            _number_after_name(b"throttled_usec ", stat),
            _number_after_name(b"throttled_time ", stat),
        )
        return [
            microseconds * _US + held_ns,
            _number_after_name(b"nr_throttled ", stat),
            _number_after_name(b"nr_periods ", stat),
        ]

    def _limit_hits(self, group: Path) -> float:
        """How often memory was refused or taken back because the group had reached its own limit.

        memory.events counts the groups below as well: before Linux 5.2 the innermost group alone is told.
        """
        events = self._read_kept_file(group / "memory.events.local")
        if not events and group == self._memory[0]:
            events = self._read_kept_file(group / "memory.events")
        failed = natural(self._read_kept_file(group / "memory.failcnt"), 1e15)
        return (
            _number_after_name(b"max ", events)
            + _number_after_name(b"high ", events)
            + (0.0 if failed != failed else failed)
        )

    def _quota(self, group: Path) -> list[float]:
        """Cores that a group may use; empty where nothing limits it."""
        words = self._read_kept_file(group / "cpu.max").split()
        words = words or [self._read_kept_file(group / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
        quota, period = (natural(word, 1e12) for word in (*words, b"", b"")[:2])
        return [quota / period] if quota > 0 and period > 0 else []


def _groups_of(top: Path, membership: bytes) -> tuple[list[Path], list[Path]]:
    """Folders that limit CPU time, and memory, of the process's own group and of all above it, in version 1 or 2."""
    places = dict(line.split(":", 2)[1:] for line in membership.decode(errors="replace").splitlines() if ":" in line)
    if (top / "cgroup.controllers").exists():
        unified = _group_and_ancestors(top, places.get("", "/"))
        return unified, unified
    controllers = {name: path for names, path in places.items() for name in names.split(",")}
    folders = [top / name for name in ("cpu", "cpu,cpuacct") if (top / name).is_dir()] or [top / "cpu"]
    return _group_and_ancestors(folders[0], controllers.get("cpu", "")), _group_and_ancestors(
        top / "memory", controllers.get("memory", "")
    )


def _group_and_ancestors(folder: Path, path: str) -> list[Path]:
    """A group's folder and those of all groups above it."""
    place = Path(path.lstrip("/"))
    return [folder / group for group in (place, *place.parents)]


def _number_after_name(name: bytes, text: bytes) -> float:
    """The number after a name that begins a line; 0 where there is none."""
    return 0.0 if (value := natural(word_after(name, text), 1e18)) != value else value


SENSORS = (CgroupCpu(),)
