"""Power rails of a Jetson, W: the INA3221 under JetPack 4 (iio) and JetPack 5 and later (hwmon).

Power is voltage x current. JetPack 4 gives both in one read of `ui_input_n`. Under hwmon each costs 0.55 ms on I2C:
the current is read every time and the voltage, which stands in steps of 8 mV on a regulated rail, every tenth time.
"""

from __future__ import annotations

import errno
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.record.access.ina3221_chips import Chip, Rail, find_chips
from stepscope.record.formats.ina3221 import BUS_STEP_V, MOST_MILLIVOLT, current_step_a, most_milliampere
from stepscope.record.formats.sysfs import READ_BYTES, natural
from stepscope.record.sensors.contract import (
    NAN,
    Channel,
    Found,
    Missing,
    Target,
    close_files,
    missing_because,
    open_files,
)

NAME = "ina3221"
IIO_EVERY_NS = 10_000_000
HWMON_EVERY_NS = 10_000_000  # a round of conversions takes 6.6 ms
VOLTAGE_EVERY = 10  # reads of a hwmon rail
VOLTAGE_NS = 1_000_000_000  # and no voltage is older than this
REOPEN_NS = 1_000_000_000
PATIENCE = 3  # reads in which no rail answers, before the sensor counts as lost
GONE = (errno.ENODEV, errno.ENOENT, errno.ENXIO, errno.ESTALE, errno.EBADF)  # the driver has let go of the file


def discover(root: Path, target: Target) -> Found | Missing:
    """A power gauge a rail, W, and what else the same read gives; rails without a name (NC) are left out."""
    try:
        chips = [chip for chip in find_chips(root) if chip.rails]
        if not chips:
            return Missing("absent", f"{root / 'sys/bus/i2c/drivers'}: no INA3221 (NVIDIA Jetson boards have it)")
        readers = [_Reader(root, chip, target) for chip in chips]
    except OSError as error:
        return missing_because(error, error.filename or root)
    denied = [reader.error for reader in readers if reader.error is not None]
    if len(denied) == len(readers):
        return missing_because(denied[0], denied[0].filename or root, _remedy(chips))
    board = _Board(readers)
    values = board.read()
    if all(map(math.isnan, values)):
        board.close()
        return Missing("failed", f"{chips[0].rails[0].files[0]}: no rail answers with a number")
    channels = _channels(chips, values)
    hwmon = len(chips[0].rails[0].files) == 2
    return Found(channels, board.read, board.close, every_ns=HWMON_EVERY_NS if hwmon else IIO_EVERY_NS)


def _remedy(chips: Sequence[Chip]) -> str:
    return f"sudo chmod a+r {' '.join(str(path) for chip in chips for rail in chip.rails for path in rail.files)}"


class _Board:
    """All chips; lost when no rail answers any more."""

    def __init__(self, readers: Sequence[_Reader]) -> None:
        self._readers = readers
        self._silent = 0

    def read(self) -> list[float]:
        values = [value for reader in self._readers for value in reader.read()]
        if not all(map(math.isnan, values)):
            self._silent = 0
            return values
        self._silent += 1
        if self._silent >= PATIENCE:
            raise OSError(errno.EIO, f"no rail answers ({', '.join(sorted({r.why for r in self._readers}))})")
        return values

    def close(self) -> None:
        for reader in self._readers:
            reader.close()


@dataclass
class _Voltage:
    """The voltage of a rail as last read, V."""

    volts: float = NAN
    read_ns: int = 0


