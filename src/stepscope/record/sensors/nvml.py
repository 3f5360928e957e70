"""NVIDIA GPUs through NVML: energy, power, utilisation, memory, clocks, throttling, temperature; MIG too.

Needs nvidia-ml-py (the module `pynvml`) and the driver. Every quantity is tried once; what does not answer is excluded.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepscope.record.access import all_suspended, graphics_cards
from stepscope.record.sensors.contract import (
    ASLEEP,
    NAN,
    UNREADABLE,
    Kind,
    NoSensor,
    OpenSensor,
    Probe,
    Reason,
    Target,
    channel_id,
    make_channel,
    make_probe_reader,
    probes_that_answer,
)

NAME = "nvml"
EVERY_NS = 50_000_000  # polling at 25 ms was seen to hold the driver's lock most of the time
_NVIDIA = "0x10de"  # on PCI
DEAR_NS, DEAR_EVERY_NS = 500_000, 100_000_000  # the energy call takes 2.4 ms under some drivers
_WHY: dict[int, tuple[Reason, str | None]] = {  # NVML return codes; no driver helps where there is no card
    4: ("denied", "give this user access to /dev/nvidia* (in a container: docker run --gpus all)"),
    9: ("absent", "sudo modprobe nvidia, then check with nvidia-smi"),
    12: ("absent", "install NVIDIA's driver, which brings libnvidia-ml.so.1 (in a container: docker run --gpus all)"),
    18: ("failed", "reboot: the driver was updated while it was loaded"),
}


def discover(root: Path, target: Target) -> OpenSensor | NoSensor:
    """Channels of every GPU and MIG device that answer; the vendor library knows this machine alone."""
    if root != Path("/"):
        return NoSensor("absent", f"{root}: NVML answers for the running machine only, not for a saved tree")
    nvml = _library(root)
    if isinstance(nvml, NoSensor):
        return nvml
    cards = graphics_cards(root, _NVIDIA)
    if all_suspended(cards):
        return NoSensor("absent", f"every NVIDIA GPU {ASLEEP}")
    try:
        nvml.nvmlInit()
    except (nvml.NVMLError, OSError) as error:
        reason, remedy = _WHY.get(getattr(error, "value", -1), ("failed", None))
        return NoSensor(reason, f"NVML: {error}", remedy if cards or reason != "absent" else None)
    try:
        sensor = _sensor(nvml, target)
    except (nvml.NVMLError, *UNREADABLE) as error:
        sensor = NoSensor("failed", f"NVML: {error}")
    if isinstance(sensor, NoSensor):
        _shutdown(nvml)
    return sensor


def _library(root: Path) -> Any:
    """The module pynvml of nvidia-ml-py, or why it cannot be used."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a third party's pynvml warns when it is imported
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            here = (root / "proc/driver/nvidia").exists() or (root / "dev/nvidiactl").exists()
            detail = "an NVIDIA driver, but no nvidia-ml-py" if here else "no NVIDIA driver"
            return NoSensor("absent", f"{root}: {detail}", "pip install nvidia-ml-py" if here else None)
    if not all(hasattr(nvml, name) for name in ("NVMLError", "nvmlInit", "nvmlShutdown", "nvmlDeviceGetCount")):
        origin = getattr(nvml, "__file__", "somewhere")
        remedy = "pip uninstall pynvml && pip install --force-reinstall nvidia-ml-py"
        return NoSensor("failed", f"{origin}: this pynvml is not NVIDIA's nvidia-ml-py", remedy)
    return nvml


def _sensor(nvml: Any, target: Target) -> OpenSensor | NoSensor:
    errors = (nvml.NVMLError, *UNREADABLE)
    gpus = list(_gpus(nvml, target.pid))
    if not gpus:
        return NoSensor("absent", "NVML answers and counts no GPU")
    probes = [
        probe
        for gpu in gpus
        for probe in _rename_average_power(
            probes_that_answer([_probe(gpu, quantity) for quantity in QUANTITIES], errors)
        )
    ]
    if all(probe.later for probe in probes):
        names = ", ".join(gpu.name for gpu in gpus)
        return NoSensor(
            "unsupported",
            f"NVML is here, but gives neither power, load nor memory of {names} (usual on Jetson: its own rails do)",
        )
    probes = [_limit_rate_if_slow(probe, target) for probe in probes]
    read = make_probe_reader(
        probes, errors, target.clock, "NVML answers nothing more (a GPU that was lost or removed?)"
    )
    channels = tuple(probe.channel for probe in probes)
    return OpenSensor(channels, read, lambda: _shutdown(nvml), every_ns=EVERY_NS, blocking=True)


def _shutdown(nvml: Any) -> None:
    with contextlib.suppress(nvml.NVMLError):  # a driver that is gone needs none
        nvml.nvmlShutdown()


def _gpus(nvml: Any, pid: int) -> Iterator[Gpu]:
    """Every GPU in NVML's order, each followed by its MIG devices; one that gives no handle is passed over."""
    for index in range(nvml.nvmlDeviceGetCount()):
        with contextlib.suppress(nvml.NVMLError):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            gpu = Gpu(nvml, handle, _name(nvml, handle), f"gpu:{index}", "system", pid, _card(nvml, handle))
            yield gpu
            yield from _mig_devices(gpu)


