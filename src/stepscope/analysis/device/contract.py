"""Contract of a board file, which names its boards in `BOARDS`, and the rails that several boards share.

It is data: what a rail feeds, what lies inside what, what can be added up.
RAPL domains: kernel, power/powercap/powercap.rst.
Orin NX and Orin Nano: one INA3221 (Jetson Linux developer guide, r35 and r36).
"""

from __future__ import annotations

from dataclasses import dataclass

# What a rail can feed; "cpu+gpu" is one rail for both, which nothing can divide. "device" is all behind a meter.
COMPONENTS = ("cpu", "gpu", "memory", "soc", "cv", "npu", "carrier", "other", "total", "device")


@dataclass(frozen=True)
class Rail:
    """A supply line by the name that the hardware gives it, or a pattern of names (`package-*`)."""

    name: str
    component: str
    inside: str | None = None  # the rail that feeds it; None where only the sensor can tell
    meaning: str = ""


@dataclass(frozen=True)
class Total:
    """Rails that add up to a total without counting anything twice, and what that total covers."""

    of: tuple[str, ...]  # each must have been measured
    covers: str
    also: tuple[str, ...] = ()  # beside them; added where they were measured


@dataclass(frozen=True)
class Cluster:
    """Cores of one kind; `implementer` and `part` are those of the MIDR_EL1 register (Arm ARM, D19.2)."""

    name: str
    implementer: int
    part: int


@dataclass(frozen=True)
class Identity:
    """Signs of a board in device.json: one of the words of one field, the first field that has one."""

    compatible: tuple[str, ...] = ()  # in the device tree's line
    board: tuple[str, ...] = ()  # in the name of the board
    accelerator: tuple[str, ...] = ()  # vendors
    cpu: tuple[str, ...] = ()  # in the name of the processor


@dataclass(frozen=True)
class Board:
    """A board or kind of machine; `totals` in order of preference."""

    name: str
    title: str
    identity: Identity
    rails: tuple[Rail, ...] = ()
    totals: tuple[Total, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()  # a rail's name elsewhere (old releases, mainline) -> its name here
    clusters: tuple[Cluster, ...] = ()
    memory_bytes: tuple[int, ...] = ()  # sizes that are sold
    os_keeps_bytes: int | None = None  # of that, roughly: firmware's carve-outs and an idle system
    traps: tuple[str, ...] = ()  # sentences for the user


OUTSIDE_RAILS = (
    Rail("wall:*", "device", meaning="all behind a plug, with the losses of the power supply"),
    Rail("meter:*", "device", meaning="all behind a meter of the user's"),
    Rail("battery:*", "device", meaning="all that the battery feeds, display included"),
    Rail("rail:ina2*", "device", meaning="all behind a meter that someone has wired to the board"),
    Rail("board", "device", meaning="the board"),
    Rail("system", "device", meaning="the whole device"),
    Rail("model:cpu", "cpu", meaning="estimated from utilisation by the power model that the user gave"),
    Rail("model:gpu", "gpu", meaning="estimated from utilisation by the power model that the user gave"),
)


GPU_RAILS = (
    Rail("gpu:*/memory", "memory", "gpu:*", "the card's own memory, in the card's power"),
    Rail("gpu:*", "gpu", meaning="the whole card with its memory"),
)


RAPL_RAILS = (
    Rail("psys", "total", meaning="the platform, where its maker has wired it"),
    Rail("package-*", "cpu", "psys", "the processor: cores, caches, built-in graphics"),
    Rail("core", "cpu"),
    Rail("uncore", "gpu", meaning="built-in graphics, on processors that have them"),
    Rail("dram", "memory", "psys", "beside the package, not inside it"),
)
RAPL_TRAPS = (
    "The package is the processor alone: display, disk, fans and power supply are in no domain.",
    "On some processors these counters are a model of the silicon, not a meter; memory can have a constant offset.",
)


ORIN_NX_RAILS = (
    Rail("VDD_IN", "total", meaning="the module"),
    Rail("VDD_CPU_GPU_CV", "cpu+gpu+cv", "VDD_IN", "CPU, GPU and, where there are any, DLA and PVA engines"),
    Rail("VDD_SOC", "soc", "VDD_IN"),
)
ORIN_NX_TOTALS = (Total(("VDD_IN",), "the module, without the carrier board"),)
ORIN_NX_CLUSTERS = (Cluster("Cortex-A78AE", 0x41, 0xD42),)
ORIN_NX_TRAPS = (
    "CPU and GPU share one rail: power alone cannot tell them apart.",
    "Memory has no rail of its own: it is in what is left of VDD_IN.",
    "The meter resolves about 40 mW; NVML is present on this board, but reports no power.",
    "The command jetson_clocks alone lifts the idle power by about 2 W: compare runs of one power mode only.",
)


def is_throttling_flag(scope: str) -> bool:
    """Return whether a flag of this name says that clocks are held down now: not in the past, and not why."""
    return "since" not in scope and "occurred" not in scope and not scope.endswith("undervoltage")
