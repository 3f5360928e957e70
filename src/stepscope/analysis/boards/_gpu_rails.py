"""Graphics cards, which report by card number and not by rail (NVML, amdsmi)."""

from __future__ import annotations

from stepscope.analysis.boards.contract import Rail

RAILS = (
    Rail("gpu:*/memory", "memory", "gpu:*", "the card's own memory, in the card's power"),
    Rail("gpu:*", "gpu", meaning="the whole card with its memory"),
)
