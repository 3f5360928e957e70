"""AMD GPUs through amdsmi (ROCm): socket power, energy, load, VRAM, temperature, clocks; each tried once."""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stepscope.record.access import all_suspended, graphics_cards
from stepscope.record.sensors.contract import (
    ASLEEP,
    NAN,
    UNREADABLE,
    Errors,
    NoSensor,
    OpenSensor,
    Probe,
    Target,
    call_or_nan,
    make_channel,
    make_probe_reader,
    probes_that_answer,
)
from stepscope.record.sensors.hwmon import SOCKET, is_apu

NAME = "amdsmi"
EVERY_NS = 50_000_000
_AMD = "0x1002"  # on PCI
_PCI_DEVICES = Path("/sys/bus/pci/devices")
CHECK_S = 0.2  # how long energy and power are compared
_AGREES = 10.0
_LIBRARY_REMEDY = "install ROCm's amd-smi-lib (6.3 or later) and pip install amdsmi of the same version"
_POWERS = (  # MI300 states the first, Navi and MI200 the second, ROCm 6.4 and later the third
    ("current_socket_power", None),
    ("average_socket_power", "average, by the GPU's firmware"),
    ("socket_power", None),
)


@dataclass(frozen=True)
class _Gpu:
    """A GPU to ask: the library, its handle, its scope, and that of its power (of an APU the socket's)."""

    smi: Any
    handle: Any
    scope: str
    power_scope: str
    errors: Errors


def discover(root: Path, target: Target) -> OpenSensor | NoSensor:
    """Channels of every AMD GPU that answers; the vendor library knows this machine alone."""
    if root != Path("/"):
        return NoSensor("absent", f"{root}: amdsmi answers for the running machine only, not for a saved tree")
    smi = _library(root)
    if isinstance(smi, NoSensor):
        return smi
    if all_suspended([card for card in graphics_cards(root, _AMD) if not _is_built_in(card)]):
        return NoSensor("absent", f"every AMD GPU beside the processor's own {ASLEEP}")
    errors: Errors = (getattr(smi, "AmdSmiException", OSError), *UNREADABLE)
    try:
        smi.amdsmi_init()
    except errors as error:
        return NoSensor("failed", f"amdsmi: {_message(error)}", "check with: amd-smi list")
    try:
        sensor = _sensor(smi, errors, target)
    except errors as error:
        sensor = NoSensor("failed", f"amdsmi: {_message(error)}")
    if isinstance(sensor, NoSensor):
        _shut_down(smi, errors)
    return sensor


def _library(root: Path) -> Any:
    """The module amdsmi, or why it cannot be used; it prints when its library is missing, and stdout is not its own."""
    here = (root / "dev/kfd").exists()
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            return importlib.import_module("amdsmi")
    except ImportError:
        detail = "an AMD GPU, but no amdsmi" if here else "no AMD GPU driver (/dev/kfd)"
        return NoSensor("absent", f"{root}: {detail}", _LIBRARY_REMEDY if here else None)
    except (OSError, KeyError, AttributeError) as error:
        complaint = " ".join(printed.getvalue().split()) or _message(error)
        return NoSensor("absent", f"{root}: amdsmi without its library: {complaint}", _LIBRARY_REMEDY)


def _sensor(smi: Any, errors: Errors, target: Target) -> OpenSensor | NoSensor:
    gpus = [
        _Gpu(smi, handle, *_scopes(smi, handle, index, errors), errors)
        for index, handle in enumerate(smi.amdsmi_get_processor_handles())
    ]
    probes = [
        probe
        for gpu in gpus
        for probe in _first_per_channel(probes_that_answer([*_power(gpu), *_further_probes(gpu)], errors))
    ]
    probes += _trusted_energy_probes(gpus)
    if not probes:
        return NoSensor("unsupported", f"amdsmi counts {len(gpus)} GPUs and none of them answers")
    read = make_probe_reader(probes, errors, target.clock, "amdsmi answers nothing more")
    channels = tuple(probe.channel for probe in probes)
    return OpenSensor(channels, read, lambda: _shut_down(smi, errors), every_ns=EVERY_NS, blocking=True)


def _scopes(smi: Any, handle: Any, index: int, errors: Errors) -> tuple[str, str]:
    """The scopes that hwmon gives the same card and its power, by its PCI address: nothing must be counted twice."""
    ask = getattr(smi, "amdsmi_get_gpu_device_bdf", None)  # older releases do not tell
    try:
        place = ask(handle) if ask else f"amd{index}"  # beside an NVIDIA GPU, which is gpu:0
    except errors:
        place = f"amd{index}"
    return f"gpu:{place}", SOCKET if _is_built_in(_PCI_DEVICES / place) else f"gpu:{place}"


def _is_built_in(device: Path) -> bool:
    """Return whether a PCI device is the graphics inside a processor."""
    return any(map(is_apu, (device / "hwmon").glob("hwmon*")))


def _power(gpu: _Gpu) -> Iterator[Probe]:
    for key, averages in _POWERS:
        source = f"amdsmi_get_power_info {key}"
        yield _probe(gpu, "power", "W", source, partial(_power_w, gpu, key), step_size=1.0, filter=averages)


