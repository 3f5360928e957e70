"""Jetson TX2, TX2i and TX2 4GB: rails of NVIDIA's developer guide (L4T 32.6.1) and of mainline's tegra186-p3310."""

from __future__ import annotations

from stepscope.analysis.device.contract import Board, Cluster, Identity, Rail, Total

BOARD = Board(
    "jetson_tx2",
    "NVIDIA Jetson TX2",
    Identity(compatible=("p3310", "p3489", "p2771-0000"), board=("jetson tx2", "jetson-tx2", "quill")),
    rails=(
        Rail("VDD_IN", "total", meaning="the module"),
        Rail("VDD_SYS_GPU", "gpu", "VDD_IN"),
        Rail("VDD_SYS_CPU", "cpu", "VDD_IN"),
        Rail("VDD_SYS_DDR", "memory", "VDD_IN"),
        Rail("VDD_SYS_SOC", "soc", "VDD_IN"),
        Rail("VDD_4V0_WIFI", "other", "VDD_IN", "Wi-Fi; the TX2i has none"),
        Rail("VDD_MUX", "carrier", meaning="the carrier board, beside the module"),
        Rail("VDD_5V0_IO_SYS", "carrier", "VDD_MUX"),
        Rail("VDD_3V3_SYS", "carrier", "VDD_MUX"),
        Rail("VDD_3V3_IO_SLP", "carrier", "VDD_MUX"),
        Rail("VDD_1V8_IO", "carrier", "VDD_MUX"),
        Rail("VDD_3V3_SYS_M2", "carrier", "VDD_MUX"),
    ),
    totals=(Total(("VDD_IN",), "the module, without the carrier board"),),
    aliases=(
        ("VDD_CPU", "VDD_SYS_CPU"),  # L4T 28
        ("VDD_GPU", "VDD_SYS_GPU"),
        ("VDD_SOC", "VDD_SYS_SOC"),
        ("VDD_DDR", "VDD_SYS_DDR"),
        ("VDD_WIFI", "VDD_4V0_WIFI"),
        ("VDD_5V0_DDR", "VDD_SYS_DDR"),  # mainline device tree
        ("VDD_3V8_WIFI", "VDD_4V0_WIFI"),
        ("VDD_5V_IO_SYS", "VDD_5V0_IO_SYS"),
    ),
    clusters=(Cluster("Denver2", 0x4E, 0x003), Cluster("Cortex-A57", 0x41, 0xD07)),
    memory_bytes=(8 << 30, 4 << 30),
    os_keeps_bytes=1_400_000_000,
    traps=(
        "VDD_IN is the module: the carrier board (VDD_MUX) lies beside it and is not in the total.",
        "The named rails are about three quarters of VDD_IN; the remainder is regulators and rails without a meter.",
        "Under JetPack 4 the meter averages over about 0.4 s: shorter work shows only in many repetitions.",
        "The two Denver2 cores are off in some power modes: compare runs of one mode (nvpmodel) only.",
        "With one core left online and below 102 MHz the meter answers 0.",
    ),
)
