"""Power rails of a Jetson, W: the INA3221 under JetPack 4 (iio) and JetPack 5 and later (hwmon).

Power is voltage x current. JetPack 4 gives both in one read of `ui_input_n`. Under hwmon each costs 0.55 ms on I2C:
the current is read every time and the voltage, which stands in steps of 8 mV on a regulated rail, every tenth time.

Registers and averaging are those of the data sheet (TI SBOS576); the chips are found in sysfs as `ina3221x` (iio) and
`ina3221` (hwmon) lay them out.
"""

from __future__ import annotations

import errno
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.record.access import READ_BYTES, natural, read_device_tree_cell, signed
from stepscope.record.sensors.contract import (
    NAN,
    Channel,
    NoSensor,
    OpenSensor,
    Target,
    close_files,
    no_sensor_from_error,
    numbered,
    open_files,
    rail_channel,
    read_line_or_empty,
    read_small_file,
)

NAME = "ina3221"
IIO_EVERY_NS = 10_000_000
HWMON_EVERY_NS = 10_000_000  # a round of conversions takes 6.6 ms
VOLTAGE_EVERY = 10  # reads of a hwmon rail
VOLTAGE_NS = 1_000_000_000  # and no voltage is older than this
REOPEN_NS = 1_000_000_000
PATIENCE = 3  # reads in which no rail answers, before the sensor counts as lost
GONE = (errno.ENODEV, errno.ENOENT, errno.ENXIO, errno.ESTALE, errno.EBADF)  # the driver has let go of the file


def discover(root: Path, target: Target) -> OpenSensor | NoSensor:
    """A power gauge a rail, W, and what else the same read gives; rails without a name (NC) are excluded."""
    try:
        chips = [chip for chip in find_chips(root) if chip.rails]
        if not chips:
            return NoSensor("absent", f"{root / 'sys/bus/i2c/drivers'}: no INA3221 (NVIDIA Jetson boards have it)")
        readers = [_Reader(root, chip, target) for chip in chips]
    except OSError as error:
        return no_sensor_from_error(error, error.filename or root)
    denied = [reader.error for reader in readers if reader.error is not None]
    if len(denied) == len(readers):
        return no_sensor_from_error(denied[0], denied[0].filename or root, _remedy(chips))
    board = _Board(readers)
    values = board.read()
    if all(map(math.isnan, values)):
        board.close()
        return NoSensor("failed", f"{chips[0].rails[0].files[0]}: no rail answers with a number")
    channels = _channels(chips, values)
    hwmon = len(chips[0].rails[0].files) == 2
    return OpenSensor(channels, board.read, board.close, every_ns=HWMON_EVERY_NS if hwmon else IIO_EVERY_NS)


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
        """Return what it says instead of a number."""
        return "no number" if self.error is None else self.error.strerror or str(self.error)

    def close(self) -> None:
        close_files(self._files)
        self._files = []

    def read(self) -> list[float]:
        """The quantities of every rail in order; NaN where one fails."""
        now_ns = self.target.clock()
        if not self._files and now_ns >= self._reopen_ns:
            self._rediscover()
        self._reads += 1
        values: list[float] = []
        for number, rail in enumerate(self.chip.rails):
            values += self._read_rail(number, rail, now_ns) if self._files else [NAN] * len(rail.quantities)
        if self._files and self._reads % VOLTAGE_EVERY == 0 and os.fstat(self._files[0]).st_nlink == 0:
            self._close_after_error(OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.chip.rails[0].files[0])))
        return values

    def _open(self) -> None:
        paths = [path for rail in self.chip.rails for path in rail.files]
        try:
            self._files = open_files(paths if self.chip.mode is None else [*paths, self.chip.mode])
        except OSError as error:
            self._close_after_error(error)
            return
        self.error = None
        self._voltages = [_Voltage() for _ in self.chip.rails]

    def _close_after_error(self, error: OSError) -> None:
        self.close()
        self.error = error
        self._reopen_ns = self.target.clock() + REOPEN_NS

    def _rediscover(self) -> None:
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
            values = self._read_single_file_rail(number, rail)
        except OSError as error:
            self.error = error
            if error.errno in GONE:
                self._close_after_error(error)
            return [NAN] * len(rail.quantities)
        return values if values[0] or self._awake() else [NAN] * len(values)

    def _read_single_file_rail(self, number: int, rail: Rail) -> list[float]:
        """JetPack 4: "mV mA" of ui_input, or the mW of in_power."""
        words = os.pread(self._files[number], READ_BYTES, 0).split()
        most_ma = max_milliampere(rail.shunt_ohm)
        if rail.quantities == ("power",):
            return [natural(words[0], MOST_MILLIVOLT * most_ma / 1000) / 1000 if len(words) == 1 else NAN]
        if len(words) != 2:
            return [NAN, NAN, NAN]
        volts, amperes = natural(words[0], MOST_MILLIVOLT) / 1000, signed(words[1], -most_ma, most_ma) / 1000
        return [volts * amperes, volts, amperes]

    def _volts_and_amperes(self, number: int, rail: Rail, now_ns: int) -> list[float]:
        """hwmon: the current now, and the voltage now or of a few reads ago; the rails take turns with it."""
        current = os.pread(self._files[2 * number], READ_BYTES, 0)
        most_ma = max_milliampere(rail.shunt_ohm)
        amperes = signed(current, -most_ma, most_ma) / 1000  # below 0: an offset at idle, or a rail that feeds back
        voltage = self._voltages[number]
        turn = (self._reads + number) % VOLTAGE_EVERY == 0
        if turn or math.isnan(voltage.volts) or now_ns - voltage.read_ns >= VOLTAGE_NS:
            voltage.volts, voltage.read_ns = NAN, now_ns
            voltage.volts = natural(os.pread(self._files[2 * number + 1], READ_BYTES, 0), MOST_MILLIVOLT) / 1000
        return [voltage.volts * amperes, amperes]

    def _awake(self) -> bool:
        """Return whether the chip converts by itself: in trigger mode (few cores, slow clock) the driver answers 0."""
        if self.chip.mode is None:
            return True
        try:
            return natural(os.pread(self._files[-1], READ_BYTES, 0), 3) != 0
        except OSError:
            return False


