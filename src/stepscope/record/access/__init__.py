"""Files of sysfs and proc: whole numbers that may be believed, files that stay open, the device tree.

Python's own int() would also take a plus, an underscore between digits (1_000) and other scripts' digits.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stepscope.clock import Clock, monotonic_ns
from stepscope.record.sensors.contract import (
    NAN,
    READ_ONLY,
    Channel,
    NoSensor,
    OpenSensor,
    Target,
    decoded_later,
    no_sensor_from_error,
    read_line_or_empty,
    read_small_file,
)

READ_BYTES = 64  # more than any value that is believed; a longer text is cut, and then too great
_COUNT_DIGITS = 15  # 31 years in us; a thousand petabytes in kB


def natural(text: bytes, most: float) -> float:
    """The whole number that a file states, 0 to `most`; NaN for text, an empty file, a sign, or more than can be."""
    digits = text.strip()
    if not digits.isdigit():
        return NAN
    value = int(digits)
    return float(value) if value <= most else NAN


def signed(text: bytes, least: float, most: float) -> float:
    """The whole number that a file states, `least` (below 0) to `most`; NaN as for `natural`."""
    digits = text.strip()
    if digits[:1] != b"-":
        return natural(digits, most)
    return 0.0 - natural(digits[1:], -least) if digits[1:].isdigit() else NAN


def parse_count(field: bytes) -> int:
    """A field of /proc (ticks, pages, kB); raises ValueError where it is no whole number, or more than can be."""
    if not field.isdigit() or len(field) > _COUNT_DIGITS:
        raise ValueError(f"{field[:20]!r} is not a count")
    return int(field)


def sum_counts(fields: Sequence[bytes]) -> int:
    """The sum of fields of /proc, each as for `parse_count`, which it is twice as fast as; raises ValueError."""
    if not b"".join(fields).isdigit() or max(map(len, fields)) > _COUNT_DIGITS:
        raise ValueError(f"{b' '.join(fields)[:60]!r} are no counts")
    return sum(map(int, fields))


def word_after(label: bytes, text: bytes) -> bytes:
    """Return the word after a label that begins a line; empty where there is none. A pattern takes longer."""
    begin = 0 if text.startswith(label) else text.find(b"\n" + label) + 1
    if not begin and not text.startswith(label):
        return b""
    end = text.find(b"\n", begin)
    words = text[begin + len(label) : None if end < 0 else end].split(None, 1)
    return words[0] if words else b""


def nan_for_failed_reads(values: Sequence[float | OSError]) -> list[float]:
    """NaN for each failed read; raises the first error where all failed and none is worth waiting for (EAGAIN)."""
    errors = [value for value in values if isinstance(value, OSError)]
    if errors and len(errors) == len(values) and not any(isinstance(error, BlockingIOError) for error in errors):
        raise errors[0]
    return [NAN if isinstance(value, OSError) else value for value in values]


RETRY_NS = 1_000_000_000
_GONE = (errno.ENODEV, errno.ENXIO, errno.ENOENT, errno.ESTALE)
_OF_THE_KERNEL = (Path("/proc"), Path("/sys"))


class DeviceFile:
    """Opens what `find` names; a device that comes back, even under another number, is read again within a second."""

    def __init__(self, find: Callable[[], Path | None], clock: Clock = monotonic_ns) -> None:
        self._find, self._clock = find, clock
        self._retry_at_ns = 0
        self._file: int | None = None
        self._open()

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes from the beginning; raises OSError, ENODEV while the device is away."""
        file = self._file
        if file is None or self._may_be_replaced:
            file = self._reopen_if_replaced()
        try:
            return os.pread(file, size, 0)
        except OSError as error:
            if error.errno in _GONE:
                self.close()
                self._retry_at_ns = 0
            raise

    def close(self) -> None:
        """Close the file; a later read opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _reopen_if_replaced(self) -> int:
        if self._file is not None and not os.fstat(self._file).st_nlink:
            self.close()  # a plain file of a simulated tree was replaced; the old one would be read for ever
            self._retry_at_ns = 0
        if self._file is None and (now_ns := self._clock()) >= self._retry_at_ns:
            self._retry_at_ns = now_ns + RETRY_NS
            self._open()
        if self._file is None:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return self._file

    def _open(self) -> None:
        path = self._find()
        if path is None:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        self._file = os.open(path, READ_ONLY)
        self._may_be_replaced = not any(map(path.is_relative_to, _OF_THE_KERNEL))


class CardAsleep(BlockingIOError):
    """Raised by a read that would wake a graphics card."""


class CardFile(DeviceFile):
    """A file of a graphics card in its `hwmon` folder; a card that sleeps is not woken, and its reads fail."""

    def __init__(self, find: Callable[[], Path | None], clock: Clock = monotonic_ns) -> None:
        self._state: DeviceFile | None = None
        with contextlib.suppress(OSError):  # a kernel without power management
            self._state = DeviceFile(lambda: (path := find()) and path.parent / f"device/{_POWER_STATE}", clock)
        super().__init__(find, clock)

    @property
    def asleep(self) -> bool:
        """Return whether the card is suspended; False where its driver does not say."""
        try:
            return self._state is not None and self._state.read(READ_BYTES).startswith(_ASLEEP)
        except OSError:
            return False

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes as other files do; raises CardAsleep where the card would be woken."""
        if self.asleep:
            raise CardAsleep(errno.EAGAIN, "the graphics card is asleep")
        return super().read(size)

    def close(self) -> None:
        """Close both files; a later read opens them again."""
        super().close()
        if self._state is not None:
            self._state.close()


