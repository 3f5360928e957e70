"""Sensors that are files holding numbers, a row each: memory, clocks, temperatures, the GPU of a Jetson."""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from stepscope.record import access
from stepscope.record.access import (
    READ_BYTES,
    FileSensor,
    NumberFile,
    is_jetson,
    nan_for_failed_reads,
    natural,
    parse_count,
    signed,
    word_after,
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
    read_line_or_empty,
    read_small_file,
)

_OFTEN_NS, _SELDOM_NS = 100_000_000, 1_000_000_000
_MOST_KHZ = 1e8  # 100 GHz
_PLAUSIBLE_MILLIDEGREES = (-60_000, 200_000)  # a Jetson zone that is off states -256000


def _cores(root: Path, target: Target) -> Iterator[NumberFile | NoSensor]:
    """One gauge a core, Hz; the cores of a cluster share a policy, which is read once."""
    for policy in numbered(list((root / "sys/devices/system/cpu/cpufreq").glob("policy*"))):
        path = policy / "scaling_cur_freq"
        try:
            cores = [parse_count(core) for core in read_small_file(policy / "related_cpus").split()]
        except OSError as error:
            yield no_sensor_from_error(error, error.filename)
            continue
        except ValueError as error:
            yield NoSensor("failed", f"{policy}: {error}")
            continue
        channels = (
            Channel(
                f"core{core}.frequency", "cpu_frequency", "core_frequency", "Hz", "gauge", f"core:{core}", str(path),
                parent_scope="system", step_size=1000.0,
            )
            for core in cores
        )  # fmt: skip
        yield NumberFile(path, tuple(channels), partial(_clocks, len(cores)))


def _clocks(cores: int, text: bytes) -> list[float]:
    return [hertz(text)] * cores


def hertz(text: bytes) -> float:
    """The clock that the file states in kHz; NaN where it does not (b"<unknown>", offline, 0)."""
    return natural(text, _MOST_KHZ) * 1000.0 or NAN


def _zones(root: Path, target: Target) -> Iterator[NumberFile]:
    """One gauge a zone, degrees Celsius; one that does not answer now (EAGAIN, powered off) may answer later."""
    counts: Counter[str] = Counter()
    zones = {zone: _kind(zone) for zone in numbered(list((root / "sys/class/thermal").glob("thermal_zone*")))}
    for zone, kind in zones.items():
        counts[kind] += 1
        name = kind if counts[kind] == 1 else f"{kind}#{counts[kind]}"  # acpitz, acpitz#2
        channel = Channel(
            f"zone.{name}.temperature", "temperature", "temperature", "degC", "gauge", f"zone:{name}",
            str(zone / "temp"), parent_scope="system",
        )  # fmt: skip
        place = partial(_find_zone_file, zone, kind, list(zones.values()).count(kind) == 1)
        yield NumberFile(zone / "temp", (channel,), lambda text: [celsius(text)], find=place)


def _kind(zone: Path) -> str:
    """Return what a thermal zone measures, as its driver calls it."""
    return read_line_or_empty(zone / "type") or zone.name


def _find_zone_file(zone: Path, kind: str, alone: bool) -> Path | None:
    """Return the file of a zone that may have been away: under its number, else the one zone of its kind.

    Another driver's zone may have taken the number in the meantime. alone: no other zone was of this kind.
    """
    if _kind(zone) == kind:
        return zone / "temp"
    alike = [other for other in zone.parent.glob("thermal_zone*") if _kind(other) == kind]
    return alike[0] / "temp" if alone and len(alike) == 1 else None


def celsius(text: bytes) -> float:
    """The temperature that the file states in millidegrees; NaN where it is garbage or cannot be true."""
    return signed(text, *_PLAUSIBLE_MILLIDEGREES) / 1000


