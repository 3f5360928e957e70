"""Contract of a sensor file: NAME and discover(root, target); standard library only.

`discover` looks below a filesystem root and answers with `OpenSensor` (channels, and a cheap read of all of them)
or with `NoSensor` (a typed reason, and the command that would change it). An absent sensor is normal.

Probe quantities behind a vendor library: each is tried once, those that answer become channels.
"""

from __future__ import annotations

import errno
import os
import select
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from stepscope.clock import Clock, monotonic_ns

Raw = TypeVar("Raw")
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
    card: str | None = None  # a GPU's address on the PCI bus and the begin of its UUID, as far as they are known
    calibration: dict[str, Any] | None = None  # what a meter showed of it on this device: `stepscope calibrate`


def make_channel(sensor: str, scope: str, quantity: str, unit: str, source: str, **fields: Any) -> Channel:
    """Return a channel with the id of its scope; energy is a counter, all else a gauge, of the system where not given.

    fields: others of a channel.
    """
    about = {"parent_scope": "system", "kind": "counter" if quantity == "energy" else "gauge", **fields}
    return Channel(channel_id(scope, quantity), sensor, quantity, unit, scope=scope, source=source, **about)


def rail_channel(sensor: str, name: str, quantity: str, source: str, **fields: Any) -> Channel:
    """Return the channel of a rail's power, voltage or current. known: fields that differ, and others of a channel."""
    about = {"rail": name, "parent_scope": "board", **fields}
    unit = {"power": "W", "voltage": "V", "current": "A"}[quantity]
    return Channel(f"rail.{name}.{quantity}", sensor, quantity, unit, "gauge", f"rail:{name}", source, **about)


class ProcessEnded(Exception):
    """Raised by a read: the process that it is of has ended. The sensor is let go without a gap or an event."""


@dataclass
class Pace:
    """Punctuality of the sampling loop: the one thing that a sensor learns from the loop."""

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
    """Target of the sampling: the process that trains or launches, and the meters that the user has named.

    training: pids of the training processes below it that have streams of their own; the sampler keeps it up to date.
    """

    pid: int
    clock: Clock = monotonic_ns
    pace: Pace = field(default_factory=Pace)
    meters: tuple[Meter, ...] = ()
    training: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class OpenSensor:
    """A sensor that answers: `read` returns one float a channel and raises OSError or ValueError when all is lost."""

    channels: tuple[Channel, ...]
    read: Callable[[], Sequence[float]]
    close: Callable[[], None]
    every_ns: int = 0  # the sensor's own period; 0 is "as often as the sampler goes"
    blocking: bool = False  # a read may wait (a network, a bus, a child process): it gets a thread of its own
    fetch: Callable[[], Any] | None = None  # the read without `decode`, which is pure: texts are parsed many at once
    decode: Callable[[Any], Sequence[float]] | None = None
    unread: tuple[NoSensor, ...] = ()  # parts of it that do not answer, and why


def decoded_later(
    channels: tuple[Channel, ...],
    fetch: Callable[[], Raw],
    decode: Callable[[Raw], Sequence[float]],
    close: Callable[[], None],
    every_ns: int = 0,
) -> OpenSensor:
    """Return a sensor whose read is `decode(fetch())`; the sampling loop takes the two apart.

    A tick finds caches that the training has emptied, so that parsing costs it several times what it costs in a batch.
    """
    return OpenSensor(channels, lambda: decode(fetch()), close, every_ns, fetch=fetch, decode=decode)


@dataclass(frozen=True)
class NoSensor:
    """Reason why a sensor gives nothing, and the exact command that would enable it."""

    reason: Reason
    detail: str
    remedy: str | None = None


ASLEEP = "is asleep, and asking would wake it: it is read from a second after it wakes"  # ends such a `detail`


def as_seen_below(root: Path, text: str) -> str:
    """Return text on a sensor's files, with paths as the machine has them whose files lie below `root`."""
    if root == Path("/"):
        return text.removeprefix("/: ")
    return text.replace(f"{root}: ", "").replace(str(root), "")


@dataclass(frozen=True)
class NamedSensor:
    """One of several sensors of a file, as a row of its SENSORS."""

    NAME: str
    discover: Callable[[Path, Target], OpenSensor | NoSensor]


