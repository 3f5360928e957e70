"""Power rails and temperatures of chips under /sys/class/hwmon: monitors on a board, coretemp and k10temp of a PC."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from stepscope.clock import Clock
from stepscope.record.access import (
    READ_BYTES,
    CardAsleep,
    CardFile,
    DeviceFile,
    close_device_files,
    is_jetson,
    nan_for_failed_reads,
    natural,
    signed,
)
from stepscope.record.sensors.contract import (
    NAN,
    Channel,
    NamedSensor,
    NoSensor,
    OpenSensor,
    Target,
    close_files,
    make_channel,
    no_sensor_from_error,
    numbered,
    open_files,
    rail_channel,
    read_line_or_empty,
)
from stepscope.record.sensors.number_files import celsius

# Power meters under /sys/class/hwmon: power*_input, W, energy*_input, J, and INA219/INA226 from voltage and current.
#
# Files and units as in the kernel's hwmon/sysfs-interface. Chips that other sensors read (INA3221 and INA238 of
# Jetsons) and copies of batteries are left to those. A chip is known by its name and its device, never by its number.
#
# Power of the supply of a board, W: the TI INA238 (Jetson Thor's VIN) through hwmon, which states whole microwatts.

HWMON = "hwmon_power"
_ELSEWHERE = re.compile(r"ina3221x?|ina238|BAT.*|ACAD.*")
POWER_CHIPS = re.compile(r"ina2(09|19|20|26|30|31|34|60|xx)")
_GPU = re.compile(r"amdgpu|radeon|nouveau|(?:i915|xe)(_gt\d+)?")  # i915_gt1: a tile of an Intel card
_WHOLE_CARD = ("PPT", "card", "power1", "energy1")
SOCKET = "rapl:package-0"  # of an AMD APU, whose amdgpu power "includes the CPU" (amdgpu_pm.c)
_MOST_W = 1000.0
_LEAST_UW, _MOST_UW = -1e8, 1e10  # -100 W (a shunt the other way round) to 10 kW


@dataclass(frozen=True)
class Chip:
    """A hwmon folder, and what stays the same when it gets another number: name and bus address, ina219-1-0040."""

    folder: Path
    name: str
    bus: str

    @property
    def identity(self) -> str:
        """Name of the chip with its place."""
        return f"{self.name}-{self.bus}" if self.bus else self.name


@dataclass(frozen=True)
class ChipInput:
    """One quantity of a chip: the files to read, whose product is it, and what the chip says about itself."""

    chip: Chip
    stem: str  # power1, energy2, temp1
    files: tuple[str, ...]
    label: str | None


def discover_hwmon(root: Path, target: Target) -> OpenSensor | NoSensor:
    """A gauge of W for each power, a counter of J for each energy; a chip that comes back is found again."""
    folder = root / "sys/class/hwmon"
    inputs = [meter for chip in chips(folder) for meter in inputs_of(chip)]
    if not inputs:
        return NoSensor("absent", f"{folder}: no chip measures power (an INA219 or INA226 on I2C would)")
    opened, refused = _open_inputs(folder, inputs, target.clock)
    if not opened:
        return refused[0]
    every_file = [file for _, files in opened for file in files]
    return OpenSensor(
        tuple(_meter_channel(meter, [other for other, _ in opened]) for meter, _ in opened),
        partial(_read, folder, [(meter.stem, files) for meter, files in opened]),
        lambda: close_device_files(every_file),
        # What a read of it takes when it is awake is not known.
        blocking=any(isinstance(file, CardFile) and file.asleep for file in every_file),
        unread=tuple(refused),
    )


def chips(folder: Path) -> list[Chip]:
    """Chips that are nobody else's, in order of number; several of one name and place get #2, #3."""
    all_chips: list[Chip] = []
    counts: Counter[str] = Counter()
    for path in numbered(list(folder.glob("hwmon*"))):
        name = read_line_or_empty(path / "name")
        if not name or _ELSEWHERE.fullmatch(name) or "POWER_SUPPLY_NAME=" in read_line_or_empty(path / "device/uevent"):
            continue
        chip = Chip(path, name, _bus(path))
        counts[chip.identity] += 1
        again = counts[chip.identity]
        all_chips.append(chip if again == 1 else replace(chip, bus=f"{chip.bus}#{again}"))
    return all_chips


