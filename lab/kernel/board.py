"""The board of the guest: chips that are registers on a stub of an I2C bus, which follow a program of power.

Runs in the guest, where Linux's own drivers hold the chips: registers are written past them. Standard library only.
Each write is kept with the times around it and the power that the registers say from then on: the truth.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

INA3221, INA226, INA238, SBS, LM75 = 0x40, 0x44, 0x45, 0x0B, 0x48  # addresses
_SLAVE_FORCE, _SMBUS = 0x0706, 0x0720
_WORD, _BLOCK = 3, 8
_BATTERY_S = 1.0  # a gauge of a battery refreshes no more often
_now = time.monotonic_ns


class Bus:
    """SMBus of the stub. Registers of the INA chips are big endian: SMBus words have them swapped."""

    def __init__(self) -> None:
        names = Path("/sys/class/i2c-adapter").glob("i2c-*/name")
        self.number = next(path.parent.name[4:] for path in names if "stub" in path.read_text())
        self._file = os.open(f"/dev/i2c-{self.number}", os.O_RDWR)

    def word(self, address: int, register: int, value: int) -> None:
        """Write a word as the chip has it on its pins, least significant byte first."""
        self._transfer(address, False, register, _WORD, struct.pack("<H", value))

    def big(self, address: int, register: int, value: int) -> None:
        """Write a 16-bit register, most significant byte first; negative values as two's complement."""
        self._transfer(address, False, register, _WORD, struct.pack(">H", value & 0xFFFF))

    def block(self, address: int, register: int, content: bytes) -> None:
        """Write bytes to the registers from `register` on, in one transfer."""
        self._transfer(address, False, register, _BLOCK, bytes([len(content)]) + content)

    def _transfer(self, address: int, read: bool, register: int, size: int, content: bytes) -> bytes:
        data = ctypes.create_string_buffer(content, 34)
        fcntl.ioctl(self._file, _SLAVE_FORCE, address)
        fcntl.ioctl(self._file, _SMBUS, struct.pack("BBiP", read, register, size, ctypes.addressof(data)))
        return data.raw


@dataclass(frozen=True)
class Rail:
    """A rail: what the truth calls it, its power at shares 0 and 1, and the write that returns the registers' watts."""

    name: str
    idle_w: float
    busy_w: float
    write: Callable[[Bus, float], float]


def _ina3221(channel: int, volts: float, sag_v: float = 0.0) -> Callable[[Bus, float], float]:
    """Shunt 10 mOhm: 40 uV a step are 4 mA. A sag takes so much from the voltage at 5 A."""

    def write(bus: Bus, watts: float) -> float:
        steps = round((volts - sag_v * watts / volts / 5) / 0.008)
        current = round(watts / (steps * 0.008) / 0.004)
        if sag_v:
            bus.big(INA3221, 2 * channel, steps << 3)
        bus.big(INA3221, 2 * channel - 1, current << 3)
        return steps * 0.008 * current * 0.004

    return write


def _ina226(bus: Bus, watts: float) -> float:
    steps = round(watts / 0.00625)  # the driver's power step with its default shunt of 10 mOhm
    bus.big(INA226, 0x04, round(watts / 5 / 0.00025))
    bus.big(INA226, 0x03, steps)
    return steps * 0.00625


def _ina238(bus: Bus, watts: float) -> float:
    steps = round(watts / 0.0004)  # 20 mOhm x 1 mA x gain 4 / (20 x 10 mOhm)
    bus.block(INA238, 0x08, steps.to_bytes(3, "big"))
    return steps * 0.0004


def _sbs(bus: Bus, watts: float) -> float:
    milliampere = round(watts / 12.0 * 1000)
    bus.word(SBS, 0x0A, -milliampere & 0xFFFF)
    return milliampere * 12.0 / 1000


def _test_battery(bus: Bus, watts: float) -> float:
    milliampere = round(watts / 4.0 * 1000)
    Path("/sys/module/test_power/parameters/battery_current").write_text(str(-milliampere))
    return milliampere * 4.0 / 1000


RAILS = (
    Rail("ina3221.1", 3.0, 12.0, _ina3221(1, 5.0)),
    Rail("ina3221.2", 0.5, 6.0, _ina3221(2, 5.0)),
    Rail("ina3221.3", 0.3, 2.0, _ina3221(3, 5.0, sag_v=0.05)),
    Rail("ina226", 1.0, 8.0, _ina226),
    Rail("ina238", 4.0, 25.0, _ina238),
    Rail("sbs", 5.0, 20.0, _sbs),
    Rail("test_power", 0.4, 1.6, _test_battery),  # it says that it holds 100 mAh: more current would not be believed
)


def power_on() -> None:
    """Give every chip the registers that it has after a reset, so that the drivers' probes know it."""
    bus = Bus()
    bus.big(INA3221, 0xFE, 0x5449)
    bus.big(INA3221, 0xFF, 0x3220)
    bus.big(INA3221, 0x00, 0x7127)
    bus.big(INA3221, 0x0F, 0x0001)
    for channel in (1, 2, 3):
        bus.big(INA3221, 2 * channel, round(5.0 / 0.008) << 3)
    bus.big(INA226, 0x02, round(5.0 / 0.00125))
    bus.big(INA226, 0xFE, 0x5449)
    bus.big(INA226, 0xFF, 0x2260)
    bus.big(INA238, 0x05, round(19.0 / 0.003125))
    bus.big(INA238, 0x06, 40 * 8 << 4)
    bus.big(INA238, 0x3F, 0x2381)
    sbs = {0x03: 0, 0x08: 2981, 0x09: 12000, 0x0D: 80, 0x0F: 4000, 0x10: 5000, 0x16: 0x00C0, 0x18: 5000, 0x19: 11400}
    for register, value in {**sbs, 0x1A: 0x0021}.items():
        bus.word(SBS, register, value)
    bus.big(LM75, 0x00, round(45.5 * 2) << 7)
    for rail in RAILS:
        if rail.name != "test_power":
            rail.write(bus, rail.idle_w)


