"""Jetson AGX Orin 32GB, 64GB and Industrial: two INA3221 (Jetson Linux developer guide, r34 to r36)."""

from __future__ import annotations

from stepscope.analysis.device.contract import Board, Cluster, Identity, Rail, Total

BOARD = Board(
    "jetson_agx_orin",
    "NVIDIA Jetson AGX Orin",
    Identity(compatible=("p3701",), board=("agx orin", "agx-orin")),
    rails=(
        Rail("VDD_GPU_SOC", "gpu+soc"),
        Rail("VDD_CPU_CV", "cpu+cv", meaning="CPU and the DLA and PVA engines"),
        Rail("VIN_SYS_5V0", "other", meaning="the 5 V system rail, which feeds memory too"),
        Rail("VDDQ_VDD2_1V8AO", "memory", "VIN_SYS_5V0"),
    ),
    totals=(
        Total(
            ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"),
            "the module, as the sum of the three rails that contain all others",
        ),
    ),
    clusters=(Cluster("Cortex-A78AE", 0x41, 0xD42),),
    memory_bytes=(64 << 30, 32 << 30),
    os_keeps_bytes=4_000_000_000,
    traps=(
        "VIN_SYS_5V0 feeds VDDQ_VDD2_1V8AO: tools that add all four rails count memory twice.",
        "A step of the meter is about 400 mW on the GPU and CPU rails: small loads do not show.",
        "GPU and SoC share one rail, and so do CPU and the DLA and PVA engines.",
        "The command jetson_clocks alone lifts the idle power: compare runs of one power mode and clock setting only.",
    ),
)
