"""The rails that Orin NX and Orin Nano have in common: one INA3221 (Jetson Linux developer guide, r35 and r36)."""

from __future__ import annotations

from stepscope.analysis.boards.contract import Cluster, Rail, Total

RAILS = (
    Rail("VDD_IN", "total", meaning="the module"),
    Rail("VDD_CPU_GPU_CV", "cpu+gpu+cv", "VDD_IN", "CPU, GPU and, where there are any, DLA and PVA engines"),
    Rail("VDD_SOC", "soc", "VDD_IN"),
)
TOTALS = (Total(("VDD_IN",), "the module, without the carrier board"),)
CLUSTERS = (Cluster("Cortex-A78AE", 0x41, 0xD42),)
TRAPS = (
    "CPU and GPU share one rail: power alone cannot tell them apart.",
    "Memory has no rail of its own: it is in what is left of VDD_IN.",
    "A step of the meter is about 40 mW; NVML answers on this board and gives nothing.",
    "The command jetson_clocks alone lifts the idle power by about 2 W: compare runs of one power mode only.",
)
