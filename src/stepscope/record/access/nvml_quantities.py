"""What is asked of an NVIDIA GPU through NVML, and what is known of each answer.

NVML's manual gives the units (mJ, mW, %, MHz, B); refresh and averaging are as NVIDIA and published measurements
state them: the energy counter moves in steps of 100 ms, instant power about 50 times a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stepscope.record.access.probing import UNREADABLE
from stepscope.record.sensors.contract import NAN, Kind

PROCESSES_EVERY_NS = 1_000_000_000  # listing the processes of a GPU takes 4.5 ms
_AVERAGED_NS = 1_000_000_000
_AMPERE, _GA100 = 7, ("A100", "A30", "A800")
_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT
_THROTTLE = (
    "bits: 1 idle, 2 application clocks, 4 software power cap, 8 hardware slowdown, 16 sync boost, "
    "32 software thermal, 64 hardware thermal, 128 power brake, 256 display clocks"
)
_NO_VALUE = 2**64 - 1  # what the driver answers for memory that it does not know


@dataclass(frozen=True)
class Gpu:
    """A device to ask: NVML's module and handle, and how its channels are named."""

    nvml: Any
    handle: Any
    name: str
    scope: str
    parent: str
    pid: int


@dataclass(frozen=True)
class Quantity:
    """A question to a device, and what is known of the answer."""

    quantity: str
    unit: str
    source: str
    read: Callable[[Gpu], float]
    kind: Kind = "gauge"
    refresh_ns: int | None = None
    step_size: float | None = None
    filter: str | None = None
    every_ns: int = 0
    later: bool = False


def _energy_j(gpu: Gpu) -> float:
    return float(gpu.nvml.nvmlDeviceGetTotalEnergyConsumption(gpu.handle)) / 1e3


def _average_w(gpu: Gpu) -> float:
    return float(gpu.nvml.nvmlDeviceGetPowerUsage(gpu.handle)) / 1e3


def _busy(gpu: Gpu) -> float:
    return float(gpu.nvml.nvmlDeviceGetUtilizationRates(gpu.handle).gpu) / 100


def _memory_busy(gpu: Gpu) -> float:
    return float(gpu.nvml.nvmlDeviceGetUtilizationRates(gpu.handle).memory) / 100


def _memory_bytes(gpu: Gpu) -> float:
    return _bytes(gpu.nvml.nvmlDeviceGetMemoryInfo(gpu.handle).used)


def _clock_hz(gpu: Gpu, clock: int) -> float:
    return float(gpu.nvml.nvmlDeviceGetClockInfo(gpu.handle, clock)) * 1e6


def _celsius(gpu: Gpu) -> float:
    return float(gpu.nvml.nvmlDeviceGetTemperature(gpu.handle, 0))  # 0 is the sensor on the die


def _instant_w(gpu: Gpu) -> float:
    """A power field in W; raises ValueError where this device does not have it."""
    field = gpu.nvml.nvmlDeviceGetFieldValues(gpu.handle, [_INSTANT])[0]
    if field.nvmlReturn != 0:
        raise ValueError(f"field {_INSTANT}: NVML return code {field.nvmlReturn}")
    return int(field.value.uiVal) / 1e3


def _bytes(count: int | None) -> float:
    return NAN if count is None or count == _NO_VALUE else float(count)


def _throttled(gpu: Gpu) -> float:
    for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        ask = getattr(gpu.nvml, name, None)
        if ask is not None:
            return float(ask(gpu.handle))
    return NAN


def _process_bytes(gpu: Gpu) -> float:
    """GPU memory of the trainer, B; NaN until it is listed (in a container its number may be another one)."""
    for process in gpu.nvml.nvmlDeviceGetComputeRunningProcesses(gpu.handle):
        if process.pid == gpu.pid:
            return _bytes(process.usedGpuMemory)
    return NAN


_SHARE = "share of time in which it was busy, over 1/6 to 1 s"
# What is tried on each device. NVML answers in mJ, mW, %, MHz and B.
QUANTITIES = (
    Quantity("energy", "J", "nvmlDeviceGetTotalEnergyConsumption", _energy_j, "counter", 100_000_000, 0.001),
    Quantity("power", "W", f"field {_INSTANT} (power, instant)", _instant_w, refresh_ns=20_000_000, step_size=0.001),
    Quantity("power_average", "W", "nvmlDeviceGetPowerUsage", _average_w, step_size=0.001),
    Quantity("utilisation", "1", "nvmlDeviceGetUtilizationRates gpu", _busy, step_size=0.01, filter=_SHARE),
    Quantity(
        "memory_utilisation", "1", "nvmlDeviceGetUtilizationRates memory", _memory_busy, step_size=0.01, filter=_SHARE
    ),
    Quantity("memory_used", "B", "nvmlDeviceGetMemoryInfo used", _memory_bytes),
    Quantity("frequency", "Hz", "nvmlDeviceGetClockInfo SM", lambda gpu: _clock_hz(gpu, 1), step_size=1e6),
    Quantity("memory_frequency", "Hz", "nvmlDeviceGetClockInfo memory", lambda gpu: _clock_hz(gpu, 2), step_size=1e6),
    Quantity("temperature", "degC", "nvmlDeviceGetTemperature", _celsius, step_size=1.0),
    Quantity("throttle_reasons", "1", "current clocks event reasons", _throttled, filter=_THROTTLE),
    Quantity(
        "process_memory",
        "B",
        "nvmlDeviceGetComputeRunningProcesses, of the trainer",
        _process_bytes,
        refresh_ns=PROCESSES_EVERY_NS,
        every_ns=PROCESSES_EVERY_NS,
        later=True,
    ),
)


def averaging(gpu: Gpu) -> dict[str, Any]:
    """What is known of the filter behind nvmlDeviceGetPowerUsage: Ampere and later, except GA100, average over 1 s."""
    try:
        averages = gpu.nvml.nvmlDeviceGetArchitecture(gpu.handle) >= _AMPERE
    except (gpu.nvml.NVMLError, *UNREADABLE):
        return {}
    if not averages or any(name in gpu.name for name in _GA100):
        return {}
    return {"window_ns": _AVERAGED_NS, "filter": "average over the last second"}