def _further_probes(gpu: _Gpu) -> Iterator[Probe]:
    """Load, VRAM, temperature and clocks."""
    for quantity, key in (("utilisation", "gfx_activity"), ("memory_utilisation", "umc_activity")):
        yield _probe(gpu, quantity, "1", f"amdsmi_get_gpu_activity {key}", partial(_busy, gpu, key), step_size=0.01)
    yield _probe(gpu, "memory_used", "B", "amdsmi_get_gpu_memory_usage VRAM", partial(_vram_bytes, gpu))
    for place in ("EDGE", "HOTSPOT"):
        source = f"amdsmi_get_temp_metric {place}"
        yield _probe(gpu, "temperature", "degC", source, partial(_celsius, gpu, place), step_size=1.0)
    for quantity, clock in (("frequency", "GFX"), ("memory_frequency", "MEM")):
        source = f"amdsmi_get_clock_info {clock}"
        yield _probe(gpu, quantity, "Hz", source, partial(_clock_hz, gpu, clock), step_size=1e6)


def _trusted_energy_probes(gpus: Sequence[_Gpu]) -> list[Probe]:
    """The energy counters that agree with the power of their GPU; one wait for all."""
    before = [(time.monotonic(), call_or_nan(partial(_energy_j, gpu), gpu.errors)) for gpu in gpus]
    if all(math.isnan(joules) for _, joules in before):
        return []
    time.sleep(CHECK_S)
    source = "amdsmi_get_energy_count, accumulator times resolution"
    return [
        _probe(gpu, "energy", "J", source, partial(_energy_j, gpu))
        for gpu, (start, joules) in zip(gpus, before, strict=True)
        if _energy_agrees_with_power(gpu, start, joules)
    ]


def _energy_agrees_with_power(gpu: _Gpu, start_s: float, joules: float) -> bool:
    """Return whether the counter has grown since as the power says, within a factor of ten.

    False where either is unknown.
    """
    counted_w = (call_or_nan(partial(_energy_j, gpu), gpu.errors) - joules) / (time.monotonic() - start_s)
    stated = [call_or_nan(partial(_power_w, gpu, key), gpu.errors) for key, _ in _POWERS]
    return any(stated_w > 0 and 1 / _AGREES < counted_w / stated_w < _AGREES for stated_w in stated)


def _power_w(gpu: _Gpu, key: str) -> float:
    return number(gpu.smi.amdsmi_get_power_info(gpu.handle)[key])


def _energy_j(gpu: _Gpu) -> float:
    count = gpu.smi.amdsmi_get_energy_count(gpu.handle)
    accumulator = count["energy_accumulator"] if "energy_accumulator" in count else count["power"]  # before ROCm 6.3
    return number(accumulator) * number(count["counter_resolution"]) / 1e6


def _busy(gpu: _Gpu, key: str) -> float:
    return number(gpu.smi.amdsmi_get_gpu_activity(gpu.handle)[key]) / 100


def _vram_bytes(gpu: _Gpu) -> float:
    return number(gpu.smi.amdsmi_get_gpu_memory_usage(gpu.handle, gpu.smi.AmdSmiMemoryType.VRAM))


def _celsius(gpu: _Gpu, place: str) -> float:
    kind, now = getattr(gpu.smi.AmdSmiTemperatureType, place), gpu.smi.AmdSmiTemperatureMetric.CURRENT
    degrees = number(gpu.smi.amdsmi_get_temp_metric(gpu.handle, kind, now))
    return degrees if -60 <= degrees <= 200 else NAN


def _clock_hz(gpu: _Gpu, clock: str) -> float:
    info = gpu.smi.amdsmi_get_clock_info(gpu.handle, getattr(gpu.smi.AmdSmiClkType, clock))
    return number(info["clk"] if "clk" in info else info["cur_clk"]) * 1e6  # the name before ROCm 6.2


def _first_per_channel(probes: Sequence[Probe]) -> list[Probe]:
    """The first that answers of those that would give the same channel."""
    first: dict[str, Probe] = {}
    for probe in probes:
        first.setdefault(probe.channel.id, probe)
    return list(first.values())


def _probe(
    gpu: _Gpu,
    quantity: str,
    unit: str,
    source: str,
    call: Callable[[], float],
    step_size: float | None = None,
    filter: str | None = None,  # noqa: A002 - the channel's own word
) -> Probe:
    scope = gpu.power_scope if quantity in ("power", "energy") else gpu.scope
    rail = "package-0" if scope == SOCKET else None
    channel = make_channel(NAME, scope, quantity, unit, source, rail=rail, step_size=step_size, filter=filter)
    return Probe(channel, call)


def number(value: object) -> float:
    """A number of amdsmi; NaN for "N/A" and for the all-ones that older versions pass through."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return NAN
    return NAN if value in (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF) or not math.isfinite(value) else float(value)


def _message(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _shut_down(smi: Any, errors: Errors) -> None:
    with contextlib.suppress(*errors):  # a driver that is gone needs none
        smi.amdsmi_shut_down()
