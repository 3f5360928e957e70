"""Jetson AGX Xavier: six parallel rails of two INA3221 (NVIDIA developer and design guides, L4T 32.6.1)."""

from __future__ import annotations

from stepscope.analysis.device.contract import Board, Cluster, Identity, Rail, Total

BOARD = Board(
    "jetson_agx_xavier",
    "NVIDIA Jetson AGX Xavier",
    Identity(compatible=("p2888", "p2972"), board=("agx xavier", "jetson-xavier", "jetson xavier", "galen")),
    rails=(
        Rail("GPU", "gpu"),
        Rail("CPU", "cpu"),
        Rail("SOC", "soc"),
        Rail("CV", "cv", meaning="DLA and PVA engines"),
        Rail("VDDRQ", "memory"),
        Rail("SYS5V", "other", meaning="the 5 V system rail"),
    ),
    totals=(Total(("GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"), "the module, as the sum of its six rails"),),
    aliases=(
        ("VDD_GPU", "GPU"),
        ("VDD_CPU", "CPU"),
        ("VDD_SOC", "SOC"),
        ("VDD_CV", "CV"),
        ("VDD_DDRQ", "VDDRQ"),
        ("SYS_VIN_MV", "SYS5V"),
    ),
    clusters=(Cluster("Carmel", 0x4E, 0x004),),
    memory_bytes=(32 << 30, 16 << 30, 64 << 30, 8 << 30),
    os_keeps_bytes=2_000_000_000,
    traps=(
        "No rail holds all the others: the total is the sum of six, and is absent when one of them was not read.",
        "The thermal zones GPU and CPU have the names of rails.",
        "Under JetPack 4 the meter averages over about 0.4 s: shorter work shows only in many repetitions.",
        "Compare runs of one power mode (nvpmodel) only.",
    ),
)
