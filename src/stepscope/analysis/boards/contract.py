"""What a board file holds: one `BOARD`. It is data: what a rail feeds, what lies inside what, what can be added up."""

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
    """How a board is known from device.json: one of the words of one field, the first field that has one."""

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
