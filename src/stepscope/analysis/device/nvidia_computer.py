"""A laptop, PC or server with NVIDIA graphics cards."""

from __future__ import annotations

from stepscope.analysis.device.contract import GPU_RAILS, RAPL_RAILS, RAPL_TRAPS, Board, Identity, Total

BOARD = Board(
    "nvidia_computer",
    "machine with NVIDIA graphics",
    Identity(accelerator=("accelerator:nvidia",)),
    rails=(*RAPL_RAILS, *GPU_RAILS),
    totals=(
        Total(
            ("package-*", "gpu:*"), "processor and graphics cards (and memory, where measured) alone", also=("dram",)
        ),
    ),
    os_keeps_bytes=2_000_000_000,
    traps=(
        *RAPL_TRAPS,
        "A card's power reading can be an average over up to 1 s, and some cards measure a quarter of the time only.",
        "A card's energy counter is updated every 10 to 100 ms: windows under 2 s can be off by several percent.",
        "Reading a sleeping laptop card wakes it.",
    ),
)
