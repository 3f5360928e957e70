"""The boards that can be simulated: their power by component, and which components a rail feeds. Data alone.

Watts are those of a training on the CPU: idle power of the component, and its share of the power above idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Component:
    """One consumer: power at idle, W, and its mean share of the power above idle."""

    idle_w: float
    share: float


@dataclass(frozen=True)
class Board:
    """`rails`: the components behind each rail that a sensor shows; power above idle is `scale` times 1 to 8.2 W."""

    name: str
    components: Mapping[str, Component]
    rails: Mapping[str, tuple[str, ...]]
    scale: float
    tick_ns: int  # the board looks at the trainer's marks at least every second one, whatever its sensors do


_TX2 = {
    "gpu": Component(0.15, 0.02),
    "soc": Component(0.45, 0.08),
    "wifi": Component(0.08, 0.0),
    "cpu": Component(0.30, 0.50),
    "ddr": Component(0.35, 0.20),
    "rest": Component(0.70, 0.20),
}
_ORIN = {"compute": Component(0.60, 0.60), "soc": Component(1.00, 0.18), "rest": Component(0.70, 0.22)}
_LAPTOP = {
    "core": Component(0.8, 0.66),
    "uncore": Component(0.1, 0.02),
    "package": Component(1.6, 0.12),
    "dram": Component(0.6, 0.12),
    "platform": Component(2.5, 0.08),
}

BOARDS: dict[str, Board] = {
    board.name: board
    for board in (
        Board(
            "jetson-tx2",
            _TX2,
            {
                "VDD_SYS_GPU": ("gpu",),
                "VDD_SYS_SOC": ("soc",),
                "VDD_4V0_WIFI": ("wifi",),
                "VDD_IN": tuple(_TX2),
                "VDD_SYS_CPU": ("cpu",),
                "VDD_SYS_DDR": ("ddr",),
            },
            scale=1.0,
            tick_ns=2_200_000,
        ),
        Board(
            "jetson-orin-nano",
            _ORIN,
            {"VDD_IN": tuple(_ORIN), "VDD_CPU_GPU_CV": ("compute",), "VDD_SOC": ("soc",)},
            scale=1.2,
            tick_ns=2_200_000,
        ),
        Board(
            "laptop-rapl",
            _LAPTOP,
            {
                "package-0": ("core", "uncore", "package"),
                "core": ("core",),
                "uncore": ("uncore",),
                "dram": ("dram",),
                "psys": tuple(_LAPTOP),
            },
            scale=2.5,
            tick_ns=1_000_000,
        ),
        Board("laptop-battery", _LAPTOP, {"BAT0": tuple(_LAPTOP)}, scale=2.5, tick_ns=20_000_000),
        Board(
            "gpu-counter",
            {"card": Component(18.0, 1.0)},
            {"card": ("card",)},
            scale=12.0,
            tick_ns=5_000_000,
        ),
    )
}
