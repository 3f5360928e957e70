"""Which power meters this machine has: probes of known paths, pure functions of a filesystem root; nothing is read."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

State = Literal["present", "denied", "absent"]


@dataclass(frozen=True)
class PowerSource:
    """A way to learn energy or power: whether it is here, what was found, the command that would open it."""

    name: str
    state: State
    detail: str
    remedy: str | None = None


@dataclass(frozen=True)
class _Kind:
    name: str
    patterns: tuple[str, ...]
    where: str  # said when it is absent
    chip: str | None = None  # word of the device tree's compatible line, where the path alone does not tell


_KINDS = (
    _Kind(
        "Jetson INA3221",
        (
            "sys/bus/i2c/drivers/ina3221x/*/iio:device*/in_power*_input",
            "sys/bus/i2c/drivers/ina3221/*/hwmon/hwmon*/curr[1-3]_input",
        ),
        "NVIDIA Jetson boards",
    ),
    _Kind("RAPL", ("sys/class/powercap/intel-rapl*:*/energy_uj",), "Intel and AMD processors, not in virtual machines"),
    _Kind("NVIDIA NVML", ("dev/nvidiactl",), "NVIDIA graphics cards with the driver loaded"),
    _Kind("battery", ("sys/class/power_supply/*/power_now", "sys/class/power_supply/*/current_now"), "laptops, phones"),
    _Kind("hwmon power meter", ("sys/class/hwmon/hwmon*/power*_input",), "boards with an INA219, INA226 or the like"),
    _Kind("Raspberry Pi 5 PMIC", ("dev/vcio",), "Raspberry Pi 5 alone; older ones have no meter", "bcm2712"),
)


def power_sources(root: Path) -> list[PowerSource]:
    """Every kind of meter that is known, with its state below this root."""
    return [_probe(root, kind) for kind in _KINDS]


def _probe(root: Path, kind: _Kind) -> PowerSource:
    paths = sorted(path for pattern in kind.patterns for path in root.glob(pattern))
    if not paths or (kind.chip and kind.chip not in _compatible(root)):
        return PowerSource(kind.name, "absent", f"found on {kind.where}")
    denied = [path for path in paths if not _opens(path)]
    if denied:
        return PowerSource(kind.name, "denied", f"{_listed(denied)}: permission denied", _remedy(denied))
    return PowerSource(kind.name, "present", _listed(paths))


def _compatible(root: Path) -> str:
    try:
        return (root / "proc/device-tree/compatible").read_text(errors="replace")
    except OSError:
        return ""


def _opens(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EPERM)
    return True


def _remedy(denied: Sequence[Path]) -> str:
    if denied[0].name == "vcio":
        return "sudo usermod -aG video $USER   (then log in again)"
    return f"sudo chmod a+r {' '.join(str(path) for path in denied)}"


def _listed(paths: Sequence[Path]) -> str:
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{paths[0]}{more}"
