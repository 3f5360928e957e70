"""Throttling of a Raspberry Pi: bits of get_throttled, now and since it was started, 0 or 1."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from stepscope.record.access import videocore
from stepscope.record.access.files import open_device_files
from stepscope.record.access.videocore import THROTTLE_BITS, parse_throttled
from stepscope.record.sensors.contract import Channel, Found, Missing, Target, missing_because

NAME = "rpi_throttled"
EVERY_NS = 1_000_000_000
_COMMAND = "get_throttled"
_FILES = ("sys/devices/platform/soc*/*firmware/get_throttled", "sys/devices/platform/*firmware/get_throttled")


def discover(root: Path, target: Target) -> Found | Missing:
    """Eight gauges, from the firmware itself, else from the kernel's file.

    Reading the file clears the firmware's history on older kernels, and puts a warning into the log of newer ones.
    """
    firmware = videocore.connect(root, _COMMAND)
    if not isinstance(firmware, Missing):
        return _sensor(f"{firmware.source} {_COMMAND}", partial(firmware.ask, _COMMAND), firmware.close)
    paths = [path for pattern in _FILES for path in sorted(root.glob(pattern))]
    kept, refused = open_device_files(paths[:1], target.clock)
    if not kept:
        return missing_because(refused[0], paths[0]) if refused and firmware.reason == "absent" else firmware
    path, file = kept[0]
    return _sensor(str(path), lambda: file.read(64).decode(errors="replace"), file.close)


def _sensor(source: str, ask: Callable[[], str], close: Callable[[], None]) -> Found | Missing:
    def read() -> list[float]:
        text = ask()
        bits = parse_throttled(text)
        if bits is None:
            raise ValueError(f"{source}: {text.strip()[:80]!r} is no set of bits")
        return [float(bits >> bit & 1) for bit in THROTTLE_BITS.values()]

    try:
        read()
    except (OSError, ValueError) as error:
        close()
        return missing_because(error, source) if isinstance(error, OSError) else Missing("unsupported", str(error))
    return Found(tuple(_channel(name, source) for name in THROTTLE_BITS), read, close, every_ns=EVERY_NS, blocking=True)


def _channel(name: str, source: str) -> Channel:
    return Channel(
        id=f"throttle.{name}.throttled",
        sensor=NAME,
        quantity="throttled",
        unit="1",
        kind="gauge",
        scope=f"throttle:{name}",
        parent_scope="system",
        source=source,
        step_size=1.0,
    )