def inputs_of(chip: Chip) -> list[ChipInput]:
    """Powers (momentary before average), energies, and for an INA2xx without a power register bus volts x amperes."""
    files = {path.name for path in chip.folder.glob("*_*")}
    inputs = []
    for kind in ("power", "energy"):
        indices = {int(match[1]) for name in files if (match := re.fullmatch(kind + r"(\d+)_(?:input|average)", name))}
        for stem in (f"{kind}{index}" for index in sorted(indices)):
            file = f"{stem}_input" if f"{stem}_input" in files else f"{stem}_average"
            if kind == "power" or file.endswith("_input"):
                inputs.append(ChipInput(chip, stem, (file,), read_line_or_empty(chip.folder / f"{stem}_label") or None))
    if not inputs and POWER_CHIPS.fullmatch(chip.name) and {"in1_input", "curr1_input"} <= files:
        label = read_line_or_empty(chip.folder / "in1_label") or read_line_or_empty(chip.folder / "curr1_label") or None
        inputs.append(ChipInput(chip, "power1", ("in1_input", "curr1_input"), label))
    return inputs


def watts_or_joules(texts: Sequence[bytes], stem: str) -> float:
    """W or J of what the files say (uW, uJ, or mV and mA); NaN for text that is no number and what cannot be."""
    if stem.startswith("energy"):
        return natural(texts[0], 2.0**64) / 1e6
    micro = 1.0
    for text in texts:
        micro *= signed(text, -_MOST_UW, _MOST_UW)
    return micro / 1e6 if _LEAST_UW <= micro <= _MOST_UW else NAN


def _open_inputs(
    folder: Path, inputs: Sequence[ChipInput], clock: Clock
) -> tuple[list[tuple[ChipInput, list[DeviceFile]]], list[NoSensor]]:
    """Open those inputs that can be opened; return them with their files, and why the others cannot."""
    opened: list[tuple[ChipInput, list[DeviceFile]]] = []
    refused: list[NoSensor] = []
    for chip_input in inputs:
        files: list[DeviceFile] = []
        try:
            for file in chip_input.files:
                files += [_open_chip_file(folder, chip_input.chip, file, clock)]
            opened.append((chip_input, files))
        except OSError as error:
            close_device_files(files)
            refused.append(no_sensor_from_error(error, chip_input.chip.folder / chip_input.files[0]))
    return opened, refused


def _open_chip_file(folder: Path, chip: Chip, file: str, clock: Clock) -> DeviceFile:
    """Open a file of a chip, which is found again under the number that the chip has by then; raises OSError."""

    def find() -> Path | None:
        return next((now.folder / file for now in chips(folder) if now.identity == chip.identity), None)

    return CardFile(find, clock) if _GPU.fullmatch(chip.name) else DeviceFile(find, clock)


def _read(folder: Path, opened: Sequence[tuple[str, Sequence[DeviceFile]]]) -> list[float]:
    values, asleep = [], False
    for stem, files in opened:
        try:
            values.append(watts_or_joules([file.read(READ_BYTES) for file in files], stem))
        except OSError as error:
            asleep |= isinstance(error, CardAsleep)
            values.append(NAN)
    if not asleep and all(value != value for value in values):
        raise ValueError(f"{folder}: no power meter answers")
    return values


def _meter_channel(meter: ChipInput, inputs: Sequence[ChipInput]) -> Channel:
    is_energy = meter.stem.startswith("energy")
    quantity = "energy" if is_energy else "power"
    scope, parent = _scope(meter, inputs)
    interval_ns = _read_ms_as_ns(meter.chip.folder / "update_interval")
    average_ns = _read_ms_as_ns(meter.chip.folder / f"{meter.stem}_average_interval")
    averages = meter.files[0].endswith("_average") and average_ns is not None
    is_ina = POWER_CHIPS.fullmatch(meter.chip.name) is not None and interval_ns is not None
    return make_channel(
        HWMON,
        scope,
        quantity,
        "J" if is_energy else "W",
        " x ".join(str(meter.chip.folder / file) for file in meter.files),
        rail="package-0" if scope == SOCKET else meter.label or f"{meter.chip.identity}/{meter.stem}",
        refresh_ns=interval_ns,
        step_size=1e-6 if is_energy and meter.chip.name.startswith("i915") else None,
        filter=f"average over {meter.stem}_average_interval" if averages else "block average" if is_ina else None,
        window_ns=average_ns if averages else interval_ns if is_ina else None,
        most_per_s=_MOST_W if is_energy else None,
        parent_scope=parent,
    )


