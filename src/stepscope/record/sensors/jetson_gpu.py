"""Busy share and clock of a Jetson's GPU: `load` of its device, 0 to 1000, and `cur_freq` of its devfreq, Hz."""

from __future__ import annotations

import os
from pathlib import Path

from stepscope.record.formats.attribute import attribute
from stepscope.record.formats.sysfs import READ_BYTES, natural, unless_all_failed
from stepscope.record.sensors.contract import (
    Channel,
    Found,
    Missing,
    Target,
    close_files,
    missing_because,
    open_files,
)

NAME = "jetson_gpu"
EVERY_NS = 100_000_000  # a read of the load takes 0.3 ms on an AGX Orin
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
_MOST = {"utilisation": 1000.0, "frequency": 1e10}
_STATED = {"utilisation": ("1", 1000.0, 0.001), "frequency": ("Hz", 1.0, None)}  # unit, steps in one of it, step


def discover(root: Path, target: Target) -> Found | Missing:
    """Two gauges of gpu:0; over what time the load is averaged NVIDIA does not say."""
    files = _files(root)
    if not files:
        return Missing("absent", f"{root / 'sys/class/devfreq'}: no GPU of a Jetson")
    if "utilisation" not in files:
        where = files["frequency"]
        return Missing("unsupported", f"{where}: this GPU states no load here (a Jetson Thor answers through NVML)")
    try:
        descriptors = open_files(list(files.values()))
    except OSError as error:
        remedy = f"sudo chmod a+r {' '.join(map(str, files.values()))}"
        return missing_because(error, error.filename or root, remedy)
    quantities = list(files)

    def read() -> list[float]:
        pairs = zip(descriptors, quantities, strict=True)
        return unless_all_failed([_value(file, quantity) for file, quantity in pairs])

    channels = tuple(_channel(quantity, path) for quantity, path in files.items())
    return Found(channels, read, lambda: close_files(descriptors), every_ns=EVERY_NS)


def _value(file: int, quantity: str) -> float | OSError:
    try:
        return natural(os.pread(file, READ_BYTES, 0), _MOST[quantity]) / _STATED[quantity][1]
    except OSError as error:
        return error


def _files(root: Path) -> dict[str, Path]:
    """Where load and clock are: by the name of the device tree's node, else at the places that are known."""
    nodes = [path for path in sorted(root.glob("sys/class/devfreq/*")) if _is_gpu(path)]
    found = [_present(path / "device/load", path / "cur_freq") for path in nodes]
    for place in _DEVICES:
        clocks = sorted((root / place).glob("devfreq/*/cur_freq"))
        found.append(_present(root / place / "load", *clocks[:1]))
    return next((files for files in found if "utilisation" in files), next(filter(None, found), {}))


def _is_gpu(devfreq: Path) -> bool:
    return attribute(devfreq / "device/of_node/name").rstrip("\0") in _NODES


def _present(load: Path, clock: Path | None = None) -> dict[str, Path]:
    paths = {"utilisation": load, "frequency": clock}
    return {quantity: path for quantity, path in paths.items() if path is not None and path.exists()}


def _channel(quantity: str, path: Path) -> Channel:
    unit, _, step = _STATED[quantity]
    return Channel(
        id=f"gpu.0.{quantity}",
        sensor=NAME,
        quantity=quantity,
        unit=unit,
        kind="gauge",
        scope="gpu:0",
        parent_scope="system",
        source=str(path),
        step_size=step,
    )
