"""Description of this board: the content of device.json. What cannot be found out is null."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from pathlib import Path
from typing import Any

from stepscope.record.sensors.contract import numbered, read_small_file

_CPU_NAME = re.compile(r"^(?:model name|Model|Hardware|cpu model)\s*:\s*(.+)$", re.MULTILINE)
_BF16 = frozenset(("avx512_bf16", "amx_bf16", "bf16", "svebf16"))


def describe_device(root: Path = Path("/")) -> dict[str, Any]:
    """Facts that do not change while a run lasts; no host name, no address, no serial number."""
    cores = _cores(root)
    return {
        "board": _board_model(root),
        "compatible": _read_text(root / "proc/device-tree/compatible"),
        "cpu": _cpu_model(root),
        "bf16": _has_bf16_arithmetic(root),
        "machine": platform.machine(),
        "cores": cores,
        "clusters": _core_clusters(cores),
        "memory_bytes": _memory_bytes(root),
        "swap_bytes": _meminfo_bytes(root, "SwapTotal"),
        "os": _os_name(root),
        "kernel": _read_text(root / "proc/sys/kernel/osrelease") or platform.release(),
        "l4t": _read_text(root / "etc/nv_tegra_release"),
        "governors": {path.parent.name: _read_text(path) for path in _policy_files(root, "scaling_governor")},
        "frequency_limits_hz": {
            path.parent.name: _scale_or_none(_read_integer(path), 1000)
            for path in _policy_files(root, "scaling_max_freq")
        },
        "power_mode": _power_mode(root),
        "trip_points_celsius": _trip_points(root),
        "clock_ticks_per_second": os.sysconf("SC_CLK_TCK"),
        "accelerators": _accelerators(root),
        "container": _container(root),
        "virtual_machine": _virtual_machine(root),
    }


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def temperatures_and_clocks(root: Path = Path("/")) -> dict[str, Any]:
    """Temperatures in degrees Celsius by zone and clocks in Hz by cpufreq policy, now."""
    temperatures: dict[str, float | None] = {}
    for zone in numbered(list((root / "sys/class/thermal").glob("thermal_zone*"))):
        millidegrees = _read_integer(zone / "temp")
        is_plausible = millidegrees is not None and -60_000 <= millidegrees <= 200_000
        name = f"{_read_text(zone / 'type') or 'unnamed'} ({zone.name})"
        temperatures[name] = millidegrees / 1000 if is_plausible and millidegrees is not None else None
    clocks = {
        path.parent.name: _scale_or_none(_read_integer(path), 1000) for path in _policy_files(root, "scaling_cur_freq")
    }
    return {"temperatures_celsius": temperatures, "frequencies_hz": clocks}


def _read_text(path: Path) -> str | None:
    """The content of a small file, NULs as blanks, stripped; None where it cannot be read or is empty."""
    try:
        return read_small_file(path).decode(errors="replace").replace("\0", " ").strip() or None
    except OSError:
        return None


def _read_integer(path: Path) -> int | None:
    try:
        return int(read_small_file(path))
    except (OSError, ValueError):
        return None


def _scale_or_none(value: int | None, factor: int) -> int | None:
    return None if value is None else value * factor


def _policy_files(root: Path, name: str) -> list[Path]:
    policies = numbered(list((root / "sys/devices/system/cpu/cpufreq").glob("policy*")))
    return [policy / name for policy in policies if (policy / name).exists()]


def _board_model(root: Path) -> str | None:
    model = _read_text(root / "proc/device-tree/model")
    if model:
        return model
    dmi = [_read_text(root / "sys/class/dmi/id" / name) for name in ("sys_vendor", "product_name")]
    return " ".join(part for part in dmi if part) or None


def _cpu_model(root: Path) -> str | None:
    match = _CPU_NAME.search(_read_text(root / "proc/cpuinfo") or "")
    return match[1].strip() if match else (platform.processor() or None if root == Path("/") else None)


def _has_bf16_arithmetic(root: Path) -> bool | None:
    """Return whether the CPU multiplies in bfloat16 itself; None where the kernel does not list its instructions."""
    listed = re.search(r"^(?:flags|Features)\s*:(.*)", _read_text(root / "proc/cpuinfo") or "", re.MULTILINE)
    return None if listed is None else not _BF16.isdisjoint(listed[1].split())


def _cores(root: Path) -> list[dict[str, Any]]:
    """One entry a core, online or not."""
    folders = numbered(list((root / "sys/devices/system/cpu").glob("cpu[0-9]*")))
    return [
        {
            "core": int(folder.name[3:]),
            "online": _read_integer(folder / "online") != 0,  # the first core often has no such file: always on
            "package": _read_integer(folder / "topology/physical_package_id"),
            "cluster": _read_integer(folder / "topology/cluster_id"),
            "capacity": _read_integer(folder / "cpu_capacity"),
            "max_frequency_hz": _scale_or_none(_read_integer(folder / "cpufreq/cpuinfo_max_freq"), 1000),
            "midr": _read_text(folder / "regs/identification/midr_el1"),
        }
        for folder in folders
    ]


def _core_clusters(cores: list[dict[str, Any]]) -> list[list[int]]:
    """Cores that are alike: same kind (midr), capacity, highest clock, and package."""
    kinds: dict[tuple[Any, ...], list[int]] = {}
    for core in cores:
        kind = tuple(core[key] for key in ("package", "midr", "capacity", "max_frequency_hz"))
        kinds.setdefault(kind, []).append(core["core"])
    return list(kinds.values())


def _memory_bytes(root: Path) -> int | None:
    total = _meminfo_bytes(root, "MemTotal")
    if total is None and root == Path("/"):
        with contextlib.suppress(OSError, ValueError):
            total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return total


def _meminfo_bytes(root: Path, name: str) -> int | None:
    match = re.search(rf"^{name}:\s+(\d+) kB", _read_text(root / "proc/meminfo") or "", re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _os_name(root: Path) -> str | None:
    match = re.search(r'^PRETTY_NAME="?([^"\n]+)', _read_text(root / "etc/os-release") or "", re.MULTILINE)
    return match[1] if match else (platform.platform(terse=True) if root == Path("/") else None)


def _power_mode(root: Path) -> str | None:
    """Name of the nvpmodel mode of a Jetson: its status file says which, its configuration what it is called."""
    status = _read_text(root / "var/lib/nvpmodel/status")
    number = re.search(r"(\d+)", status or "")
    if number is None:
        return None
    names = re.findall(r"<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=(\S+?)\s*>", _read_text(root / "etc/nvpmodel.conf") or "")
    return next((name for mode, name in names if int(mode) == int(number[1])), f"mode {int(number[1])}")


def _trip_points(root: Path) -> dict[str, dict[str, float]]:
    """Temperatures at which the kernel acts, by zone and type: passive ones take clocks away, critical ones stop."""
    trips_by_zone: dict[str, dict[str, float]] = {}
    for path in sorted((root / "sys/class/thermal").glob("thermal_zone*/trip_point_*_temp")):
        zone, number = path.parent, path.name.removesuffix("_temp")
        celsius, kind = _read_integer(path), _read_text(zone / f"{number}_type")
        if celsius is not None and kind is not None and 0 < celsius <= 200_000:
            trips = trips_by_zone.setdefault(f"{_read_text(zone / 'type') or 'unnamed'} ({zone.name})", {})
            trips[kind] = min(celsius / 1000, trips.get(kind, float("inf")))
    return trips_by_zone


def _accelerators(root: Path) -> list[dict[str, Any]]:
    """NVIDIA cards by their driver's files and Jetson GPUs by their device nodes; torch adds what it sees."""
    accelerators: list[dict[str, Any]] = []
    for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        model = re.search(r"^Model:\s*(.+)$", _read_text(path) or "", re.MULTILINE)
        accelerators.append({"vendor": "nvidia", "model": model[1] if model else None, "bus": path.parent.name})
    if not accelerators:
        nodes = [*(root / "dev").glob("nvidia[0-9]*"), *(root / "dev").glob("nvhost-gpu")]
        accelerators = [{"vendor": "nvidia", "model": None, "bus": None} for _ in nodes]
    if (root / "dev/kfd").exists():
        accelerators.append({"vendor": "amd", "model": None, "bus": None})
    return accelerators


def _container(root: Path) -> str | None:
    for marker, name in ((".dockerenv", "docker"), ("run/.containerenv", "podman")):
        with contextlib.suppress(OSError):
            if (root / marker).exists():
                return name
    match = re.search(r"docker|lxc|kubepods|containerd", _read_text(root / "proc/1/cgroup") or "")
    return match[0] if match else None


def _virtual_machine(root: Path) -> bool | None:
    flags = _read_text(root / "proc/cpuinfo")
    return None if flags is None else bool(re.search(r"^flags\s*:.*\bhypervisor\b", flags, re.MULTILINE))
