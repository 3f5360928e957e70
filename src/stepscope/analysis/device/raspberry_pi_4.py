"""Raspberry Pi 4, 400 and Compute Module 4: no current sensor on the board."""

from __future__ import annotations

from stepscope.analysis.device.contract import Board, Cluster, Identity

BOARD = Board(
    "raspberry_pi_4",
    "Raspberry Pi 4",
    Identity(compatible=("bcm2711",), board=("raspberry pi 4", "compute module 4")),
    clusters=(Cluster("Cortex-A72", 0x41, 0xD08),),
    memory_bytes=(4 << 30, 8 << 30, 2 << 30, 1 << 30),
    os_keeps_bytes=500_000_000,
    traps=(
        "This board has no current sensor: only a meter beside it (an INA226, a plug) can tell its energy.",
        "Undervoltage and heat throttle the cores: look at the throttling flags (vcgencmd get_throttled).",
    ),
)
