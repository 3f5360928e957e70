"""How a power source sees the past: a box, behind an analogue filter, at a stamp that is late and not quite sure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special  # type: ignore[import-untyped]

from stepscope.analysis.attribution.readings import Readings
from stepscope.analysis.intervals import Floats

_SHARPEST = 1e-7  # s
SHORTEST_RC = 2e-5  # s; a filter faster than this changes nothing that an op stamp could show
_TAILS = 7.0  # time constants after which exp(-x) no longer counts
# Three-point Gauss rule of a unit normal: the stamps' noise blurs the kernel (a Berkson error, so no bias is left).
NODES = ((-(3**0.5), 1 / 6), (0.0, 2 / 3), (3**0.5, 1 / 6))

_FAR, _A_UNIT = 6, 512  # of the table of a blurred ramp: to so many standard deviations, in so many parts of one
_AT = np.linspace(-_FAR, _FAR, 2 * _FAR * _A_UNIT + 1)
# What the blurred ramp has over the sharp one, as a share of the standard deviation; and its growth to the next entry.
_OVER = _AT * special.ndtr(_AT) + np.exp(-_AT * _AT / 2) / np.sqrt(2 * np.pi) - np.maximum(_AT, 0.0)
_RISE = np.append(np.diff(_OVER), 0.0)


@dataclass(frozen=True)
class SensorModel:
    """Seconds: the box ends `lag` before the stamp and is `width` long (None: each reading has its own);
    `rc` is the time constant of the supply or filter; `smear` the standard deviation of the stamps."""

    lag: float
    width: float | None
    rc: float = 0.0
    smear: float = 0.0

    def windows(self, readings: Readings) -> tuple[Floats, Floats]:
        """End and width of each window of the readings."""
        end = readings.stamp - self.lag
        if readings.width is not None:
            return end, readings.width
        assert self.width is not None, "a gauge has one width"
        return end, np.full(len(end), self.width)

    @property
    def tail(self) -> float:
        """What the kernel reaches back beyond its box, s."""
        return _TAILS * self.rc if self.rc > SHORTEST_RC else 0.0

    @property
    def reach(self) -> float:
        """What the smear adds on either side, s."""
        return NODES[-1][0] * self.smear

    def seen_since(self, age: Floats, width: Floats, blur: Floats | None = None) -> Floats:
        """Share of the kernel's weight that lies within `age` before the end of the box: 0 at 0, 1 long before.

        blur: standard deviation of the piece's own times, s, as long as `age`; the filter is then taken as normal too.
        """
        if blur is not None:
            return self._blurred(age - self.rc, width, np.sqrt(blur**2 + self.smear**2 + self.rc**2 + _SHARPEST**2))
        if not self.smear:
            return self._sharp(age, width)
        total = np.zeros(len(age))
        for node, weight in NODES:
            total += weight * self._sharp(age + node * self.smear, width)
        return total

    def _blurred(self, age: Floats, width: Floats, sd: Floats) -> Floats:
        share: Floats = (_softened(age, sd) - _softened(age - width, sd)) / width
        return share

    def _sharp(self, age: Floats, width: Floats) -> Floats:
        if self.rc <= SHORTEST_RC:
            box: Floats = np.clip(age / width, 0.0, 1.0)
            return box
        share: Floats = (self._filtered(age) - self._filtered(age - width)) / width
        return share

    def _filtered(self, age: Floats) -> Floats:
        past = np.maximum(age, 0.0)
        ramp: Floats = past + self.rc * np.expm1(-past / self.rc)
        return ramp


def _softened(age: Floats, sd: Floats) -> Floats:
    """Integral of a step that is blurred by a normal distribution; from a table, within 2e-7 standard deviations."""
    place = np.clip(age / sd, -_FAR, _FAR)
    place += _FAR
    place *= _A_UNIT
    below = place.astype(np.int32)
    place -= below
    place *= _RISE[below]
    place += _OVER[below]
    place *= sd
    place += np.maximum(age, 0.0)
    return place
