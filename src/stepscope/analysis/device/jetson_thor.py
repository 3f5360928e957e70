"""Jetson AGX Thor: an INA3221 for the rails and an INA238 for the whole board (JetPack 7)."""

from __future__ import annotations

from stepscope.analysis.device.contract import Board, Cluster, Identity, Rail, Total

BOARD = Board(
    "jetson_thor",
    "NVIDIA Jetson Thor",
    Identity(compatible=("p3834", "tegra264"), board=("jetson thor", "agx thor", "jetson-thor")),
    rails=(
        Rail("VIN", "total", meaning="the board"),
        Rail("VDD_GPU", "gpu", "VIN"),
        Rail("VDD_CPU_SOC_MSS", "cpu+soc+memory", "VIN", "CPU, SoC and the memory subsystem"),
        Rail("VIN_SYS_5V0", "other", "VIN", "the 5 V system rail"),
    ),
    totals=(Total(("VIN",), "the board with its carrier"),),
    clusters=(Cluster("Neoverse-V3AE", 0x41, 0xD83),),
    memory_bytes=(128 << 30, 64 << 30),
    os_keeps_bytes=5_000_000_000,
    traps=(
        "VIN is the whole board, unlike VDD_IN of other Jetsons, which is the module alone.",
        "CPU, SoC and memory subsystem share one rail.",
        "The GPU answers through NVML here: its own power reading and the rail VDD_GPU measure at different places.",
    ),
)
