"""Models of sensors, from power to what their files say: INA3221, energy counters, a battery, thermal zones."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Floats
from stepscope.simulate.boards import Options
from stepscope.simulate.chip import GPU, MEMORY, Chip, governed_hz
from stepscope.simulate.file_tree import LiveFile
from stepscope.simulate.power import PowerInterval


class SensorModel(ABC):
    """A sensor model: receives every stretch of time once, in order, and writes its files."""

    @property
    def next_ns(self) -> float:
        """Return when a reader could next see something new; infinite where that need not be punctual."""
        return math.inf

    @abstractmethod
    def advance(self, stretch: PowerInterval) -> None:
        """Bring the files to the end of the stretch."""

    def set_fault(self, kind: str, on: bool) -> None:  # noqa: B027 - most have none: their faults are those of files
        """Begin or end a fault of the sensor itself: "reset" or "plugged"."""


# With N samples each register is a running average, new = old + (x - old) / N (data sheet SBOS576); N = 1 shows each
# conversion as it is. Steps are 40 uV of shunt voltage and 8 mV of bus voltage.

CONVERSION_NS = 1_100_000
SHUNT_STEP_UV = 40
BUS_STEP_MV = 8
_SLOTS = 6  # a shunt and a bus conversion of three channels
_SUPPLY_OHM = 0.05  # the supply gives way a little under load

Publish = Callable[[int, int], None]  # (current mA, voltage mV)


@dataclass(frozen=True)
class Wiring:
    """One channel: its rail's column in the power table (None: not connected), shunt and supply voltage."""

    rail: int | None
    shunt_mohm: int
    supply_v: float


