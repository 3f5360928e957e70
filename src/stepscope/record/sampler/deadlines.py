"""When to read next: deadlines that accumulate on a grid, so that the mean rate is exact, dithered around it."""

from __future__ import annotations

SPREAD = 0.5  # a dithered deadline lies within so much of a period before or after its place on the grid
_GOLDEN = 0.6180339887498949


class Deadlines:
    """One deadline a period. Dither keeps sampling from locking to a training step that lasts as long as the period.

    The places follow the golden ratio, the low-discrepancy sequence whose gaps are never short: two deadlines are
    0.62 or 1.62 periods apart, and any few of them in a row cover the period evenly.
    """

    def __init__(self, start_ns: int, period_ns: int, dither: bool) -> None:
        self._period_ns = period_ns
        self._spread_ns = 2 * SPREAD * period_ns if dither else 0.0
        self._grid_ns = start_ns + int(self._spread_ns / 2)
        self._turn = 0
        self.at_ns = start_ns

    def advance(self, now_ns: int) -> int:
        """Go to the next deadline; gives how many were passed over because they lie a period or more in the past."""
        missed = 0
        self._step(1)
        if now_ns - self.at_ns > self._period_ns:
            missed = (now_ns - self.at_ns) // self._period_ns
            self._step(missed)
        return missed

    def _step(self, turns: int) -> None:
        self._turn += turns
        self._grid_ns += turns * self._period_ns
        self.at_ns = self._grid_ns + int((self._turn * _GOLDEN % 1.0 - 0.5) * self._spread_ns)
