"""Jetson TX2 NX: three rails of its INA3221 (NVIDIA developer guide, L4T 32.6.1)."""

from __future__ import annotations

from stepscope.analysis.device.contract import Board, Cluster, Identity, Rail, Total

BOARD = Board(
    "jetson_tx2_nx",
    "NVIDIA Jetson TX2 NX",
    Identity(compatible=("p3636",), board=("jetson tx2 nx", "jetson-tx2-nx", "lanai")),
    rails=(
        Rail("VDD_IN", "total", meaning="the module"),
        Rail("VDD_CPU_GPU", "cpu+gpu", "VDD_IN"),
        Rail("VDD_SOC", "soc", "VDD_IN"),
    ),
    totals=(Total(("VDD_IN",), "the module, without the carrier board"),),
    clusters=(Cluster("Denver2", 0x4E, 0x003), Cluster("Cortex-A57", 0x41, 0xD07)),
    memory_bytes=(4 << 30,),
    os_keeps_bytes=1_200_000_000,
    traps=(
        "CPU and GPU share one rail: power alone cannot separate them.",
        "Memory has no rail of its own: it is in what is left of VDD_IN.",
        "Under JetPack 4 the meter averages over about 0.4 s: shorter work shows only in many repetitions.",
        "Some boards of this kind answer without any rail.",
    ),
)
