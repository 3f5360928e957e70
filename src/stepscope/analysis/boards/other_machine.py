"""Any machine that no other file knows: its rails are shown as they are, and only a meter of the whole is a total."""

from __future__ import annotations

from stepscope.analysis.boards._gpu_rails import RAILS as GPU_RAILS
from stepscope.analysis.boards._rapl_rails import RAILS as RAPL_RAILS
from stepscope.analysis.boards.contract import Board, Identity, Total

BOARD = Board(
    "other_machine",
    "a machine that no board file describes",
    Identity(),
    rails=(*RAPL_RAILS, *GPU_RAILS),
    totals=(Total(("psys",), "the platform"), Total(("package-*",), "the processor alone", also=("dram", "gpu:*"))),
    traps=("No board file describes this machine: what its rails feed, and which contain others, is not known.",),
)
