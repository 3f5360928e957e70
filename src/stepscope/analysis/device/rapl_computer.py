"""A laptop or PC with an Intel or AMD processor and no graphics card of its own that answers."""

from __future__ import annotations

from stepscope.analysis.device.contract import GPU_RAILS, RAPL_RAILS, RAPL_TRAPS, Board, Identity, Total

BOARD = Board(
    "rapl_computer",
    "laptop or PC (Intel or AMD)",
    Identity(cpu=("intel", "amd ", "xeon", "ryzen", "epyc"), accelerator=("accelerator:amd",)),
    rails=(*RAPL_RAILS, *GPU_RAILS),
    totals=(
        Total(("psys",), "the platform, as far as its maker has wired the sensor"),
        Total(("package-*",), "the processor (and memory and cards, where measured) alone", also=("dram", "gpu:*")),
    ),
    os_keeps_bytes=2_000_000_000,
    traps=RAPL_TRAPS,
)