def _channels(chips: Sequence[Chip], values: Sequence[float]) -> tuple[Channel, ...]:
    labels = Counter(rail.label for chip in chips for rail in chip.rails)
    rails = [(chip.timing, rail) for chip in chips for rail in chip.rails]
    channels: list[Channel] = []
    for timing, rail in rails:
        name = rail.label if labels[rail.label] == 1 else f"{rail.label}@{rail.place}"
        now = dict(zip(rail.quantities, values[len(channels) :], strict=False))
        channels += [
            rail_channel(
                NAME,
                name,
                quantity,
                str(rail.files[0]),
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
    step_a = SHUNT_STEP_V / shunt_ohm if shunt_ohm else None
    if quantity == "current" or step_a is None:
        return step_a
    volts = now.get("voltage", now["power"] / now["current"] if now.get("current") else NAN)
    return None if math.isnan(volts) else step_a * volts


_UNCONNECTED = ("NC", "(null)", "sum of shunt voltages")


@dataclass(frozen=True)
class Rail:
    """A supply line as the driver names it, and the files that state it, read in this order."""

    label: str
    place: str  # of the chip and its input: 1-0040.1
    files: tuple[Path, ...]
    shunt_ohm: float | None

    @property
    def quantities(self) -> tuple[str, ...]:
        """Return the values of one read of this rail."""
        if len(self.files) == 2:
            return ("power", "current")
        return ("power", "voltage", "current") if self.files[0].name.startswith("ui_") else ("power",)


@dataclass(frozen=True)
class Chip:
    """One INA3221 with what is connected to it."""

    device: str  # bus and address: 1-0041
    rails: tuple[Rail, ...]
    timing: Timing
    mode: Path | None = None  # JetPack 4: 0 says that it is asleep between reads, and then 0 mW means nothing


def find_chips(root: Path) -> Iterator[Chip]:
    """Every INA3221 below root, each once; raises OSError where a name cannot be read."""
    drivers = root / "sys/bus/i2c/drivers"
    for device in sorted(drivers.glob("ina3221x/*-00*")):
        folders = [path for path in sorted(device.glob("iio*device*")) if any(path.glob("rail_name_[0-2]"))]
        yield from (_iio_chip(device, folder) for folder in folders[:1])
    folders = [*drivers.glob("ina3221/*-00*/hwmon/hwmon*"), *_of_class(root)]
    places = {folder.resolve(): folder for folder in reversed(folders)}
    for real, folder in sorted(places.items()):
        yield _hwmon_chip(real.parent.parent.name if real.parent.name == "hwmon" else real.name, folder)


def _of_class(root: Path) -> list[Path]:
    """Return the chips by their class or platform device, where the bus has no links (a saved tree)."""
    folders = [*root.glob("sys/class/hwmon/hwmon*"), *root.glob("sys/devices/platform/*/i2c-*/*-00*/hwmon/hwmon*")]
    return [folder for folder in folders if read_line_or_empty(folder / "name") == "ina3221"]


def _iio_chip(device: Path, folder: Path) -> Chip:
    nodes = list((device / "of_node").glob("channel@*"))
    shunts = {
        read_device_tree_cell(node / "reg"): read_device_tree_cell(node / "ti,shunt-resistor-mohm") for node in nodes
    }
    rails = []
    for path in numbered(list(folder.glob("rail_name_[0-2]"))):
        number = int(path.name[-1])
        label = _label(path)
        both, power = folder / f"ui_input_{number}", folder / f"in_power{number}_input"
        file = both if both.exists() else power
        if label not in _UNCONNECTED and file.exists():
            milliohm = shunts.get(number)
            place = f"{device.name}.{number}"
            rails.append(Rail(label or place, place, (file,), milliohm / 1000 if milliohm else None))
    mode = folder / "running_mode"
    configured = configured_timing(read_device_tree_cell(device / "of_node/ti,continuous-config"))
    return Chip(device.name, tuple(rails), configured, mode if mode.exists() else None)


def _hwmon_chip(device: str, folder: Path) -> Chip:
    rails = []
    for number in (1, 2, 3):  # 4 to 6 are the shunts of the same inputs, 7 their sum
        current, voltage = folder / f"curr{number}_input", folder / f"in{number}_input"
        path = folder / f"in{number}_label"
        label = _label(path) if path.exists() else ""
        enabled = _read_int_or_none(folder / f"in{number}_enable") != 0
        if label not in _UNCONNECTED and enabled and current.exists() and voltage.exists():
            microohm = _read_int_or_none(folder / f"shunt{number}_resistor")
            place = f"{device}.{number}"
            rails.append(Rail(label or place, place, (current, voltage), microohm / 1e6 if microohm else None))
    return Chip(
        device,
        tuple(rails),
        stated_timing(_read_int_or_none(folder / "samples"), _read_int_or_none(folder / "update_interval")),
    )


def _label(path: Path) -> str:
    return read_small_file(path).decode(errors="replace").strip()


def _read_int_or_none(path: Path) -> int | None:
    try:
        value = natural(read_small_file(path), 1e9)
    except OSError:
        return None
    return None if math.isnan(value) else int(value)


BUS_STEP_V = 0.008
SHUNT_STEP_V = 40e-6
MOST_MILLIVOLT = 32_760  # 12 bits of 8 mV
MOST_SHUNT_V = 0.1638  # 12 bits of 40 uV
LEAST_SHUNT_OHM = 0.0005  # no Jetson has less: it bounds a current whose shunt is not known
_SAMPLES = (1, 4, 16, 64, 128, 256, 512, 1024)
_CONVERSION_US = (140, 204, 332, 588, 1100, 2116, 4156, 8244)


@dataclass(frozen=True)
class Timing:
    """Averaging of the chip: None is not stated by the driver."""

    refresh_ns: int | None = None  # of one round over its channels
    window_ns: int | None = None  # time constant of the running average
    filter: str | None = None


def timing(samples: int | None, round_ns: float | None) -> Timing:
    """The filter of so many samples, one each round: new = old + (x - old) / samples, a running average."""
    refresh_ns = None if not round_ns else round(round_ns)
    if not samples:
        return Timing(refresh_ns)
    if samples == 1:
        return Timing(refresh_ns, None, "none: one conversion a round")
    window_ns = None if not round_ns else round(round_ns * samples)
    return Timing(refresh_ns, window_ns, f"running average of {samples} conversions")


def stated_timing(samples: int | None, update_interval_ms: int | None) -> Timing:
    """Return the timing from the hwmon driver's `samples` and `update_interval` (rounds x samples, whole ms)."""
    if not samples or not update_interval_ms:
        return timing(samples, None)
    return timing(samples, update_interval_ms * 1e6 / samples)


def configured_timing(word: int | None) -> Timing:
    """Return the timing from the configuration register (Table 5), set by JetPack 4 as `ti,continuous-config`."""
    if word is None:
        return Timing()
    channels = (word >> 12 & 7).bit_count()
    conversions_us = _CONVERSION_US[word >> 6 & 7] + _CONVERSION_US[word >> 3 & 7]
    return timing(_SAMPLES[word >> 9 & 7], channels * conversions_us * 1e3)


def max_milliampere(shunt_ohm: float | None) -> float:
    """More current than this the shunt register cannot hold, mA."""
    return MOST_SHUNT_V / (shunt_ohm or LEAST_SHUNT_OHM) * 1000