def _resident(root: Path, target: Target) -> Iterator[NumberFile]:
    """Resident memory of the watched process, B; the kernel counts whole pages."""
    page_bytes = os.sysconf("SC_PAGE_SIZE")

    def resident(statm: bytes) -> list[float]:
        return [parse_count(statm.partition(b" ")[2].partition(b" ")[0]) * page_bytes or NAN]  # 0 pages: it has ended

    path = root / f"proc/{target.pid}/statm"
    channel = _memory("process_memory", "rss", "process", path, float(page_bytes))
    yield NumberFile(path, (channel,), resident, tried=True)


PSS = re.compile(rb"^Pss:\s+(\d{1,15}) kB", re.MULTILINE)
PEAK = re.compile(rb"^VmHWM:\s+(\d{1,15}) kB", re.MULTILINE)
IN_USE = re.compile(rb"^NvMapMemUsed:\s+([0-9]{1,12}) kB$", re.MULTILINE)


def parse_kb_as_bytes(pattern: re.Pattern[bytes], text: bytes) -> list[float]:
    """The first number that the pattern finds, in B; NaN where it finds none."""
    match = pattern.search(text)
    return [int(match[1]) * 1024.0 if match else NAN]


def _memory_map(root: Path, target: Target) -> Iterator[NumberFile]:
    """Return up to two gauges, B: `pss` (shared pages divided by their users; walks page tables) and `peak_rss`."""
    for quantity, name, pattern in (("pss", "smaps_rollup", PSS), ("peak_rss", "status", PEAK)):
        path = root / f"proc/{target.pid}/{name}"
        channel = _memory("process_memory_map", quantity, "process", path)
        yield NumberFile(path, (channel,), partial(parse_kb_as_bytes, pattern), 4096, tried=True)


def _system_memory(root: Path, target: Target) -> Iterator[NumberFile]:
    """Two gauges, B; MemAvailable is the limit that ends a training run on a board with shared memory."""
    path = root / "proc/meminfo"
    channels = (_memory("system_memory", name, "system", path) for name in ("memory_available", "swap_used"))
    yield NumberFile(path, tuple(channels), available_and_swap, 2048, tried=True)


def available_and_swap(meminfo: bytes) -> list[float]:
    """MemAvailable and SwapTotal - SwapFree, B; NaN where more is free than there is. Raises ValueError."""
    words = [word_after(label, meminfo) for label in (b"MemAvailable:", b"SwapTotal:", b"SwapFree:")]
    if not all(words):
        raise ValueError("no MemAvailable, SwapTotal and SwapFree")
    available, total, free = (parse_count(word) * 1024.0 for word in words)
    return [available, total - free if free <= total else NAN]


_CLIENT = re.compile(rb"^\S+\s.*?([0-9]{1,9})\s+([0-9]{1,12})K\s*$", re.MULTILINE)  # CLIENT PROCESS PID SIZE
_TOTAL = re.compile(rb"^total\s+([0-9]{1,12})K\s*$", re.MULTILINE)
_DEBUG_REMEDY = "sudo mount -o remount,mode=755 /sys/kernel/debug   (or run the profiler as root)"


def _jetson_memory(root: Path, target: Target) -> Iterator[NumberFile | NoSensor]:
    """The GPU's part of the memory that it shares with the CPU, B: of all, and of the training by nvmap's list.

    The list is for root alone; without it PyTorch's own allocator says what the training holds.
    """
    if not is_jetson(root):
        yield NoSensor("absent", f"{root}: not a Jetson, so no memory that a GPU shares")
        return
    meminfo, clients = root / "proc/meminfo", root / "sys/kernel/debug/nvmap/iovmm/clients"
    used = _memory("jetson_memory", "nvmap_used", "system", meminfo)
    yield NumberFile(meminfo, (used,), partial(parse_kb_as_bytes, IN_USE), 16384, tried=True)
    own = _memory("jetson_memory", "gpu_memory", "process", clients)
    yield NumberFile(
        clients, (own,), lambda text: [nvmap_bytes_of_process(text, target.pid)], 65536, remedy=_DEBUG_REMEDY
    )


