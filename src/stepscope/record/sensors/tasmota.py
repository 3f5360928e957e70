"""Smart plugs under Tasmota that the user names, at the wall: power, energy, voltage, current; polled once a second."""

from __future__ import annotations

from pathlib import Path

from stepscope.record.access.smart_plug import Maker, discover_plugs
from stepscope.record.meters import parse_tasmota
from stepscope.record.sensors.contract import Found, Missing, Target

NAME = "tasmota"
_MAKER = Maker(
    NAME,
    "Tasmota",
    ("/cm?cmnd=Status%208",),
    parse_tasmota,
)


def discover(root: Path, target: Target) -> Found | Missing:
    """Channels of every plug that was named as tasmota=ADDRESS."""
    return discover_plugs(_MAKER, root, target)
