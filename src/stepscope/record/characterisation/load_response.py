"""Which filter stands between power and its reading: least squares on the response of a gauge to a known load."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stepscope.record.characterisation.estimators import changes

Load = Sequence[tuple[int, int]]  # when all cores were busy: (on, off), ns, in order of time
Conversions = list[tuple[int, float]]  # when the sensor took each value, ns, and the value
NONE, BLOCK, RUNNING = "none", "block average", "running average"
_WIDTHS_NS = [2e6 * 1.6**n for n in range(15)]  # 2 ms to 1.4 s
_LAGS_NS = [0.0, 5e6, 15e6, 40e6, 100e6]
_EXPLAINED = 0.7  # of the variance: less, and the load did not move this channel
_WORTH = 1.15  # a filter must leave so much less error than none
_MOST_POINTS = 300
_STARTS = 4


@dataclass(frozen=True)
class Filter:
    """How a sensor averages: width of its block, or time constant of its running average, ns (None where none)."""

    kind: str
    window_ns: int | None


@dataclass(frozen=True)
class _Fit:
    error: float
    width_ns: float
    lag_ns: float


def conversions(times_ns: Sequence[int], values: Sequence[float], refresh_ns: int | None) -> Conversions:
    """One entry a refresh: the changes, and between them the refreshes that showed the same number again."""
    if refresh_ns is None:
        return _thinned(list(zip(times_ns, values, strict=True)))
    found: Conversions = []
    for t_ns, value in changes(times_ns, values):
        if found:
            held_ns, held = found[-1]
            again = range(1, round((t_ns - held_ns) / refresh_ns))
            found += [(held_ns + n * refresh_ns, held) for n in again]
        found.append((t_ns, value))
    return _thinned(found)


def filter_of(taken: Conversions, load: Load, refresh_ns: int | None = None) -> Filter | None:
    """The filter whose response to the load fits best; None where the load did not move the channel.

    A running average is taken once a refresh: one with a shorter constant would hold nothing of the value before.
    """
    if len(taken) < 12 or not load or len({value for _, value in taken}) < 2:
        return None
    fits = {
        NONE: min((_fit(taken, load, _block, 1e3, lag) for lag in _LAGS_NS), key=_error),
        BLOCK: _best(taken, load, _block),
        RUNNING: _best(taken, load, _running),
    }
    mean = sum(value for _, value in taken) / len(taken)
    variance = sum((value - mean) ** 2 for _, value in taken)
    runs = fits[RUNNING].width_ns >= (refresh_ns or 0)
    kind = RUNNING if runs and fits[RUNNING].error < fits[BLOCK].error else BLOCK
    if fits[kind].error > (1 - _EXPLAINED) * variance:
        return None
    if fits[NONE].error <= _WORTH * fits[kind].error + 1e-9 * variance:
        return Filter(NONE, None)
    return Filter(kind, round(fits[kind].width_ns))


Response = Callable[[Sequence[float], Load, float], list[float]]


def _block(at_ns: Sequence[float], load: Load, width_ns: float) -> list[float]:
    """Share of the load in the block of this width that ends at each time."""
    starts = [on for on, _ in load]
    before = [0.0]
    for on, off in load:
        before.append(before[-1] + off - on)

    def busy_ns(t_ns: float) -> float:
        passed = bisect.bisect_right(starts, t_ns)
        return 0.0 if passed == 0 else before[passed - 1] + min(t_ns, load[passed - 1][1]) - load[passed - 1][0]

    return [(busy_ns(t) - busy_ns(t - width_ns)) / width_ns for t in at_ns]


def _running(at_ns: Sequence[float], load: Load, constant_ns: float) -> list[float]:
    """The load behind a running average with this time constant: new = old + (x - old) dt / constant."""
    edges: list[int] = []
    levels = [0.0]
    for on, off in load:
        for edge, level in ((on, 0.0), (off, 1.0)):
            before = edges[-1] if edges else edge
            levels.append(level + (levels[-1] - level) * math.exp(-(edge - before) / constant_ns))
            edges.append(edge)
    response = []
    for t in at_ns:
        passed = bisect.bisect_right(edges, t)
        level = float(passed % 2)
        since = t - edges[passed - 1] if passed else 0.0
        response.append(level + (levels[passed] - level) * math.exp(-since / constant_ns))
    return response


def _best(taken: Conversions, load: Load, response: Response) -> _Fit:
    """A coarse grid over width and lag, then a pattern search around its best points: the valley is narrow."""
    grid = [_fit(taken, load, response, width, lag) for width in _WIDTHS_NS for lag in _LAGS_NS]
    return min((_searched(taken, load, response, start) for start in sorted(grid, key=_error)[:_STARTS]), key=_error)


def _searched(taken: Conversions, load: Load, response: Response, best: _Fit) -> _Fit:
    """The least error near a point; the steps get shorter when none of the eight around it is better."""
    factor, shift_ns = 1.3, 8e6
    while factor > 1.01:
        around = [(by, add) for by in (factor, 1.0, 1 / factor) for add in (-shift_ns, 0.0, shift_ns)]
        tried = [_fit(taken, load, response, best.width_ns * by, max(best.lag_ns + add, -5e6)) for by, add in around]
        nearer = min(tried, key=_error)
        if nearer.error < best.error:
            best = nearer
        else:
            factor, shift_ns = math.sqrt(factor), shift_ns / 2
    return best


def _fit(taken: Conversions, load: Load, response: Response, width_ns: float, lag_ns: float) -> _Fit:
    """Least squares of value = idle + more x response; the squared error that it leaves."""
    x = response([t - lag_ns for t, _ in taken], load, width_ns)
    y = [value for _, value in taken]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - mean_x) ** 2 for a in x)
    shared = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    total = sum((b - mean_y) ** 2 for b in y)
    return _Fit(total - shared * shared / spread if spread > 0 else total, width_ns, lag_ns)


def _error(fit: _Fit) -> float:
    return fit.error


def _thinned(taken: Conversions) -> Conversions:
    return taken[:: max(1, -(-len(taken) // _MOST_POINTS))]