def nvmap_bytes_of_process(clients: bytes, pid: int) -> float:
    """Return the memory of a process, B.

    NaN where the list is cut, or does not name it (perhaps another pid namespace).
    """
    if _TOTAL.search(clients) is None:
        return NAN
    sizes = [int(size) for number, size in _CLIENT.findall(clients) if int(number) == pid]
    return sum(sizes) * 1024.0 if sizes else NAN


def _memory(sensor: str, quantity: str, scope: str, path: Path, step_size: float = 1024.0) -> Channel:
    parent = None if scope == "system" else "system"
    return Channel(
        f"{scope}.{quantity}", sensor, quantity, "B", "gauge", scope, str(path), parent_scope=parent,
        step_size=step_size,
    )  # fmt: skip


_NODES = ("gv11b", "gp10b", "ga10b", "gb10b", "gm20b", "gpu")  # what the device trees call the GPU
_DEVICES = (
    "sys/devices/gpu.0",
    "sys/devices/platform/gpu.0",
    "sys/devices/platform/bus@0/17000000.gpu",
    "sys/devices/platform/17000000.ga10b",
    "sys/devices/17000000.ga10b",
    "sys/devices/17000000.gv11b",
    "sys/devices/17000000.gp10b",
    "sys/devices/57000000.gpu",
)
_STATED = {  # unit, the most that can be, steps in one of the unit, step
    "utilisation": ("1", 1000.0, 1000.0, 0.001),
    "frequency": ("Hz", 1e10, 1.0, None),
}


def _jetson_gpu(root: Path, target: Target) -> Iterator[NumberFile | NoSensor]:
    """Two gauges of gpu:0; over what time the load is averaged NVIDIA does not say."""
    paths = _gpu_files(root)
    if paths and "utilisation" not in paths:
        why = "this GPU states no load here (a Jetson Thor answers through NVML)"
        yield NoSensor("unsupported", f"{paths['frequency']}: {why}")
        return
    remedy = f"sudo chmod a+r {' '.join(map(str, paths.values()))}"
    for quantity, path in paths.items():
        unit, most, scale, step = _STATED[quantity]
        channel = Channel(
            f"gpu.0.{quantity}", "jetson_gpu", quantity, unit, "gauge", "gpu:0", str(path), parent_scope="system",
            step_size=step,
        )  # fmt: skip
        values = partial(_scaled, most, scale)
        yield NumberFile(path, (channel,), values, remedy=remedy)


def _scaled(most: float, scale: float, text: bytes) -> list[float]:
    return [natural(text, most) / scale]


def _gpu_files(root: Path) -> dict[str, Path]:
    """Return where load and clock are: by the name of the device tree's node, else at the places that are known."""
    nodes = [path for path in sorted(root.glob("sys/class/devfreq/*")) if _is_gpu(path)]
    candidates = [_existing_files(path / "device/load", path / "cur_freq") for path in nodes]
    for place in _DEVICES:
        clocks = sorted((root / place).glob("devfreq/*/cur_freq"))
        candidates.append(_existing_files(root / place / "load", *clocks[:1]))
    return next((files for files in candidates if "utilisation" in files), next(filter(None, candidates), {}))


def _is_gpu(devfreq: Path) -> bool:
    return read_line_or_empty(devfreq / "device/of_node/name").rstrip("\0") in _NODES


def _existing_files(load: Path, clock: Path | None = None) -> dict[str, Path]:
    paths = {"utilisation": load, "frequency": clock}
    return {quantity: path for quantity, path in paths.items() if path is not None and path.exists()}


# Busy share and clock of a Jetson's memory controller (EMC): the activity monitor of the chip, and the clock tree.
#
# The activity is stated in kHz: the clock, of all, at which the same traffic would keep the controller busy.

EMC = "jetson_emc"
_EMC_EVERY_NS = 100_000_000
_ACTIVITY = ("sys/kernel/debug/cactmon/mc_all", "sys/kernel/actmon_avg_activity/mc_all")
_CLOCK = (
    "sys/kernel/debug/bpmp/debug/clk/emc/rate",
    "sys/kernel/debug/clk/emc/clk_rate",
    "sys/kernel/debug/clk/override.emc/clk_rate",
)
_MOST_HZ = 2e10
REMEDY = "sudo mount -o remount,mode=755 /sys/kernel/debug   (or run the profiler as root)"


