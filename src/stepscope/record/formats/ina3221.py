"""The TI INA3221 as numbers: what its registers hold, and what its averaging makes of a load (data sheet SBOS576)."""

from __future__ import annotations

from dataclasses import dataclass

BUS_STEP_V = 0.008
SHUNT_STEP_V = 40e-6
MOST_MILLIVOLT = 32_760  # 12 bits of 8 mV
MOST_SHUNT_V = 0.1638  # 12 bits of 40 uV
LEAST_SHUNT_OHM = 0.0005  # no Jetson has less: it bounds a current whose shunt is not known
_SAMPLES = (1, 4, 16, 64, 128, 256, 512, 1024)
_CONVERSION_US = (140, 204, 332, 588, 1100, 2116, 4156, 8244)


@dataclass(frozen=True)
class Timing:
    """How the chip averages: None is not stated by the driver."""

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
    """From the hwmon driver's `samples` and `update_interval`, which is rounds x samples in whole ms."""
    if not samples or not update_interval_ms:
        return timing(samples, None)
    return timing(samples, update_interval_ms * 1e6 / samples)


def configured_timing(word: int | None) -> Timing:
    """From the configuration register (Table 5), which a JetPack 4 device tree sets as `ti,continuous-config`."""
    if word is None:
        return Timing()
    channels = (word >> 12 & 7).bit_count()
    conversions_us = _CONVERSION_US[word >> 6 & 7] + _CONVERSION_US[word >> 3 & 7]
    return timing(_SAMPLES[word >> 9 & 7], channels * conversions_us * 1e3)


def most_milliampere(shunt_ohm: float | None) -> float:
    """More current than this the shunt register cannot hold, mA."""
    return MOST_SHUNT_V / (shunt_ohm or LEAST_SHUNT_OHM) * 1000


def current_step_a(shunt_ohm: float | None) -> float | None:
    """The smallest change of current, A: 40 uV over the shunt."""
    return SHUNT_STEP_V / shunt_ohm if shunt_ohm else None
