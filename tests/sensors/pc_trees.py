"""Temporary trees as laptops, PCs and Raspberry Pis have them, and the lines that real ones printed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from stepscope.record.sensors.contract import NoSensor, OpenSensor, Target

LINES = Path(__file__).parent / "lines"
RANGE_UJ = 262143328850  # of a Core
POWERCAP = "sys/class/powercap"
BATTERY = "sys/class/power_supply/BAT0"


def write(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write the files below root in place, as a driver does, making their folders; returns root."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def zone(name: str, energy_uj: object, range_uj: object = RANGE_UJ, limit_uw: int | None = None) -> dict[str, str]:
    """Files of one powercap zone."""
    files = {"name": f"{name}\n", "energy_uj": f"{energy_uj}\n", "max_energy_range_uj": f"{range_uj}\n"}
    return files if limit_uw is None else {**files, "constraint_0_power_limit_uw": f"{limit_uw}\n"}


def powercap(root: Path, zones: dict[str, dict[str, str]]) -> Path:
    """The zones as the class folder shows them, side by side."""
    files = {f"{POWERCAP}/{place}/{file}": text for place, some in zones.items() for file, text in some.items()}
    return write(root, files)


def sample_blocks(name: str) -> list[str]:
    """The texts of a file of lines, without their comments; blank lines part them."""
    blocks = (LINES / name).read_text().split("\n\n")
    texts = ["\n".join(line for line in block.splitlines() if not line.startswith("#")) for block in blocks]
    return [text for text in texts if text.strip()]


def uevent(**values: object) -> str:
    """A battery's uevent with these values, after those that every battery has."""
    fields = {"NAME": "BAT0", "TYPE": "Battery", "STATUS": "Discharging", "VOLTAGE_NOW": 11206000} | values
    return "".join(f"POWER_SUPPLY_{key}={value}\n" for key, value in fields.items() if value is not None)


def hwmon(root: Path, number: int, name: str, device: str, files: Mapping[str, str | bytes]) -> Path:
    """A chip at class number `number` on the device with this bus address, linked as the kernel links it."""
    real = f"sys/devices/bus/{device}/hwmon/hwmon{number}"
    write(root, {f"{real}/name": f"{name}\n", **{f"{real}/{file}": text for file, text in files.items()}})
    link = root / f"sys/class/hwmon/hwmon{number}"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(root / real)
    (root / real / "device").symlink_to(root / f"sys/devices/bus/{device}")
    return root


def vcgencmd(root: Path, script: str) -> Path:
    """A program in the place of vcgencmd, as a shell script."""
    path = root / "usr/bin/vcgencmd"
    write(root, {"usr/bin/vcgencmd": f"#!/bin/sh\n{script}\n"})
    path.chmod(0o755)
    return root


def watching(now_ns: Callable[[], int] = lambda: 0) -> Target:
    """A target with a clock of the test's own."""
    return Target(os.getpid(), clock=now_ns)


def found(answer: OpenSensor | NoSensor) -> OpenSensor:
    """The sensor, or a failed test that shows why not."""
    assert isinstance(answer, OpenSensor), answer
    return answer


def missing(answer: OpenSensor | NoSensor) -> NoSensor:
    """The reason, or a failed test."""
    assert isinstance(answer, NoSensor), answer
    return answer


def by_id(sensor: OpenSensor) -> dict[str, float]:
    """One reading by channel id."""
    return dict(zip([channel.id for channel in sensor.channels], sensor.read(), strict=True))


def refuse_opening(monkeypatch: pytest.MonkeyPatch, part: str, number: int) -> None:
    """Opening a path that contains `part` fails with this error number (the tests may run as root)."""
    really_open = os.open

    def refusing(path: str | Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if part in str(path):
            raise OSError(number, os.strerror(number), str(path))
        return really_open(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refusing)


def refuse_reading(monkeypatch: pytest.MonkeyPatch, part: str, number: int) -> None:
    """Reading an open file whose path contains `part` fails with this error number."""
    really_read = os.pread

    def refusing(file: int, size: int, offset: int) -> bytes:
        if part in str(Path(f"/proc/self/fd/{file}").readlink()):
            raise OSError(number, os.strerror(number))
        return really_read(file, size, offset)

    monkeypatch.setattr(os, "pread", refusing)
