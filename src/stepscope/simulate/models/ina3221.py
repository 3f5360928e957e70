"""TI INA3221: three channels, shunt then bus, one 1.1 ms conversion after the other: a round of 6.6 ms.

With N samples each register is a running average, new = old + (x - old) / N (data sheet SBOS576); N = 1 shows each
conversion as it is. Steps are 40 uV of shunt voltage and 8 mV of bus voltage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.simulate.options import Options
from stepscope.simulate.plant import Floats, Stretch

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


class Ina3221:
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
        self._weight = 1.0 / samples
        self._noise, self._rng = options.adc_noise, rng
        self._slot_ns = CONVERSION_NS * (1 + options.clock_error * rng.uniform(-1, 1))
        self._first_ns = t0_ns + rng.uniform(0, self._slot_ns)
        self._slot = 0  # the next that will end
        self._energy: Floats | None = None  # at the beginning of that slot, J
        self._current_ma: list[float | None] = [None] * len(wiring)
        self._voltage_mv = [channel.supply_v * 1e3 for channel in wiring]
        self._shown: list[tuple[int, int] | None] = [None] * len(wiring)

    @property
    def next_ns(self) -> float:
        """The end of the next shunt conversion: the voltage hardly moves, and may be shown with it."""
        slot = self._slot
        while slot % 2 or self._wiring[slot % _SLOTS // 2].rail is None:
            slot += 1
        return float(self._first_ns + (slot + 1) * self._slot_ns)

    def advance(self, stretch: Stretch) -> None:
        """Finish every conversion that ends in this stretch."""
        ended = int((stretch.end_ns - self._first_ns) // self._slot_ns)
        if self._energy is None:
            if stretch.end_ns < self._first_ns:
                return
            self._energy = stretch.at(np.array([self._first_ns]))[0]
        if ended <= self._slot:
            return
        edges = self._first_ns + np.arange(self._slot + 1, ended + 1, dtype=np.float64) * self._slot_ns
        for slot, energy in enumerate(stretch.at(edges), self._slot):
            self._convert(slot % _SLOTS, energy - self._energy)
            self._energy = energy
        self._slot = ended

    def fault(self, kind: str, on: bool) -> None:
        """The chip has no fault of its own: its files have."""

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
        shown = steps * SHUNT_STEP_UV // shunt_mohm, round(self._voltage_mv[channel] / BUS_STEP_MV) * BUS_STEP_MV
        if shown != self._shown[channel]:
            self._shown[channel] = shown
            self._publish[channel](*shown)
