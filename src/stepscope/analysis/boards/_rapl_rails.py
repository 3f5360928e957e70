"""The domains of Intel's and AMD's running average power limit (kernel: power/powercap/powercap.rst)."""

from __future__ import annotations

from stepscope.analysis.boards.contract import Rail

RAILS = (
    Rail("psys", "total", meaning="the platform, where its maker has wired it"),
    Rail("package-*", "cpu", "psys", "the processor: cores, caches, built-in graphics"),
    Rail("core", "cpu"),
    Rail("uncore", "gpu", meaning="built-in graphics, on processors that have them"),
    Rail("dram", "memory", "psys", "beside the package, not inside it"),
)
TRAPS = (
    "The package is the processor alone: display, disk, fans and power supply are in no domain.",
    "On some processors these counters are a model of the silicon, not a meter; memory can have a constant offset.",
)