_POWER_STATE, _ASLEEP = "power/runtime_status", b"suspend"  # suspended, suspending


def graphics_cards(root: Path, vendor: str) -> list[Path]:
    """Return the devices that are graphics cards of a vendor ("0x10de") on PCI; the look wakes none."""
    devices = [path.parent for path in root.glob("sys/bus/pci/devices/*/vendor") if read_line_or_empty(path) == vendor]
    return [device for device in devices if read_line_or_empty(device / "class").startswith("0x03")]


def all_suspended(cards: Sequence[Path]) -> bool:
    """Return whether there are graphics cards, and all of them are suspended; the look wakes none."""
    states = [read_line_or_empty(card / _POWER_STATE).encode() for card in cards]
    return bool(states) and all(state.startswith(_ASLEEP) for state in states)


def open_device_files(
    paths: list[Path], clock: Clock = monotonic_ns
) -> tuple[list[tuple[Path, DeviceFile]], list[OSError]]:
    """Open those paths that can be opened; return them, and why the others cannot."""
    files: list[tuple[Path, DeviceFile]] = []
    refused: list[OSError] = []
    for path in paths:
        try:
            files.append((path, DeviceFile(partial(Path, path), clock)))
        except OSError as error:
            error.filename = error.filename or str(path)
            refused.append(error)
    return files, refused


def close_device_files(files: list[DeviceFile]) -> None:
    """Close every file."""
    for file in files:
        file.close()


@dataclass(frozen=True)
class NumberFile:
    """A file and the channels that are read from it; `values` gives one float a channel, or raises ValueError."""

    path: Path
    channels: tuple[Channel, ...]
    values: Callable[[bytes], Sequence[float]]
    size: int = READ_BYTES
    tried: bool = False  # is excluded where it states nothing when it is opened
    remedy: str | None = None  # where it may not be read
    find: Callable[[], Path | None] | None = None  # where it is now, of a device that may come back elsewhere


@dataclass(frozen=True)
class FileSensor:
    """A sensor that is nothing but files which hold numbers: `find` yields them, and why some are not there.

    A file that fails reads NaN, and one whose device has gone is looked for every second. The sensor is lost when all
    fail, unless one may answer later (EAGAIN).
    """

    NAME: str
    find: Callable[[Path, Target], Iterable[NumberFile | NoSensor]]
    absent: str  # the folder below the root, and what is not in it
    every_ns: int = 0
    whole: bool = False  # all files or none

    def discover(self, root: Path, target: Target) -> OpenSensor | NoSensor:
        """Open what is there."""
        opened: list[tuple[DeviceFile, NumberFile]] = []
        reasons: list[NoSensor] = []
        for file in self.find(root, target):
            answer = file if isinstance(file, NoSensor) else _open_number_file(file, target.clock)
            if isinstance(answer, NoSensor):
                reasons.append(answer)
            elif isinstance(file, NumberFile):
                opened.append((answer, file))

        def close() -> None:
            close_device_files([device for device, _ in opened])

        if not opened or (self.whole and reasons):
            close()
            reasons.append(NoSensor("absent", str(root / self.absent)))
            return next((why for why in reasons if why.reason == "denied"), reasons[0])
        channels = tuple(channel for _, file in opened for channel in file.channels)
        return decoded_later(
            channels, partial(_read_contents, opened), partial(_parse_values, opened), close, self.every_ns
        )


def _open_number_file(file: NumberFile, clock: Clock) -> DeviceFile | NoSensor:
    try:
        device = DeviceFile(file.find or partial(Path, file.path), clock)
    except OSError as error:
        return no_sensor_from_error(
            error, file.path, file.remedy if error.errno in (errno.EACCES, errno.EPERM) else None
        )
    try:
        if not file.tried or not all(map(math.isnan, file.values(device.read(file.size)))):
            return device
        why = NoSensor("unsupported", f"{file.path} states no {file.channels[0].quantity}")
    except OSError as error:
        why = no_sensor_from_error(error, file.path)
    except ValueError as error:
        why = NoSensor("unsupported", f"{file.path}: {error}")
    device.close()
    return why


def _read_contents(opened: Sequence[tuple[DeviceFile, NumberFile]]) -> list[bytes | OSError]:
    texts: list[bytes | OSError] = []
    errors: list[OSError] = []
    for device, file in opened:
        try:
            texts.append(device.read(file.size))
        except OSError as error:
            texts.append(error)
            errors.append(error)
    if len(errors) == len(opened) and not any(isinstance(error, BlockingIOError) for error in errors):
        raise errors[0]
    return texts


def _parse_values(opened: Sequence[tuple[DeviceFile, NumberFile]], texts: Sequence[bytes | OSError]) -> list[float]:
    values: list[float] = []
    for (_, file), text in zip(opened, texts, strict=True):
        values += [NAN] * len(file.channels) if isinstance(text, OSError) else file.values(text)
    return values


_SEEN_AT = "proc/device-tree/compatible"


def is_jetson(root: Path) -> bool:
    """Return whether this is an NVIDIA Tegra board: `compatible` names the chip, or L4T has left its release file."""
    try:
        return b"nvidia,tegra" in read_small_file(root / _SEEN_AT)
    except OSError:
        return (root / "etc/nv_tegra_release").exists()


def read_device_tree_cell(path: Path) -> int | None:
    """A property of one 32-bit cell, big endian (Devicetree Specification 2.2.4); None where there is none."""
    try:
        cells = read_small_file(path)
    except OSError:
        return None
    return int.from_bytes(cells, "big") if len(cells) == 4 else None
