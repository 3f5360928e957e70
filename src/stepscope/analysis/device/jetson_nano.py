"""Jetson Nano: three 5 V rails of its INA3221 (NVIDIA developer guide, L4T 32.6.1; mainline's tegra210-p3450)."""

from __future__ import annotations

from stepscope.analysis.device.contract import Board, Cluster, Identity, Rail, Total

BOARD = Board(
    "jetson_nano",
    "NVIDIA Jetson Nano",
    Identity(compatible=("p3448", "p3450", "p3541", "jetson-nano"), board=("jetson nano", "jetson-nano", "porg")),
    rails=(
        Rail("POM_5V_IN", "total", meaning="the module"),
        Rail("POM_5V_GPU", "gpu", "POM_5V_IN"),
        Rail("POM_5V_CPU", "cpu", "POM_5V_IN"),
    ),
    totals=(Total(("POM_5V_IN",), "the module, without the carrier board"),),
    aliases=(("VDD_IN", "POM_5V_IN"), ("VDD_GPU", "POM_5V_GPU"), ("VDD_CPU", "POM_5V_CPU")),
    clusters=(Cluster("Cortex-A57", 0x41, 0xD07),),
    memory_bytes=(4 << 30, 2 << 30),
    os_keeps_bytes=1_000_000_000,
    traps=(
        "The Nano 2GB has no power meter at all: use an INA226 or a plug beside it.",
        "Memory has no rail of its own: it is in what is left of POM_5V_IN.",
        "Under JetPack 4 the meter averages over about 0.4 s: shorter work shows only in many repetitions.",
        "With one core left online and below 102 MHz the meter answers 0.",
    ),
)
