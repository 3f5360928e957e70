"""The GPU's part of the memory that it shares with the CPU, B: NvMapMemUsed of /proc/meminfo, nvmap's list of clients.

The list is for root alone; without it PyTorch's own allocator says what the training holds.
"""

from __future__ import annotations

import errno
import math
import os
import re
from pathlib import Path

from stepscope.record.formats import device_tree
from stepscope.record.sensors.contract import (
    NAN,
    Channel,
    Found,
    Missing,
    Target,
    close_files,
    missing_because,
    open_files,
)

NAME = "jetson_memory"
EVERY_NS = 1_000_000_000
REMEDY = "sudo mount -o remount,mode=755 /sys/kernel/debug   (or run the profiler as root)"
_IN_USE = re.compile(rb"^NvMapMemUsed:\s+([0-9]{1,12}) kB$", re.MULTILINE)
_CLIENT = re.compile(rb"^\S+\s.*?([0-9]{1,9})\s+([0-9]{1,12})K\s*$", re.MULTILINE)  # CLIENT PROCESS PID SIZE
_TOTAL = re.compile(rb"^total\s+([0-9]{1,12})K\s*$", re.MULTILINE)


def discover(root: Path, target: Target) -> Found | Missing:
    """What nvmap has given out to all, and to the trainer where its list may be read."""
    if not device_tree.is_jetson(root):
        return Missing("absent", f"{root}: not a Jetson, so no memory that a GPU shares")
    meminfo, clients = root / "proc/meminfo", root / "sys/kernel/debug/nvmap/iovmm/clients"
    opened: dict[str, int] = {}
    refused: list[Missing] = []
    for quantity, path in (("nvmap_used", meminfo), ("gpu_memory", clients)):
        try:
            opened[quantity] = open_files([path])[0]
        except OSError as error:
            remedy = REMEDY if error.errno in (errno.EACCES, errno.EPERM) else None
            refused.append(missing_because(error, path, remedy))
    if "nvmap_used" in opened and math.isnan(_in_use(opened["nvmap_used"])):
        close_files([opened.pop("nvmap_used")])
        refused.insert(0, Missing("unsupported", f"{meminfo}: no NvMapMemUsed"))
    if not opened:
        return next((why for why in refused if why.reason == "denied"), refused[0])
    channels = tuple(_channel(quantity, meminfo if quantity == "nvmap_used" else clients) for quantity in opened)

    def read() -> list[float]:
        return [
            _in_use(file) if quantity == "nvmap_used" else _of_process(file, target.pid)
            for quantity, file in opened.items()
        ]

    return Found(channels, read, lambda: close_files(list(opened.values())), every_ns=EVERY_NS)


def in_use(meminfo: bytes) -> float:
    """All that nvmap has given out, B; NaN where the kernel does not say."""
    found = _IN_USE.search(meminfo)
    return int(found[1]) * 1024.0 if found else NAN


def of_process(clients: bytes, pid: int) -> float:
    """What a process holds, B; NaN where the list is cut, or does not name it (which may be another pid namespace)."""
    if _TOTAL.search(clients) is None:
        return NAN
    sizes = [int(size) for number, size in _CLIENT.findall(clients) if int(number) == pid]
    return sum(sizes) * 1024.0 if sizes else NAN


def _in_use(file: int) -> float:
    try:
        return in_use(os.pread(file, 16384, 0))
    except OSError:
        return NAN


def _of_process(file: int, pid: int) -> float:
    try:
        return of_process(os.pread(file, 65536, 0), pid)
    except OSError:
        return NAN


def _channel(quantity: str, source: Path) -> Channel:
    process = quantity == "gpu_memory"
    return Channel(
        id=f"process.{quantity}" if process else f"system.{quantity}",
        sensor=NAME,
        quantity=quantity,
        unit="B",
        kind="gauge",
        scope="process" if process else "system",
        parent_scope="system" if process else None,
        source=str(source),
        step_size=1024.0,
    )