class Ina3221(SensorModel):
    """One chip; `publish[channel]` is called when a register of that channel shows something new."""

    def __init__(
        self,
        wiring: Sequence[Wiring],
        publish: Sequence[Publish],
        samples: int,
        options: Options,
        rng: np.random.Generator,
        t0_ns: int,
    ) -> None:
        self._wiring, self._publish = wiring, publish
        self._weight = 1.0 / (options.average or samples)
        self._noise, self._rng = options.adc_noise, rng
        self._slot_ns = (options.conversion_ns or CONVERSION_NS) * (1 + options.clock_error * rng.uniform(-1, 1))
        self._first_ns = t0_ns + rng.uniform(0, self._slot_ns)
        self._slot = 0  # the next that will end
        self._energy: Floats | None = None  # at the beginning of that slot, J
        self._current_ma: list[float | None] = [None] * len(wiring)
        self._voltage_mv = [channel.supply_v * 1e3 for channel in wiring]
        self._published: list[tuple[int, int] | None] = [None] * len(wiring)

    @property
    def next_ns(self) -> float:
        """Return the end of the next shunt conversion; the voltage hardly moves, and may be published with it."""
        slot = self._slot
        while slot % 2 or self._wiring[slot % _SLOTS // 2].rail is None:
            slot += 1
        return float(self._first_ns + (slot + 1) * self._slot_ns)

    def advance(self, stretch: PowerInterval) -> None:
        """Finish every conversion that ends in this stretch."""
        ended = int((stretch.end_ns - self._first_ns) // self._slot_ns)
        if self._energy is None:
            if stretch.end_ns < self._first_ns:
                return
            self._energy = stretch.energy_at(np.array([self._first_ns]))[0]
        if ended <= self._slot:
            return
        edges = self._first_ns + np.arange(self._slot + 1, ended + 1, dtype=np.float64) * self._slot_ns
        for slot, energy in enumerate(stretch.energy_at(edges), self._slot):
            self._convert(slot % _SLOTS, energy - self._energy)
            self._energy = energy
        self._slot = ended

    def _convert(self, slot: int, joules: Floats) -> None:
        channel, is_bus = divmod(slot, 2)
        wiring = self._wiring[channel]
        if wiring.rail is None:
            return
        watts = float(joules[wiring.rail]) / (self._slot_ns * 1e-9)
        volts = wiring.supply_v - _SUPPLY_OHM * watts / wiring.supply_v
        noise = self._noise * float(self._rng.standard_normal())
        if is_bus:
            old_mv = self._voltage_mv[channel]
            self._voltage_mv[channel] += self._weight * (volts * 1e3 + noise * BUS_STEP_MV - old_mv)
        else:
            now_ma = watts / volts * 1e3 + noise * SHUNT_STEP_UV / wiring.shunt_mohm
            old_ma = self._current_ma[channel]
            self._current_ma[channel] = now_ma if old_ma is None else old_ma + self._weight * (now_ma - old_ma)
        self._show(channel)

    def _show(self, channel: int) -> None:
        current_ma = self._current_ma[channel]
        if current_ma is None:
            return
        shunt_mohm = self._wiring[channel].shunt_mohm
        steps = max(0, round(current_ma * shunt_mohm / SHUNT_STEP_UV))
        registers = steps * SHUNT_STEP_UV // shunt_mohm, round(self._voltage_mv[channel] / BUS_STEP_MV) * BUS_STEP_MV
        if registers != self._published[channel]:
            self._published[channel] = registers
            self._publish[channel](*registers)


# RAPL: 1 ms, units of 2^-14 J (Intel SDM vol. 3B, 16.10). A GPU's: steps of 100 ms, whole microjoules.

RAPL_UNIT_J = 2.0**-14


@dataclass(frozen=True)
class CounterKind:
    """Refresh, unit and range of a counter."""

    refresh_ns: int
    unit_j: float
    range_uj: int


class EnergyCounters(SensorModel):
    """Several rails that are counted by the same clock; `rails` are their columns in the power table."""

    def __init__(
        self,
        kind: CounterKind,
        rails: Sequence[int],
        files: Sequence[LiveFile],
        options: Options,
        rng: np.random.Generator,
        t0_ns: int,
    ) -> None:
        self._kind, self._rails, self._files = kind, list(rails), files
        self._every_ns = kind.refresh_ns * (1 + options.clock_error * rng.uniform(-1, 1))
        self._first_ns = t0_ns + rng.uniform(0, self._every_ns)
        self._ticks = -1
        # It has counted since the boot; below 2^40 uJ a float holds every unit.
        self._start_uj: Floats = rng.uniform(0, min(kind.range_uj, 2**40), len(self._rails))
        self._joules: Floats = np.zeros(len(self._rails))
        self._write()

    @property
    def next_ns(self) -> float:
        """The next tick of its clock."""
        return float(self._first_ns + (self._ticks + 1) * self._every_ns)

    def advance(self, stretch: PowerInterval) -> None:
        """Show the energy up to the last tick in this stretch."""
        ticks = int((stretch.end_ns - self._first_ns) // self._every_ns)
        if ticks <= self._ticks:
            return
        self._ticks = ticks
        self._joules = stretch.energy_at(np.array([self._first_ns + ticks * self._every_ns]))[0][self._rails]
        self._write()

    def set_fault(self, kind: str, on: bool) -> None:
        """reset: count from 0 again."""
        if kind == "reset" and on:
            self._start_uj = -self._joules * 1e6
            self._write()

    def _write(self) -> None:
        units = np.floor((self._joules + self._start_uj * 1e-6) / self._kind.unit_j)
        for file, value in zip(self._files, (units * self._kind.unit_j * 1e6).tolist(), strict=True):
            file.write(str(int(value) % self._kind.range_uj))


BATTERY_REFRESH_NS = 1_400_000_000
FULL_UWH = 42_650_000
UEVENT_BYTES = 768
_POWER_STEP_UW = 1_000
_ENERGY_STEP_UWH = 10_000
_UWH_PER_J = 1e6 / 3600


@dataclass(frozen=True)
class BatteryFiles:
    """Output of the gauge: the snapshot, the state alone, and whether the mains adapter is there."""

    uevent: LiveFile
    status: LiveFile
    online: LiveFile


class BatteryGauge(SensorModel):
    """Discharges by the power of one rail."""

    def __init__(
        self,
        rail: int,
        files: BatteryFiles,
        power_w: float,
        options: Options,
        rng: np.random.Generator,
        t0_ns: int,
    ) -> None:
        """`power_w`: its power until now."""
        refresh_ns = options.refresh_ns or BATTERY_REFRESH_NS
        self._rail, self._files, self._power_w = rail, files, power_w
        self._every_ns = refresh_ns * (1 + options.clock_error * rng.uniform(-1, 1))
        self._next_ns = t0_ns + rng.uniform(0, self._every_ns)
        self._energy_j: float | None = None
        self._left_uwh = FULL_UWH * rng.uniform(0.6, 0.9)
        self._plugged = False
        self._write()

    @property
    def next_ns(self) -> float:
        """The next refresh."""
        return float(self._next_ns)

    def advance(self, stretch: PowerInterval) -> None:
        """Refresh at each moment of the gauge's own grid."""
        while self._next_ns <= stretch.end_ns:
            now_j = float(stretch.energy_at(np.array([self._next_ns]))[0][self._rail])
            self._next_ns += self._every_ns
            if self._energy_j is not None:
                used_j = now_j - self._energy_j
                self._power_w = used_j / (self._every_ns * 1e-9)
                self._left_uwh += used_j * _UWH_PER_J * (1 if self._plugged else -1)
                self._write()
            self._energy_j = now_j

    def set_fault(self, kind: str, on: bool) -> None:
        """plugged: the battery is charged, so its power says nothing of what the machine uses."""
        if kind == "plugged":
            self._plugged = on
            self._write()

    def _write(self) -> None:
        left_uwh = min(FULL_UWH, max(0.0, self._left_uwh))
        status = "Charging" if self._plugged else "Discharging"
        power_uw = round(self._power_w * 1e6 / _POWER_STEP_UW) * _POWER_STEP_UW
        self._files.status.write(status)
        self._files.online.write(str(int(self._plugged)))
        self._files.uevent.write(
            "DEVTYPE=power_supply\n"
            "POWER_SUPPLY_NAME=BAT0\n"
            "POWER_SUPPLY_TYPE=Battery\n"
            f"POWER_SUPPLY_STATUS={status}\n"
            "POWER_SUPPLY_PRESENT=1\n"
            "POWER_SUPPLY_TECHNOLOGY=Li-poly\n"
            "POWER_SUPPLY_CYCLE_COUNT=95\n"
            "POWER_SUPPLY_VOLTAGE_MIN_DESIGN=11100000\n"
            f"POWER_SUPPLY_VOLTAGE_NOW={10_900_000 + round(1500 * left_uwh / FULL_UWH) * 1000}\n"
            f"POWER_SUPPLY_POWER_NOW={power_uw}\n"
            "POWER_SUPPLY_ENERGY_FULL_DESIGN=45280000\n"
            f"POWER_SUPPLY_ENERGY_FULL={FULL_UWH}\n"
            f"POWER_SUPPLY_ENERGY_NOW={int(left_uwh / _ENERGY_STEP_UWH) * _ENERGY_STEP_UWH}\n"
            f"POWER_SUPPLY_CAPACITY={round(100 * left_uwh / FULL_UWH)}\n"
            "POWER_SUPPLY_CAPACITY_LEVEL=Normal\n"
            "POWER_SUPPLY_MODEL_NAME=SIMULATED\n"
        )


THERMAL_REFRESH_NS = 250_000_000
AMBIENT_C = 30.0
DEGREES_PER_W = 3.5
_TAU_S = 25.0
_RELEASED_BELOW_C = 3.0  # so far below the trip point the clocks come back


class ThermalZones(SensorModel):
    """Zones that follow the power of some rails, each a little cooler than the one before; heat is never punctual."""

    def __init__(
        self,
        rails: Sequence[int],
        files: Sequence[LiveFile],
        t0_ns: int,
        ambient_c: float = AMBIENT_C,
        degrees_per_w: float = DEGREES_PER_W,
        trip_c: float = math.inf,
    ) -> None:
        self._rails, self._files = list(rails), files
        self._refreshed_ns, self._refreshed_j = t0_ns, 0.0
        self._ambient_c, self._degrees_per_w, self._trip_c = ambient_c, degrees_per_w, trip_c
        self._celsius = ambient_c
        self.hot = False
        self._write()

    @property
    def celsius(self) -> float:
        """Return the temperature of the hottest zone."""
        return self._celsius

    def advance(self, stretch: PowerInterval) -> None:
        """Warm up or cool down by the mean power since the last refresh."""
        elapsed_s = (stretch.end_ns - self._refreshed_ns) * 1e-9
        if elapsed_s * 1e9 < THERMAL_REFRESH_NS:
            return
        now_j = float(stretch.energy_at(np.array([stretch.end_ns]))[0][self._rails].sum())
        settled_c = self._ambient_c + self._degrees_per_w * (now_j - self._refreshed_j) / elapsed_s
        self._celsius += (settled_c - self._celsius) * (1 - math.exp(-elapsed_s / _TAU_S))
        self._refreshed_ns, self._refreshed_j = stretch.end_ns, now_j
        self.hot = self._celsius > self._trip_c - (_RELEASED_BELOW_C if self.hot else 0.0)
        self._write()

    def _write(self) -> None:
        for index, file in enumerate(self._files):
            file.write(str(round(2 * (self._celsius - 1.5 * index)) * 500))


ACTIVITY_REFRESH_NS = 20_000_000  # loads are means since the last one; over what time NVIDIA's are, it does not say
_MEMORY_REFRESH_NS = 100_000_000


@dataclass(frozen=True)
class ClockFile:
    """A clock's file, its highest and lower values, Hz, and the places of the processors that it drives.

    unit_hz: of the number in the file. Without processors it is a limit, which heat alone lowers.
    """

    file: LiveFile
    highest_hz: int
    unit_hz: int
    lower_hz: tuple[int, ...] = ()
    drives: tuple[int, ...] = ()


@dataclass(frozen=True)
class ChipFiles:
    """Where a chip states its activity: loads, clocks with their highest value, idle time of each core, memory."""

    gpu_load: LiveFile | None  # permille
    memory_activity: LiveFile | None  # kHz
    clocks: Sequence[ClockFile]
    idle_us: Sequence[LiveFile]
    meminfo: LiveFile


class ChipState(SensorModel):
    """GPU, memory controller and cores of a board that computes; `resident()`: what the training holds, B."""

    def __init__(self, chip: Chip, files: ChipFiles, throttle: float, t0_ns: int, resident: Callable[[], int]) -> None:
        self._chip, self._files, self._throttle, self._resident = chip, files, throttle, resident
        self._t0_ns = self._refreshed_ns = t0_ns
        self._memory_due_ns = t0_ns
        self._busy_s: Floats = np.zeros(len(chip.processors))
        self._write(np.zeros(len(chip.processors)), self._busy_s, False)

    @property
    def next_ns(self) -> float:
        """Return the next refresh."""
        return float(self._refreshed_ns + ACTIVITY_REFRESH_NS)

    def advance(self, stretch: PowerInterval) -> None:
        """Show the shares since the last refresh, and idle time since the start."""
        now_ns = stretch.end_ns
        if now_ns - self._refreshed_ns >= ACTIVITY_REFRESH_NS and len(stretch.busy_s):
            shares = (stretch.busy_s - self._busy_s) / ((now_ns - self._refreshed_ns) * 1e-9)
            self._refreshed_ns, self._busy_s = now_ns, stretch.busy_s
            self._write(shares, stretch.busy_s, stretch.throttled)
        if now_ns >= self._memory_due_ns:
            self._memory_due_ns = now_ns + _MEMORY_REFRESH_NS
            self._files.meminfo.write(self._meminfo())

    def _write(self, shares: Floats, busy_s: Floats, throttled: bool) -> None:
        files, chip = self._files, self._chip
        share = dict(zip(chip.processors, shares.tolist(), strict=True))
        cores = busy_s[-len(chip.cores) :].tolist()
        if files.gpu_load is not None:
            files.gpu_load.write(str(round(1000 * share[GPU])))
        if files.memory_activity is not None and chip.memory_hz is not None:
            files.memory_activity.write(str(round(share[MEMORY] * chip.memory_hz / 1000)))
        elapsed_us = (self._refreshed_ns - self._t0_ns) / 1000
        for file, busy in zip(files.idle_us, cores, strict=True):
            file.write(str(max(round(elapsed_us - busy * 1e6), 0) + 1))  # some core has idled before: not 0
        for clock in files.clocks:
            load = max((float(shares[place]) for place in clock.drives), default=1.0)
            most = clock.highest_hz * (self._throttle if throttled else 1.0)
            clock.file.write(str(round(min(governed_hz(clock.highest_hz, clock.lower_hz, load), most) / clock.unit_hz)))

    def _meminfo(self) -> str:
        chip = self._chip
        free = max(chip.memory_bytes - chip.system_bytes - self._resident(), 0) // 1024
        names = {"MemTotal": chip.memory_bytes // 1024, "MemFree": free, "MemAvailable": free}
        lines = {**names, "SwapTotal": 0, "SwapFree": 0}
        return "".join(f"{name + ':':<16}{kilobytes:>8} kB\n" for name, kilobytes in lines.items())


PMIC_REFRESH_NS = 22_600_000  # what a read of all converters takes
ADC_BYTES = 2048
_AMPERES = 0.00097593  # a step of the converter on most rails of one board; taken for all of them
_LIMITED_C = 85.0


@dataclass(frozen=True)
class PmicRail:
    """A rail of the power management chip: its column in the power table, supply, V, and numbers in brackets."""

    name: str
    column: int
    supply_v: float
    current: int
    voltage: int


class Pmic(SensorModel):
    """Answers of a Raspberry Pi 5 to `vcgencmd pmic_read_adc` and `get_throttled`: momentary currents and voltages."""

    def __init__(
        self, rails: Sequence[PmicRail], adc: LiveFile, throttled: LiveFile, heat: ThermalZones, t0_ns: int
    ) -> None:
        self._rails, self._adc, self._throttled, self._heat = rails, adc, throttled, heat
        self._refreshed_ns = t0_ns
        self._since_boot = 0
        self._show(np.zeros(1 + max(rail.column for rail in rails)))

    @property
    def next_ns(self) -> float:
        """Return the next reading of the converters."""
        return float(self._refreshed_ns + PMIC_REFRESH_NS)

    def advance(self, stretch: PowerInterval) -> None:
        """Show the power of the last instant of this stretch."""
        if stretch.end_ns >= self.next_ns and len(stretch.watts):
            self._refreshed_ns = stretch.end_ns
            self._show(stretch.watts[-1])

    def _show(self, watts: Floats) -> None:
        lines = []
        for rail in self._rails:
            amperes = round(float(watts[rail.column]) / rail.supply_v / _AMPERES) * _AMPERES
            lines.append(f"{rail.name + '_A':>12} current({rail.current})={amperes:.8f}A")
        lines += [f"{rail.name + '_V':>12} volt({rail.voltage})={rail.supply_v:.8f}V" for rail in self._rails]
        lines += ["     EXT5V_V volt(24)=5.06788000V", "      BATT_V volt(25)=0.00000000V"]
        self._adc.write("\n".join(lines))
        now = (0b1000 if self._heat.hot else 0) | (0b0110 if self._heat.celsius >= _LIMITED_C else 0)
        self._since_boot |= now << 16
        self._throttled.write(f"throttled={now | self._since_boot:#x}")
