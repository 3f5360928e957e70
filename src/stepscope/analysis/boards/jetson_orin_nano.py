"""Jetson Orin Nano 4GB and 8GB: one INA3221 (Jetson Linux developer guide, r35 and r36)."""

from __future__ import annotations

from stepscope.analysis.boards._orin_nx_rails import CLUSTERS, RAILS, TOTALS, TRAPS
from stepscope.analysis.boards.contract import Board, Identity

BOARD = Board(
    "jetson_orin_nano",
    "NVIDIA Jetson Orin Nano",
    Identity(compatible=("p3767-0003", "p3767-0004", "p3767-0005"), board=("orin nano", "orin-nano")),
    rails=RAILS,
    totals=TOTALS,
    clusters=CLUSTERS,
    memory_bytes=(8 << 30, 4 << 30),
    os_keeps_bytes=1_400_000_000,
    traps=TRAPS,
)
