"""Jetson TX1: module and carrier rails (NVIDIA developer guide, L4T 32.6.1; mainline's tegra210-p2180)."""

from __future__ import annotations

from stepscope.analysis.device.contract import Board, Cluster, Identity, Rail, Total

BOARD = Board(
    "jetson_tx1",
    "NVIDIA Jetson TX1",
    Identity(compatible=("p2180", "p2371-2180", "jetson-tx1"), board=("jetson tx1", "jetson-tx1")),
    rails=(
        Rail("VDD_IN", "total", meaning="the module"),
        Rail("VDD_GPU", "gpu", "VDD_IN"),
        Rail("VDD_CPU", "cpu", "VDD_IN"),
        Rail("VDD_MUX", "carrier", meaning="the carrier board, beside the module"),
        Rail("VDD_5V_IO_SYS", "carrier", "VDD_MUX"),
        Rail("VDD_3V3_SYS", "carrier", "VDD_MUX"),
        Rail("VDD_3V3_IO", "carrier", "VDD_MUX"),
        Rail("VDD_1V8_IO", "carrier", "VDD_MUX"),
        Rail("VDD_M2_IN", "carrier", "VDD_MUX"),
    ),
    totals=(Total(("VDD_IN",), "the module, without the carrier board"),),
    aliases=(("VDD_3V3_IO_SLP", "VDD_3V3_IO"), ("VDD_3V3_SYS_M2", "VDD_M2_IN")),
    clusters=(Cluster("Cortex-A57", 0x41, 0xD07), Cluster("Cortex-A53", 0x41, 0xD03)),
    memory_bytes=(4 << 30,),
    os_keeps_bytes=1_200_000_000,
    traps=(
        "VDD_IN is the module: the carrier board (VDD_MUX) lies beside it and is not in the total.",
        "Memory has no rail of its own: it is in what is left of VDD_IN.",
    ),
)