@dataclass
class Truth:
    """The file of what the registers said: begin and end of a write, ns, rail, W."""

    file: TextIO
    bus: Bus
    refused: int = 0
    _last: dict[str, float] = field(default_factory=dict)

    def set(self, rail: Rail, watts: float) -> None:
        """Write the registers of a rail and keep what they say; a chip that is away keeps what it said."""
        before = _now()
        with contextlib.suppress(OSError):
            said = rail.write(self.bus, watts)
            if said != self._last.get(rail.name):
                self._last[rail.name] = said
                self.file.write(f"{before},{_now()},{rail.name},{said:.6f}\n")
            return
        self.refused += 1
        self._last.pop(rail.name, None)


def square(seconds: float, on_s: float = 0.9, off_s: float = 0.7) -> Iterator[tuple[float, float]]:
    """Yield (time, share) of a load that goes on and off."""
    at = 0.0
    while at < seconds:
        yield at, 1.0
        yield at + on_s, 0.0
        at += on_s + off_s


def ramp(seconds: float, turn_s: float = 10.0, step_s: float = 0.05) -> Iterator[tuple[float, float]]:
    """Yield (time, share) of power that goes up and down in small steps."""
    for number in range(round(seconds / step_s)):
        place = number * step_s / turn_s % 1
        yield number * step_s, 2 * min(place, 1 - place)


def recorded(seconds: float, step: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield (time, share) of a recorded training step, (lasts s, share) each op, over and over."""
    at = 0.0
    while at < seconds:
        for lasts, share in step:
            yield at, share
            at += lasts


def play(truth: Truth, program: Sequence[tuple[float, float]], seconds: float) -> None:
    """Set all rails at the times of a program."""
    start, batteries_s = time.monotonic(), 0.0
    for at, share in program:
        if at >= seconds:
            break
        time.sleep(max(0.0, start + at - time.monotonic()))
        slow = time.monotonic() >= batteries_s
        batteries_s = time.monotonic() + _BATTERY_S if slow else batteries_s
        for rail in RAILS if slow else RAILS[:-2]:
            truth.set(rail, rail.idle_w + share * (rail.busy_w - rail.idle_w))
    time.sleep(max(0.0, start + seconds - time.monotonic()))


def loads(seconds: float, period_s: float = 0.01) -> Iterator[float]:
    """Wait for the end of each period of conversion, and yield the share of it in which the core ran a task."""
    started = _now()
    last_ns, last_run_ns = started, _run_ns()
    for number in range(1, round(seconds / period_s)):
        time.sleep(max(0, started + round(number * period_s * 1e9) - _now()) / 1e9)
        now_ns, run_ns = _now(), _run_ns()
        yield min(1.0, (run_ns - last_run_ns) / (now_ns - last_ns))
        last_ns, last_run_ns = now_ns, run_ns


def _run_ns() -> int:
    """Time that tasks ran on the cores, ns: the 7th field of a line of /proc/schedstat."""
    with Path("/proc/schedstat").open("rb") as file:
        return sum(int(line.split()[7]) for line in file if line.startswith(b"cpu"))


def follow_load(truth: Truth, seconds: float) -> None:
    """Let the rails draw what the load asks for: chips that convert every 10 ms and average over that."""
    for number, share in enumerate(loads(seconds)):
        for rail in RAILS if number % 100 == 0 else RAILS[:-2]:
            truth.set(rail, rail.idle_w + share * (rail.busy_w - rail.idle_w))


def follow(truth: Truth, shares: Iterable[str]) -> None:
    """Let the rails draw the share that each line of text states, from the moment on at which it comes."""
    batteries_s = 0.0
    for line in shares:
        slow = time.monotonic() >= batteries_s
        batteries_s = time.monotonic() + _BATTERY_S if slow else batteries_s
        for rail in RAILS if slow else RAILS[:-2]:
            truth.set(rail, rail.idle_w + float(line) * (rail.busy_w - rail.idle_w))


def main() -> None:
    """Follow a program for some seconds, then leave the last values."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", choices=("reset", "square", "ramp", "recorded", "load", "follow"))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--truth", type=Path, default=Path("/dev/null"))
    parser.add_argument("--step", type=Path, help="the recorded step: a JSON list of [s, share]")
    options = parser.parse_args()
    if options.program == "reset":
        power_on()
        return
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))  # a chip does not wait for a core
    with options.truth.open("a", buffering=1) as file:
        truth = Truth(file, Bus())
        if options.program == "load":
            follow_load(truth, options.seconds)
            return
        if options.program == "follow":
            follow(truth, iter(sys.stdin.readline, ""))
            return
        step = json.loads(options.step.read_text()) if options.step else []
        made = {"square": square, "ramp": ramp}.get(options.program)
        play(truth, list(made(options.seconds) if made else recorded(options.seconds, step)), options.seconds)


if __name__ == "__main__":
    main()
