"""Any machine that no other file knows: its rails are shown as they are, and only a meter of the whole is a total."""

from __future__ import annotations

from stepscope.analysis.device.contract import GPU_RAILS, RAPL_RAILS, Board, Identity, Total

BOARD = Board(
    "other_machine",
    "a machine that no board file describes",
    Identity(),
    rails=(*RAPL_RAILS, *GPU_RAILS),
    totals=(Total(("psys",), "the platform"), Total(("package-*",), "the processor alone", also=("dram", "gpu:*"))),
    traps=("No board file describes this machine: what its rails feed, and which contain others, is not known.",),
)
