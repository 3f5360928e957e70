"""What a sensor file offers: NAME and discover(root, target); standard library only.

`discover` looks below a filesystem root and answers with `Found` (channels, and a cheap read of all of them)
or with `Missing` (a typed reason, and the command that would change it). An absent sensor is normal.
"""

from __future__ import annotations

import errno
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from stepscope.clock import Clock, monotonic_ns
from stepscope.record.formats.attribute import READ_ONLY

Kind = Literal["gauge", "counter", "estimate"]
Reason = Literal["absent", "denied", "unsupported", "failed"]
NAN = float("nan")  # in a reading: not read


@dataclass(frozen=True)
class Channel:
    """One quantity of a sensor; `refresh_ns`, `step_size` and `filter` are None where they are not known."""

    id: str  # unique over the run
    sensor: str
    quantity: str
    unit: str
    kind: Kind
    scope: str
    source: str
    rail: str | None = None  # as the hardware names it
    parent_scope: str | None = None
    refresh_ns: int | None = None
    step_size: float | None = None
    read_cost_ns: int | None = None  # of the whole sensor; measured when sampling starts
    filter: str | None = None  # how the hardware averages, in words: "running average of 64 conversions"
    window_ns: int | None = None  # width of the block, or time constant of the running average, that it averages over
    counter_range: float | None = None  # a counter starts again at 0 when it reaches this
    most_per_s: float | None = None  # a counter cannot grow faster: more is a reset, not a wrap
    read_cost_p99_ns: int | None = None  # 99th percentile, from self-characterisation
    measured: tuple[str, ...] = ()  # fields above that this device's self-characterisation filled, not the driver


@dataclass
class Pace:
    """How well the sampling loop keeps its deadlines: the one thing that a sensor learns from the loop."""

    worst_lateness_ns: int = 0  # since the sensor took it last
    missed: int = 0

    def late(self, lateness_ns: int) -> None:
        """Note how late a tick began, ns."""
        if lateness_ns > self.worst_lateness_ns:
            self.worst_lateness_ns = lateness_ns

    def take_lateness(self) -> int:
        """The worst lateness of a tick since the last call, ns."""
        worst, self.worst_lateness_ns = self.worst_lateness_ns, 0
        return worst


@dataclass(frozen=True)
class Meter:
    """A meter that only the user can name: a plug's address, a command, a log file, an adb serial."""

    kind: str  # shelly, tasmota, command, adb, termux: the sensor file that takes it
    address: str
    name: str  # of the channel; unique over the meters


@dataclass(frozen=True)
class Target:
    """What is watched: the process that trains, and the meters that the user has named."""

    pid: int
    clock: Clock = monotonic_ns
    pace: Pace = field(default_factory=Pace)
    meters: tuple[Meter, ...] = ()


@dataclass(frozen=True)
class Found:
    """A sensor that answers: `read` returns one float a channel and raises OSError or ValueError when all is lost."""

    channels: tuple[Channel, ...]
    read: Callable[[], Sequence[float]]
    close: Callable[[], None]
    every_ns: int = 0  # the sensor's own period; 0 is "as often as the sampler goes"
    blocking: bool = False  # a read may wait (a network, a bus, a child process): it gets a thread of its own


@dataclass(frozen=True)
class Missing:
    """Why a sensor gives nothing, and the exact command that would enable it."""

    reason: Reason
    detail: str
    remedy: str | None = None


def as_seen_below(root: Path, text: str) -> str:
    """What a sensor says of its files, with paths as the machine has them whose files lie below `root`."""
    if root == Path("/"):
        return text.removeprefix("/: ")
    return text.replace(f"{root}: ", "").replace(str(root), "")


class Sensor(Protocol):
    """A file of this folder."""

    NAME: str

    def discover(self, root: Path, target: Target) -> Found | Missing:
        """Look for the sensor below a filesystem root."""


def missing_because(error: OSError, path: Path | str, remedy: str | None = None) -> Missing:
    """The typed reason behind a failed open or read of a path."""
    detail = f"{path}: {error.strerror or error}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return Missing("denied", detail, remedy or f"sudo chmod a+r {path}")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return Missing("absent", detail, remedy)
    if error.errno in (errno.ENODEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENXIO):
        return Missing("unsupported", detail, remedy)
    return Missing("failed", detail, remedy)


def open_files(paths: Sequence[Path]) -> list[int]:
    """Descriptors of all files, kept for os.pread; raises OSError, and then holds none open."""
    descriptors: list[int] = []
    try:
        for path in paths:
            descriptors += [os.open(path, READ_ONLY)]
    except OSError:
        close_files(descriptors)
        raise
    return descriptors


def close_files(descriptors: Sequence[int]) -> None:
    """Close every descriptor."""
    for descriptor in descriptors:
        os.close(descriptor)


def numbered(paths: Sequence[Path]) -> list[Path]:
    """Paths such as cpu0, cpu10, cpu2 in the order of their numbers."""
    return sorted(paths, key=lambda path: (int("".join(c for c in path.name if c.isdigit()) or 0), path.name))


def measure_read_cost(found: Found, clock: Clock = monotonic_ns, rounds: int = 20, limit_ns: int = 50_000_000) -> int:
    """Median duration of a read of the whole sensor, ns; dear sensors get fewer rounds. Raises what the read raises."""
    costs: list[int] = []
    while len(costs) < rounds and sum(costs) < limit_ns:
        before = clock()
        found.read()
        costs.append(clock() - before)
    return int(statistics.median(costs))