@dataclass
class _Reader:
    """The open files of one chip, found again after the driver was bound anew under another number."""

    root: Path
    chip: Chip
    target: Target
    error: OSError | None = None  # why it does not answer
    _files: list[int] = field(default_factory=list)
    _voltages: list[_Voltage] = field(default_factory=list)
    _reads: int = 0
    _reopen_ns: int = 0

    def __post_init__(self) -> None:
        self._open()

    @property
    def why(self) -> str:
        """What it says instead of a number."""
        return "no number" if self.error is None else self.error.strerror or str(self.error)

    def close(self) -> None:
        close_files(self._files)
        self._files = []

    def read(self) -> list[float]:
        """The quantities of every rail in order; NaN where one fails."""
        now_ns = self.target.clock()
        if not self._files and now_ns >= self._reopen_ns:
            self._find_again()
        self._reads += 1
        values: list[float] = []
        for number, rail in enumerate(self.chip.rails):
            values += self._read_rail(number, rail, now_ns) if self._files else [NAN] * len(rail.quantities)
        if self._files and self._reads % VOLTAGE_EVERY == 0 and os.fstat(self._files[0]).st_nlink == 0:
            self._let_go(OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.chip.rails[0].files[0])))
        return values

    def _open(self) -> None:
        paths = [path for rail in self.chip.rails for path in rail.files]
        try:
            self._files = open_files(paths if self.chip.mode is None else [*paths, self.chip.mode])
        except OSError as error:
            self._let_go(error)
            return
        self.error = None
        self._voltages = [_Voltage() for _ in self.chip.rails]

    def _let_go(self, error: OSError) -> None:
        self.close()
        self.error = error
        self._reopen_ns = self.target.clock() + REOPEN_NS

    def _find_again(self) -> None:
        same = [(rail.label, rail.quantities) for rail in self.chip.rails]
        self._reopen_ns = self.target.clock() + REOPEN_NS
        try:
            chips = [chip for chip in find_chips(self.root) if chip.device == self.chip.device]
        except OSError as error:
            self.error = error
            return
        for chip in chips:
            if [(rail.label, rail.quantities) for rail in chip.rails] == same:
                self.chip = chip
                self._open()

    def _read_rail(self, number: int, rail: Rail, now_ns: int) -> list[float]:
        try:
            if len(rail.files) == 2:
                return self._volts_and_amperes(number, rail, now_ns)
            values = self._in_one_read(number, rail)
        except OSError as error:
            self.error = error
            if error.errno in GONE:
                self._let_go(error)
            return [NAN] * len(rail.quantities)
        return values if values[0] or self._awake() else [NAN] * len(values)

    def _in_one_read(self, number: int, rail: Rail) -> list[float]:
        """JetPack 4: "mV mA" of ui_input, or the mW of in_power."""
        words = os.pread(self._files[number], READ_BYTES, 0).split()
        most_ma = most_milliampere(rail.shunt_ohm)
        if rail.quantities == ("power",):
            return [natural(words[0], MOST_MILLIVOLT * most_ma / 1000) / 1000 if len(words) == 1 else NAN]
        if len(words) != 2:
            return [NAN, NAN, NAN]
        volts, amperes = natural(words[0], MOST_MILLIVOLT) / 1000, natural(words[1], most_ma) / 1000
        return [volts * amperes, volts, amperes]

    def _volts_and_amperes(self, number: int, rail: Rail, now_ns: int) -> list[float]:
        """hwmon: the current now, and the voltage now or of a few reads ago; the rails take turns with it."""
        current = os.pread(self._files[2 * number], READ_BYTES, 0)
        amperes = natural(current, most_milliampere(rail.shunt_ohm)) / 1000
        voltage = self._voltages[number]
        turn = (self._reads + number) % VOLTAGE_EVERY == 0
        if turn or math.isnan(voltage.volts) or now_ns - voltage.read_ns >= VOLTAGE_NS:
            voltage.volts, voltage.read_ns = NAN, now_ns
            voltage.volts = natural(os.pread(self._files[2 * number + 1], READ_BYTES, 0), MOST_MILLIVOLT) / 1000
        return [voltage.volts * amperes, amperes]

    def _awake(self) -> bool:
        """Whether the chip converts by itself: in trigger mode (few cores, slow clock) the driver answers 0."""
        if self.chip.mode is None:
            return True
        try:
            return natural(os.pread(self._files[-1], READ_BYTES, 0), 3) != 0
        except OSError:
            return False


def _channels(chips: Sequence[Chip], values: Sequence[float]) -> tuple[Channel, ...]:
    labels = Counter(rail.label for chip in chips for rail in chip.rails)
    rails = [(chip.timing, rail) for chip in chips for rail in chip.rails]
    units = {"power": "W", "voltage": "V", "current": "A"}
    channels: list[Channel] = []
    for timing, rail in rails:
        name = rail.label if labels[rail.label] == 1 else f"{rail.label}@{rail.place}"
        now = dict(zip(rail.quantities, values[len(channels) :], strict=False))
        channels += [
            Channel(
                id=f"rail.{name}.{quantity}",
                sensor=NAME,
                quantity=quantity,
                unit=units[quantity],
                kind="gauge",
                scope=f"rail:{name}",
                parent_scope="board",
                source=str(rail.files[0]),
                rail=rail.label,
                refresh_ns=timing.refresh_ns,
                step_size=_step(quantity, rail.shunt_ohm, now),
                filter=timing.filter,
                window_ns=timing.window_ns,
            )
            for quantity in rail.quantities
        ]
    return tuple(channels)


def _step(quantity: str, shunt_ohm: float | None, now: dict[str, float]) -> float | None:
    """The smallest change of a quantity: of power that of the current at the voltage of now, where both are known."""
    if quantity == "voltage":
        return BUS_STEP_V
    step_a = current_step_a(shunt_ohm)
    if quantity == "current" or step_a is None:
        return step_a
    volts = now.get("voltage", now["power"] / now["current"] if now.get("current") else NAN)
    return None if math.isnan(volts) else step_a * volts
