"""What the device tree says of a board: whether it is a Jetson, and numbers of single nodes; standard library only."""

from __future__ import annotations

from pathlib import Path

from stepscope.record.formats.attribute import content

_SEEN_AT = "proc/device-tree/compatible"


def is_jetson(root: Path) -> bool:
    """Whether this is an NVIDIA Tegra board: `compatible` names the chip, or L4T has left its release file."""
    try:
        return b"nvidia,tegra" in content(root / _SEEN_AT)
    except OSError:
        return (root / "etc/nv_tegra_release").exists()


def cell(path: Path) -> int | None:
    """A property of one 32-bit cell, big endian (Devicetree Specification 2.2.4); None where there is none."""
    try:
        cells = content(path)
    except OSError:
        return None
    return int.from_bytes(cells, "big") if len(cells) == 4 else None