def discover_emc(root: Path, target: Target) -> OpenSensor | NoSensor:
    """The busy share where activity and clock can be read, and each of the two where it can; Hz and 1."""
    if not access.is_jetson(root):
        return NoSensor("absent", f"{root}: not a Jetson, so no activity monitor of its memory controller")
    devfreq = sorted(root.glob("sys/class/devfreq/*emc/cur_freq"))
    activity, denied_activity = _first_open([root / path for path in _ACTIVITY])
    clock, denied_clock = _first_open([*(root / path for path in _CLOCK), *devfreq])
    if activity is None and clock is None:
        denied = denied_activity or denied_clock
        if denied is None:
            return NoSensor("absent", f"{root / _ACTIVITY[0]}: neither activity nor clock of the memory controller")
        return NoSensor("denied", f"{denied.filename}: {denied.strerror}", REMEDY)
    scales = [(*opened, scale) for opened, scale in ((activity, 1000.0), (clock, 1.0)) if opened is not None]
    descriptors = [file for file, _, _ in scales]
    quantities = _quantities(activity is not None, clock is not None)

    def read() -> list[float]:
        values = nan_for_failed_reads([_hertz(file, scale) for file, _, scale in scales])
        return emc_share_and_clock(values) if len(values) == 2 else values

    channels = tuple(_channel(quantity, str(scales[0][1])) for quantity in quantities)
    return OpenSensor(channels, read, lambda: close_files(descriptors), every_ns=_EMC_EVERY_NS)


def emc_share_and_clock(hertz: Sequence[float]) -> list[float]:
    """Busy share and clock, Hz, from activity and clock; no share above 1, which a clock that has just fallen gives."""
    active, clock = hertz
    share = active / clock if clock > 0 else NAN
    return [share if share <= 1 else NAN, clock]


def _quantities(activity: bool, clock: bool) -> list[str]:
    if activity and clock:
        return ["utilisation", "frequency"]
    return ["active_frequency"] if activity else ["frequency"]


def _first_open(paths: Sequence[Path]) -> tuple[tuple[int, Path] | None, OSError | None]:
    """The first file that opens, and the refusal where one is there that may not be read."""
    denied = None
    for path in paths:
        try:
            return (open_files([path])[0], path), None
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                denied = denied or error
    return None, denied


def _hertz(file: int, scale: float) -> float | OSError:
    try:
        return natural(os.pread(file, READ_BYTES, 0), _MOST_HZ / scale) * scale
    except OSError as error:
        return error


def _channel(quantity: str, source: str) -> Channel:
    unit = "1" if quantity == "utilisation" else "Hz"
    return make_channel(
        EMC, "emc", quantity, unit, source, step_size=1000.0 if quantity == "active_frequency" else None
    )


SENSORS = (
    FileSensor(
        "cpu_frequency",
        _cores,
        "sys/devices/system/cpu/cpufreq: no cpufreq policy (usual in virtual machines)",
        _OFTEN_NS,
    ),
    FileSensor("temperature", _zones, "sys/class/thermal: no thermal zone (usual in virtual machines)", _OFTEN_NS),
    FileSensor("process_memory", _resident, "proc"),
    FileSensor("process_memory_map", _memory_map, "proc", every_ns=500_000_000),
    FileSensor("system_memory", _system_memory, "proc", _OFTEN_NS),
    FileSensor("jetson_memory", _jetson_memory, "proc", _SELDOM_NS),
    # A read of the load takes 0.3 ms on an AGX Orin.
    FileSensor("jetson_gpu", _jetson_gpu, "sys/class/devfreq: no GPU of a Jetson", _OFTEN_NS, whole=True),
    NamedSensor(EMC, discover_emc),
)
