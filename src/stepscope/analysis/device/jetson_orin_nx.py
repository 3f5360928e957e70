"""Jetson Orin NX 8GB and 16GB: one INA3221 (Jetson Linux developer guide, r35 and r36)."""

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
    "jetson_orin_nx",
    "NVIDIA Jetson Orin NX",
    Identity(compatible=("p3767-0000", "p3767-0001", "p3767-0002"), board=("orin nx", "orin-nx")),
    rails=ORIN_NX_RAILS,
    totals=ORIN_NX_TOTALS,
    clusters=ORIN_NX_CLUSTERS,
    memory_bytes=(16 << 30, 8 << 30),
    os_keeps_bytes=1_900_000_000,
    traps=ORIN_NX_TRAPS,
)