class Sensor(Protocol):
    """A file of this folder."""

    NAME: str

    def discover(self, root: Path, target: Target) -> OpenSensor | NoSensor:
        """Look for the sensor below a filesystem root."""


def no_sensor_from_error(error: OSError, path: Path | str, remedy: str | None = None) -> NoSensor:
    """The typed reason behind a failed open or read of a path."""
    detail = f"{path}: {error.strerror or error}"
    if error.errno in (errno.EACCES, errno.EPERM):
        by_mode = not Path(path).is_relative_to("/proc")  # there the kernel's rules refuse, and not a file's mode
        return NoSensor(
            "denied", detail, remedy or (f"sudo chmod a+r {path}" if by_mode else "run the profiler as root")
        )
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return NoSensor("absent", detail, remedy)
    if error.errno in (errno.ENODEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENXIO):
        return NoSensor("unsupported", detail, remedy)
    return NoSensor("failed", detail, remedy)


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


def measure_read_cost(
    sensor: OpenSensor, clock: Clock = monotonic_ns, rounds: int = 20, limit_ns: int = 50_000_000
) -> int:
    """Median duration of a read of the whole sensor, ns; dear sensors get fewer rounds. Raises what the read raises."""
    costs: list[int] = []
    while len(costs) < rounds and sum(costs) < limit_ns:
        before = clock()
        sensor.read()
        costs.append(clock() - before)
    return int(statistics.median(costs))


# Opening a pipe that stands where a file should be would else wait for its writer, and hold up all sampling.
READ_ONLY = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_MOST_BYTES = 1 << 20


def read_small_file(path: Path) -> bytes:
    """All that a small file holds, without waiting for more; raises OSError."""
    file = os.open(path, READ_ONLY)
    try:
        parts = [os.read(file, _MOST_BYTES)]
        while parts[-1] and sum(map(len, parts)) < _MOST_BYTES:
            parts.append(os.read(file, _MOST_BYTES))
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        os.close(file)
    return b"".join(parts)


def wait_readable(file: int, seconds: float) -> bool:
    """Wait until a pipe has something or has ended; False where it has not in that time. Takes any descriptor."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def read_line_or_empty(path: Path) -> str:
    """Return the line, escaping bytes that are no text; empty where the file is missing or does not answer."""
    try:
        return read_small_file(path).decode(errors="backslashreplace").strip()
    except OSError:
        return ""


Errors = tuple[type[BaseException], ...]
UNREADABLE: Errors = (OSError, ValueError, TypeError, AttributeError, KeyError, IndexError, OverflowError)


@dataclass(frozen=True)
class Probe:
    """A channel, and the call that reads it in the channel's unit; NaN, or a raise, is "not read"."""

    channel: Channel
    call: Callable[[], float]
    every_ns: int = 0  # a call that is dear is made this seldom, and its last answer is repeated between
    later: bool = False  # it may have nothing to say yet: kept if it answers NaN, dropped only if it raises


def channel_id(scope: str, quantity: str) -> str:
    """The id of a channel, unique over the run as its scope is."""
    return f"{scope.replace(':', '.')}.{quantity}"


def call_or_nan(call: Callable[[], float], errors: Errors) -> float:
    """Return the result of a call; NaN where it raises one of these errors."""
    try:
        return float(call())
    except errors:
        return NAN


def probes_that_answer(probes: Sequence[Probe], errors: Errors) -> list[Probe]:
    """The probes that give a number when tried."""
    return [probe for probe in probes if _answers(probe, errors)]


def _answers(probe: Probe, errors: Errors) -> bool:
    try:
        value = probe.call()
    except errors:
        return False
    return probe.later or value == value


def make_probe_reader(probes: Sequence[Probe], errors: Errors, clock: Clock, lost: str) -> Callable[[], list[float]]:
    """A read of all probes; raises OSError, saying `lost`, when all fail that were due and have something to say."""
    last = [NAN] * len(probes)
    due_ns = [0] * len(probes)

    def read() -> list[float]:
        now_ns = clock()
        alive = tried = False
        for index, probe in enumerate(probes):
            if probe.every_ns:
                if now_ns < due_ns[index]:
                    continue
                due_ns[index] = now_ns + probe.every_ns
            tried |= not probe.later
            last[index] = value = call_or_nan(probe.call, errors)
            alive |= value == value
        if tried and not alive:
            raise OSError(lost)
        return list(last)

    return read
