"""Build the file system of a Jetson as JetPack lays it out, with stand-ins of NVIDIA's programs, below a folder.

From public documentation alone (NVIDIA's Jetson Linux developer guide, and what its forum shows of real boards). The
power is a square of one second a level, and each write is kept with its times, so that its energy over any stretch is
known.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.sensors import jetson_trees

RAIL, HALF_S, LOW_MA, HIGH_MA, MILLIVOLT = "VDD_IN", 1.0, 800, 1600, 5000
RELEASE = (
    "# R{0} (release), REVISION: {1}, GCID: 1, BOARD: generic, EABI: aarch64, DATE: Mon Jan  1 00:00:00 UTC 2024\n"
)
CONF = """< PARAM TYPE=FILE NAME=CPU_ONLINE >
< POWER_MODEL ID=0 NAME={0} >
CPU_ONLINE CORE_1 1
< POWER_MODEL ID=1 NAME={1} >
"""
# Written where the present mode is asked, and set; -q prints its name and its number, as NVIDIA's does.
NVPMODEL = """#!/bin/sh
echo "$*" >>{log}
case "$1" in
-q) printf 'NV Power Mode: X\\n%s\\n' "$(cat {mode})" ;;
-m) echo "$2" >{mode} ;;
esac
"""
TEGRASTATS = """#!/bin/sh
while :; do
  read -r ma <{current}
  mw=$((ma * {volt}))
  echo "RAM 2100/7620MB (lfb 4x4MB) SWAP 0/3810MB (cached 0MB) CPU [6%@1510,9%@1510] EMC_FREQ 0%@2133" \\
    "GR3D_FREQ 0%@624 cpu@48.5C tj@48.5C VDD_IN ${{mw}}mW/${{mw}}mW VDD_CPU_GPU_CV 700mW/700mW VDD_SOC 1400mW/1400mW"
  sleep 0.1
done
"""


@dataclass(frozen=True)
class Layout:
    """A board under a JetPack: its sysfs, the file of the supply's current in mA, the release, the power modes."""

    tree: Callable[[Path], Path]
    current: str
    release: tuple[str, str]
    modes: tuple[str, str]


_HWMON = f"{jetson_trees.ORIN_DRIVER}/1-0040/hwmon/hwmon1/curr1_input"
_IIO = f"{jetson_trees.JP4_DRIVER}/0-0041/iio:device1"
LAYOUTS = {
    "jetpack6-orin-nano": Layout(jetson_trees.orin_nano, _HWMON, ("36", "4.3"), ("15W", "7W")),
    "jetpack4-tx2": Layout(jetson_trees.tx2, _IIO, ("32", "7.5"), ("MAXN", "MAXQ")),
    "jetpack6-tegrastats-alone": Layout(lambda root: root, "current", ("36", "4.3"), ("15W", "7W")),
}


def build(root: Path, layout: Layout) -> None:
    """The static files: sys, etc, var, and the programs in bin."""
    for folder in ("sys", "etc", "var/lib/nvpmodel", "bin"):
        (root / folder).mkdir(parents=True)
    layout.tree(root)
    (root / "etc/nv_tegra_release").write_text(RELEASE.format(*layout.release) + "\n")
    (root / "etc/nvpmodel.conf").write_text(CONF.format(*layout.modes))
    (root / "var/lib/nvpmodel/status").write_text("pmode:0000\n")
    (root / "mode").write_text("0\n")
    programs = {"nvpmodel": NVPMODEL.format(log=root / "log", mode=root / "mode")}
    if not (root / "sys/bus").exists():
        programs["tegrastats"] = TEGRASTATS.format(current=root / layout.current, volt=MILLIVOLT // 1000)
    for name, text in programs.items():
        (root / "bin" / name).write_text(text)
        (root / "bin" / name).chmod(0o755)


def play(root: Path, layout: Layout) -> None:
    """Write the supply's power until told to end, and begin and end, ns, rail and watts of each write."""
    with (root / "truth.csv").open("w") as truth:
        level = 0
        while True:
            level = 1 - level
            milliampere = HIGH_MA if level else LOW_MA
            before = time.monotonic_ns()
            for path, value in _files(root, layout, milliampere).items():
                _replace(path, value)
            truth.write(f"{before},{time.monotonic_ns()},{RAIL},{milliampere * MILLIVOLT / 1e6}\n")
            truth.flush()
            time.sleep(HALF_S)


def _files(root: Path, layout: Layout, milliampere: int) -> dict[Path, int | str]:
    if "iio" not in layout.current:
        return {root / layout.current: milliampere, **_voltage(root, layout)}
    folder = root / layout.current
    power = MILLIVOLT * milliampere // 1000
    return {folder / "in_power0_input": power, folder / "in_current0_input": milliampere,
            folder / "in_voltage0_input": MILLIVOLT, folder / "ui_input_0": f"{MILLIVOLT} {milliampere}"}  # fmt: skip


def _voltage(root: Path, layout: Layout) -> dict[Path, int]:
    voltage = (root / layout.current).parent / "in1_input"
    return {voltage: MILLIVOLT} if voltage.exists() else {}


def _replace(path: Path, value: int | str) -> None:
    """In place and of one width, as a driver's file never is empty."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    os.pwrite(file, f"{value:<10}\n".encode(), 0)
    os.close(file)


if __name__ == "__main__":
    place, chosen = Path(sys.argv[2]), LAYOUTS[sys.argv[3]]
    (build if sys.argv[1] == "build" else play)(place, chosen)
