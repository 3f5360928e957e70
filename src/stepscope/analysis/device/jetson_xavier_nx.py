"""Jetson Xavier NX: three rails of its INA3221 (NVIDIA developer guide, L4T 32.6.1)."""

from __future__ import annotations

from stepscope.analysis.device.contract import Board, Cluster, Identity, Rail, Total

BOARD = Board(
    "jetson_xavier_nx",
    "NVIDIA Jetson Xavier NX",
    Identity(compatible=("p3668",), board=("jetson xavier nx", "jetson-xavier-nx", "jakku")),
    rails=(
        Rail("VDD_IN", "total", meaning="the module"),
        Rail("VDD_CPU_GPU_CV", "cpu+gpu+cv", "VDD_IN", "CPU, GPU and the DLA and PVA engines"),
        Rail("VDD_SOC", "soc", "VDD_IN"),
    ),
    totals=(Total(("VDD_IN",), "the module, without the carrier board"),),
    aliases=(("5V_IN", "VDD_IN"), ("VDD_CPU_GPU", "VDD_CPU_GPU_CV")),
    clusters=(Cluster("Carmel", 0x4E, 0x004),),
    memory_bytes=(8 << 30, 16 << 30),
    os_keeps_bytes=1_400_000_000,
    traps=(
        "CPU, GPU and the DLA and PVA engines share one rail: power alone cannot tell them apart.",
        "Memory has no rail of its own: it is in what is left of VDD_IN.",
        "Under JetPack 4 the meter averages over about 0.4 s: shorter work shows only in many repetitions.",
        "Compare runs of one power mode (nvpmodel) only.",
    ),
)
