"""The largest batch that fits, exact: dry runs at a guess of the linear model, then between what fits and what not."""

from __future__ import annotations

from collections.abc import Callable

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
        guess = min(max(guess, low + 1), high - 1)
        if of(guess) <= limit:
            low = guess
        else:
            high = guess
        guess = _between(known, limit, low, high)
    return low


def _between(known: dict[int, int], limit: float, low: int, high: int) -> int:
    """Where the line through the two batches nearest to the limit meets it; twice the last while there is no end."""
    nearest = sorted(known, key=lambda batch: abs(known[batch] - limit))[:2]
    if len(nearest) < 2 or known[nearest[0]] == known[nearest[1]]:
        return low * 2 if high > MOST else (low + high) // 2
    first, second = sorted(nearest)
    slope = (known[second] - known[first]) / (second - first)
    met = int((limit - known[first]) / slope + first) if slope > 0 else low * 2
    if not low < met < high:
        return met if met > low else low + 1
    # a guess that fits is checked with its successor, one that does not with its predecessor
    return met
