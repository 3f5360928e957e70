"""A laptop or PC with an Intel or AMD processor and no graphics card of its own that answers."""

from __future__ import annotations

from stepscope.analysis.boards._gpu_rails import RAILS as GPU_RAILS
from stepscope.analysis.boards._rapl_rails import RAILS as RAPL_RAILS
from stepscope.analysis.boards._rapl_rails import TRAPS
from stepscope.analysis.boards.contract import Board, Identity, Total

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
    traps=TRAPS,
)