def _scope(meter: ChipInput, inputs: Sequence[ChipInput]) -> tuple[str, str]:
    """Scope and parent: a graphics card by its bus address, the ACPI meter, any other chip a rail of the board."""
    name = meter.label or meter.stem
    if is_apu(meter.chip.folder):
        return (SOCKET if meter.stem == "power1" else f"{SOCKET}/{name}"), "system"
    if gpu := _GPU.fullmatch(meter.chip.name):
        card, part = f"gpu:{meter.chip.bus or meter.chip.name}", (gpu[1] or "").removeprefix("_") or name
        return (card, "system") if part in _WHOLE_CARD else (f"{card}/{part}", card)
    if meter.chip.name == "power_meter":  # ACPI: what the whole machine draws
        return f"meter:{meter.chip.identity}/{name}", "system"
    scope = f"rail:{meter.chip.identity}/{name}"
    if meter.chip.name == "amd_energy" and name.startswith("Ecore"):
        sockets = [other.label for other in inputs if other.chip == meter.chip and (other.label or "").startswith("Es")]
        if len(sockets) == 1:
            return scope, f"rail:{meter.chip.identity}/{sockets[0]}"
    return scope, "board"


def is_apu(folder: Path) -> bool:
    """Return whether this chip is the graphics inside an AMD processor: only those have the north bridge's voltage."""
    return read_line_or_empty(folder / "name") == "amdgpu" and read_line_or_empty(folder / "in1_label") == "vddnb"


def _bus(path: Path) -> str:
    """Address of the device: 1-0040 on I2C, 0000:03:00.0 on PCI; empty for a chip without a device."""
    device = path / "device"
    if device.is_symlink():
        return device.resolve().name
    folder = path.resolve()
    return folder.parent.parent.name if folder.parent.name == "hwmon" and path.is_symlink() else ""


def _read_ms_as_ns(path: Path) -> int | None:
    number = natural(read_line_or_empty(path).encode(), 1e6)
    return int(number) * 1_000_000 if number > 0 else None


INA238 = "ina238"
_MOST_MICROWATT = 1e10  # 85 V, the most of the chip, x 117 A
_MOST_MILLIVOLT, _MOST_MILLIAMPERE = 85_000.0, 1e6


def discover_ina238(root: Path, target: Target) -> OpenSensor | NoSensor:
    """One power gauge a chip, W; where the driver states no power it is voltage x current of the same moment."""
    folders = _folders(root)
    if not folders:
        return NoSensor("absent", f"{root / 'sys/class/hwmon'}: no INA238 (the board supply of a Jetson Thor)")
    files = [_files(folder) for folder in folders]
    remedy = f"sudo chmod a+r {' '.join(str(path) for paths in files for path in paths)}"
    opened: list[tuple[Channel, list[int]]] = []
    refused: list[NoSensor] = []
    for number, (folder, paths) in enumerate(zip(folders, files, strict=True), start=1):
        try:
            opened.append((_ina238_channel(_rail(root, folder, number), folder, paths), open_files(paths)))
        except OSError as error:
            refused.append(no_sensor_from_error(error, error.filename or folder, remedy))
    if not opened:
        return refused[0]

    def read() -> list[float]:
        return nan_for_failed_reads([read_watts(chip) for _, chip in opened])

    def close() -> None:
        for _, chip in opened:
            close_files(chip)

    return OpenSensor(tuple(channel for channel, _ in opened), read, close, unread=tuple(refused))


def read_watts(chip: list[int]) -> float | OSError:
    """Power by the one file that states it, or by voltage and current; the error where a file gives none."""
    try:
        texts = [os.pread(file, READ_BYTES, 0) for file in chip]
    except OSError as error:
        return error
    if len(texts) == 1:
        return natural(texts[0], _MOST_MICROWATT) / 1e6
    return natural(texts[0], _MOST_MILLIVOLT) / 1e3 * natural(texts[1], _MOST_MILLIAMPERE) / 1e3


def _folders(root: Path) -> list[Path]:
    """Return the driver's hwmon folders, found by name, since their numbers change from boot to boot."""
    folders = [*root.glob("sys/class/hwmon/hwmon*"), *root.glob("sys/bus/i2c/drivers/ina238/*-00*/hwmon/hwmon*")]
    places = {path.resolve(): path for path in reversed(folders) if read_line_or_empty(path / "name") == "ina238"}
    return numbered(list(places.values()))


