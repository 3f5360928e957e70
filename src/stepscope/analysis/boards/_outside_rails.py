"""What any board can have: meters beside it, which measure all that is behind them, and the user's power model."""

from __future__ import annotations

from stepscope.analysis.boards.contract import Rail

RAILS = (
    Rail("wall:*", "device", meaning="all behind a plug, with the losses of the power supply"),
    Rail("meter:*", "device", meaning="all behind a meter of the user's"),
    Rail("battery:*", "device", meaning="all that the battery feeds, display included"),
    Rail("rail:ina2*", "device", meaning="all behind a meter that someone has wired to the board"),
    Rail("board", "device", meaning="the board"),
    Rail("system", "device", meaning="the whole device"),
    Rail("model:cpu", "cpu", meaning="estimated from utilisation by the power model that the user gave"),
    Rail("model:gpu", "gpu", meaning="estimated from utilisation by the power model that the user gave"),
)
