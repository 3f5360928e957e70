"""Macs with Apple silicon: the counters of IOReport's group "Energy Model", and powermetrics."""

from __future__ import annotations

from stepscope.analysis.device.contract import Board, Identity, Rail, Total

BOARD = Board(
    "apple",
    "Mac with Apple silicon",
    Identity(compatible=("apple,",), board=("macbook", "mac mini", "macmini", "imac", "mac studio"), cpu=("apple",)),
    rails=(
        Rail("apple:package", "total", meaning="the chip"),
        Rail("apple:cpu+gpu+ane", "total", meaning="cores, graphics and neural engine"),
        Rail("apple:cpu/*", "cpu", "apple:cpu", "a cluster of cores with its cache"),
        Rail("apple:cpu", "cpu"),
        Rail("apple:gpu", "gpu"),
        Rail("apple:gpu-sram", "gpu"),
        Rail("apple:dram", "memory"),
        Rail("apple:ane", "npu", meaning="the neural engine"),
    ),
    totals=(
        Total(("apple:package",), "the chip, as it models itself"),
        Total(
            ("apple:cpu", "apple:gpu"),
            "cores, graphics and what else the chip models of itself",
            also=("apple:gpu-sram", "apple:dram", "apple:ane"),
        ),
        Total(("apple:cpu+gpu+ane",), "cores, graphics and neural engine, as the chip models itself"),
    ),
    os_keeps_bytes=3_500_000_000,
    traps=(
        "These counters are Apple's own model of the chip, not a meter.",
        "Totals of core clusters can be above the sum of their cores: they hold caches and fabric too.",
        "Display, disk and power supply are not in it.",
    ),
)