def _files(folder: Path) -> list[Path]:
    power = folder / "power1_input"
    return [power] if power.exists() else [folder / "in1_input", folder / "curr1_input"]  # in0 is the shunt's


def _rail(root: Path, folder: Path, number: int) -> str:
    """Return the driver's label of a rail; mainline Linux has none for it, and on a Jetson it is VIN."""
    named = read_line_or_empty(folder / "power1_label") or read_line_or_empty(folder / "in1_label")
    name = named or ("VIN" if is_jetson(root) else "ina238")
    return name if number == 1 else f"{name}#{number}"


def _ina238_channel(rail: str, folder: Path, paths: list[Path]) -> Channel:
    interval = read_line_or_empty(folder / "update_interval")
    refresh_ns = int(interval) * 1_000_000 if interval.isdigit() and len(interval) < 10 else None
    label = rail.partition("#")[0]
    return rail_channel(INA238, rail, "power", str(paths[0]), rail=label, refresh_ns=refresh_ns)


# Temperatures of chips under /sys/class/hwmon, degrees Celsius: an LM75 on the board, coretemp and k10temp of a PC.
#
# Files and units as in the kernel's hwmon/sysfs-interface. Chips that are no more than copies of a thermal zone are
# left to the zones; not read are power meters (their die is not what trains), batteries, drives, network cards, and
# Super-I/O chips, which state a number for an input with nothing connected.

TEMPERATURE = "hwmon_temperature"
_EVERY_NS = 1_000_000_000  # a transfer on I2C is dear, and a chip of this kind converts a few times a second
_NO_DEVICE_OF_A_TRAINING = re.compile(
    r"nvme|drivetemp|iwlwifi.*|ath\d+.*|mt79.*|r8169.*|enp.*|mlx.*|power_meter|.*psu.*"
    r"|nct\d.*|it8\d.*|w836.*|f71.*|sch5.*|asus.*|dell.*|thinkpad|applesmc"
)


def discover_temperatures(root: Path, target: Target) -> OpenSensor | NoSensor:
    """A gauge of degrees Celsius each input; a chip that comes back is found again within a second."""
    folder = root / "sys/class/hwmon"
    inputs = find_temperature_inputs(folder)
    if not inputs:
        return NoSensor("absent", f"{folder}: no chip measures a temperature of board or processor (an LM75 would)")
    opened, refused = _open_inputs(folder, inputs, target.clock)
    if not opened:
        return refused[0]
    files = [file for _, files in opened for file in files]
    channels = tuple(_temperature_channel(chip_input) for chip_input, _ in opened)
    return OpenSensor(
        channels, partial(_read_celsius, files), lambda: close_device_files(files), _EVERY_NS, unread=tuple(refused)
    )


def find_temperature_inputs(folder: Path) -> list[ChipInput]:
    """The inputs of every chip in order of number; one whose sensor the driver states to be faulty is excluded."""
    inputs = []
    for chip in chips(folder):
        if POWER_CHIPS.fullmatch(chip.name) or _NO_DEVICE_OF_A_TRAINING.fullmatch(chip.name):
            continue
        if chip.bus.startswith("thermal_zone"):
            continue
        matches = [re.fullmatch(r"temp(\d+)_input", path.name) for path in chip.folder.glob("temp*_input")]
        for index in sorted(int(match[1]) for match in matches if match):
            stem = f"temp{index}"
            if read_line_or_empty(chip.folder / f"{stem}_fault") != "1":
                label = read_line_or_empty(chip.folder / f"{stem}_label") or None
                inputs.append(ChipInput(chip, stem, (f"{stem}_input",), label))
    return inputs


def _temperature_channel(chip_input: ChipInput) -> Channel:
    scope = f"zone:{chip_input.chip.identity}/{chip_input.label or chip_input.stem}"
    source = str(chip_input.chip.folder / chip_input.files[0])
    return Channel(
        f"{scope.replace(':', '.')}.temperature", TEMPERATURE, "temperature", "degC", "gauge", scope, source,
        parent_scope="system",
    )  # fmt: skip


def _read_celsius(files: Sequence[DeviceFile]) -> list[float]:
    values: list[float | OSError] = []
    for file in files:
        try:
            values.append(celsius(file.read(READ_BYTES)))
        except OSError as error:
            values.append(error)
    return nan_for_failed_reads(values)


SENSORS = (
    NamedSensor(HWMON, discover_hwmon),
    NamedSensor(INA238, discover_ina238),
    NamedSensor(TEMPERATURE, discover_temperatures),
)
