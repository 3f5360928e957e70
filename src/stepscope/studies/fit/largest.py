"""The largest batch that fits, exact: dry runs at a guess of the linear model, then between what fits and what not."""

from __future__ import annotations

from collections.abc import Callable

_LINES = 5  # dry runs at guesses of a line, before halving makes sure of an end
MOST = 1 << 20  # samples: beyond this nobody trains on a small device
Peak = Callable[[int], int]  # the most that a process may take with so many samples, B


def largest_batch(peak: Peak, limit: float, start: int, smallest: int = 1) -> int:
    """The largest batch whose peak is at most `limit`; 0 where not even the smallest fits.

    Peaks do not fall with the batch, so once a batch fits and the next does not, that is the answer. Each question is
    a dry run; the line through two of them brings the third within a few samples.
    """
    known: dict[int, int] = {}

    def of(batch: int) -> int:
        if batch not in known:
            known[batch] = peak(batch)
        return known[batch]

    if of(smallest) > limit:
        return 0
    low, high = smallest, MOST + 1
    guess = max(smallest + 1, start)
    while high - low > 1:
        width = high - low
        guess = min(max(guess, low + 1), high - 1)
        if of(guess) <= limit:
            low = guess
        else:
            high = guess
        halved = 2 * (high - low) <= width
        guess = _met(known, limit, low, high) if halved or high > MOST or len(known) < _LINES else (low + high) // 2
    return low


def _met(known: dict[int, int], limit: float, low: int, high: int) -> int:
    """The last batch below the limit on the line through the two nearest to it, or the one after if that is known."""
    first, second = sorted(sorted(known, key=lambda batch: abs(known[batch] - limit))[:2])
    slope = (known[second] - known[first]) / (second - first)
    if slope <= 0:
        return 2 * low if high > MOST else (low + high) // 2
    met = int((limit - known[first]) / slope + first)
    return met + 1 if met <= low else met
