"""Shelly smart plugs that the user names, at the wall: power, energy, voltage, current; polled once a second.

Their push interface is slower (every 30 s or on a change of 10 %); low loads may read 0.
"""

from __future__ import annotations

from pathlib import Path

from stepscope.record.access.smart_plug import Maker, discover_plugs
from stepscope.record.meters import parse_shelly
from stepscope.record.sensors.contract import Found, Missing, Target

NAME = "shelly"
_MAKER = Maker(
    NAME,
    "Shelly",
    (
        "/rpc/Switch.GetStatus?id=0",
        "/rpc/PM1.GetStatus?id=0",
        "/rpc/EM1.GetStatus?id=0",
        "/status",
    ),  # the last one: first generation
    parse_shelly,
)


def discover(root: Path, target: Target) -> Found | Missing:
    """Channels of every plug that was named as shelly=ADDRESS."""
    return discover_plugs(_MAKER, root, target)
