"""Busy share and clock of a Jetson's memory controller (EMC): the activity monitor of the chip, and the clock tree.

The activity is stated in kHz: the clock, of all, at which the same traffic would keep the controller busy.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from stepscope.record.access import files
from stepscope.record.access.files import READ_BYTES, natural, unless_all_failed
from stepscope.record.sensors.contract import NAN, Channel, Found, Missing, Target, close_files, open_files

NAME = "jetson_emc"
EVERY_NS = 100_000_000
_ACTIVITY = ("sys/kernel/debug/cactmon/mc_all", "sys/kernel/actmon_avg_activity/mc_all")
_CLOCK = (
    "sys/kernel/debug/bpmp/debug/clk/emc/rate",
    "sys/kernel/debug/clk/emc/clk_rate",
    "sys/kernel/debug/clk/override.emc/clk_rate",
)
_MOST_HZ = 2e10
REMEDY = "sudo mount -o remount,mode=755 /sys/kernel/debug   (or run the profiler as root)"


def discover(root: Path, target: Target) -> Found | Missing:
    """The busy share where activity and clock can be read, and each of the two where it can; Hz and 1."""
    if not files.is_jetson(root):
        return Missing("absent", f"{root}: not a Jetson, so no activity monitor of its memory controller")
    devfreq = sorted(root.glob("sys/class/devfreq/*emc/cur_freq"))
    activity, denied_activity = _first_open([root / path for path in _ACTIVITY])
    clock, denied_clock = _first_open([*(root / path for path in _CLOCK), *devfreq])
    if activity is None and clock is None:
        denied = denied_activity or denied_clock
        if denied is None:
            return Missing("absent", f"{root / _ACTIVITY[0]}: neither activity nor clock of the memory controller")
        return Missing("denied", f"{denied.filename}: {denied.strerror}", REMEDY)
    scales = [(*opened, scale) for opened, scale in ((activity, 1000.0), (clock, 1.0)) if opened is not None]
    descriptors = [file for file, _, _ in scales]
    quantities = _quantities(activity is not None, clock is not None)

    def read() -> list[float]:
        values = unless_all_failed([_hertz(file, scale) for file, _, scale in scales])
        return shares(values) if len(values) == 2 else values

    channels = tuple(_channel(quantity, str(scales[0][1])) for quantity in quantities)
    return Found(channels, read, lambda: close_files(descriptors), every_ns=EVERY_NS)


def shares(hertz: Sequence[float]) -> list[float]:
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
    return Channel(
        id=f"emc.{quantity}",
        sensor=NAME,
        quantity=quantity,
        unit="1" if quantity == "utilisation" else "Hz",
        kind="gauge",
        scope="emc",
        parent_scope="system",
        source=source,
        step_size=1000.0 if quantity == "active_frequency" else None,
    )