def _mig_devices(gpu: Gpu) -> Iterator[Gpu]:
    """The MIG devices of a GPU in MIG mode; their places may have holes."""
    nvml = gpu.nvml
    try:
        enabled = nvml.nvmlDeviceGetMigMode(gpu.handle)[0] == 1
        places = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu.handle) if enabled else 0
    except (nvml.NVMLError, *UNREADABLE):
        return
    for place in range(places):
        with contextlib.suppress(nvml.NVMLError):
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, place)
            name = _name(nvml, handle)
            yield replace(gpu, handle=handle, name=name, scope=f"{gpu.scope}/mig:{place}", parent=gpu.scope)


def _name(nvml: Any, handle: Any) -> str:
    try:
        name = nvml.nvmlDeviceGetName(handle)
    except nvml.NVMLError:
        return "GPU"
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def _card(nvml: Any, handle: Any) -> str | None:
    """What tells the card from others for torch too; of the UUID the first part is enough."""
    signs = []
    with contextlib.suppress(nvml.NVMLError, *UNREADABLE):
        place = nvml.nvmlDeviceGetPciInfo(handle)
        signs.append(f"{place.domain:04x}:{place.bus:02x}:{place.device:02x}.0")
    with contextlib.suppress(nvml.NVMLError, *UNREADABLE):
        uuid = nvml.nvmlDeviceGetUUID(handle)
        text = uuid.decode() if isinstance(uuid, bytes) else str(uuid)
        signs.append(text.removeprefix("GPU-").partition("-")[0])
    return " ".join(signs) or None


def _probe(gpu: Gpu, quantity: Quantity) -> Probe:
    about = {"parent_scope": gpu.parent, "rail": gpu.name, "card": gpu.card, "kind": quantity.kind}
    about |= {name: getattr(quantity, name) for name in ("refresh_ns", "step_size", "filter")}
    channel = make_channel(NAME, gpu.scope, quantity.quantity, quantity.unit, f"NVML {quantity.source}", **about)
    if quantity.quantity == "power_average":
        channel = replace(channel, **power_averaging(gpu))
    if quantity.quantity == "power" and _generation(gpu) >= _HOPPER:
        channel = replace(channel, **_OF_HOPPER)
    return Probe(channel, lambda: quantity.read(gpu), quantity.every_ns, quantity.later)


def _rename_average_power(probes: list[Probe]) -> list[Probe]:
    """Rename the driver's averaged power to the power of the scope where there is no instant power."""
    if any(probe.channel.quantity == "power" for probe in probes):
        return probes
    return [
        replace(
            probe,
            channel=replace(probe.channel, quantity="power", id=channel_id(probe.channel.scope, "power")),
        )
        if probe.channel.quantity == "power_average"
        else probe
        for probe in probes
    ]


def _limit_rate_if_slow(probe: Probe, target: Target) -> Probe:
    """A call that takes long is made less often, since it holds the driver's lock meanwhile."""
    if probe.every_ns:
        return probe
    before = target.clock()
    with contextlib.suppress(Exception):  # answered a moment ago; if it fails now it will read as a gap
        probe.call()
    return replace(probe, every_ns=DEAR_EVERY_NS) if target.clock() - before > DEAR_NS else probe


# NVML's manual gives the units (mJ, mW, %, MHz, B); refresh and averaging are as NVIDIA and published measurements
# state them: the energy counter moves in steps of 100 ms, instant power about 50 times a second.

PROCESSES_EVERY_NS = 1_000_000_000  # listing the processes of a GPU takes 4.5 ms
_AVERAGED_NS = 1_000_000_000
_AMPERE, _HOPPER, _GA100 = 7, 9, ("A100", "A30", "A800")
# Seen under a square load (H100, driver 580): instant and averaged power and the energy counter move every 100 ms; the
# instant one is explained best by an average over 15 to 40 ms of them, where 25 are published (arXiv 2312.02741).
_OF_HOPPER: dict[str, Any] = {
    "refresh_ns": 100_000_000,
    "window_ns": 25_000_000,
    "filter": "average over 25 of every 100 ms",
}
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
    card: str | None = None


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
    """GPU memory of the training process, B; NaN until it is listed (in a container its number may be another one)."""
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
        "nvmlDeviceGetComputeRunningProcesses, of the training process",
        _process_bytes,
        refresh_ns=PROCESSES_EVERY_NS,
        every_ns=PROCESSES_EVERY_NS,
        later=True,
    ),
)


def power_averaging(gpu: Gpu) -> dict[str, Any]:
    """Return the filter behind nvmlDeviceGetPowerUsage: Ampere and later, except GA100, average over 1 s."""
    if _generation(gpu) < _AMPERE or any(name in gpu.name for name in _GA100):
        return {}
    return {"window_ns": _AVERAGED_NS, "filter": "average over the last second"}


def _generation(gpu: Gpu) -> int:
    """NVML's number of the architecture, growing with time; 0 where it does not tell."""
    try:
        return int(gpu.nvml.nvmlDeviceGetArchitecture(gpu.handle))
    except (gpu.nvml.NVMLError, *UNREADABLE):
        return 0
