"""Jetson Orin Nano 4GB and 8GB: one INA3221 (Jetson Linux developer guide, r35 and r36)."""

from __future__ import annotations

from stepscope.analysis.device.contract import (
    ORIN_NX_CLUSTERS,
    ORIN_NX_RAILS,
    ORIN_NX_TOTALS,
    ORIN_NX_TRAPS,
    Board,
    Identity,
)

BOARD = Board(
    "jetson_orin_nano",
    "NVIDIA Jetson Orin Nano",
    Identity(compatible=("p3767-0003", "p3767-0004", "p3767-0005"), board=("orin nano", "orin-nano")),
    rails=ORIN_NX_RAILS,
    totals=ORIN_NX_TOTALS,
    clusters=ORIN_NX_CLUSTERS,
    memory_bytes=(8 << 30, 4 << 30),
    os_keeps_bytes=1_400_000_000,
    traps=ORIN_NX_TRAPS,
)
