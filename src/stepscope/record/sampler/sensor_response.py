"""A load of known times on every core, and what readings under it say of a sensor: refresh, resolution, filter."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from stepscope.record.device import usable_cores
from stepscope.record.sensors.contract import wait_readable

# The times are agreed beforehand on the clock that all processes share, so that nothing is sent while it matters;
# the last one ends the process, even when nobody is left to stop it. nice: whoever polls the sensors goes first.
_BUSY = """
import os, sys, time
try:
    os.nice(10)
except OSError:
    pass
now = time.monotonic_ns
sys.stdout.write("\\n")
sys.stdout.flush()
for times in sys.stdin.readline().split():
    on, off = map(int, times.split(":"))
    time.sleep(max(0, on - now()) / 1e9)
    while now() < off:
        pass
"""
_READY_S = 30.0  # a small board may take half a second to start Python, a busy one longer
_LEAD, _LONG, _PAUSE, _END = 0.15, 0.42, 0.6, 0.97  # of the whole: idle, a long load, a pause, pulses, idle
_SHORTEST_PULSE_S = 0.015
_GOLDEN = 0.6180339887498949


def load_schedule(start_ns: int, seconds: float) -> list[tuple[int, int]]:
    """Return when the cores are busy, (on, off) in ns: one long step for slow filters, then pulses of 15 to 75 ms.

    The pulses let a sensor that averages a short part of each refresh show how short: an edge must fall into it.
    """
    whole_ns = seconds * 1e9
    times = [(_LEAD, _LONG)]
    at, turn = _PAUSE, 0
    while True:
        lengths = [(_SHORTEST_PULSE_S + 0.06 * ((turn + n) * _GOLDEN % 1)) / seconds for n in (1, 2)]
        if at + lengths[0] > _END:
            return [(start_ns + int(on * whole_ns), start_ns + int(off * whole_ns)) for on, off in times]
        times.append((at, at + lengths[0]))
        at += sum(lengths)
        turn += 2


class Loaders:
    """Processes that are ready to load a core each; they wait for their times."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self._processes = processes

    def __len__(self) -> int:
        return len(self._processes)

    def send_schedule(self, busy: Sequence[tuple[int, int]]) -> None:
        """Send all loaders their busy times, (on, off) in ns of the monotonic clock."""
        line = " ".join(f"{on}:{off}" for on, off in busy).encode() + b"\n"
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(OSError):  # it has been killed from outside: the others carry the load
                process.stdin.write(line)


@contextlib.contextmanager
def loaders(processes: int | None = None) -> Iterator[Loaders]:
    """A loader a core, gone after the block however it ends; one that cannot be started is excluded."""
    started: list[subprocess.Popen[bytes]] = []
    command = [sys.executable, "-S", "-I", "-c", _BUSY]  # -I: an os.py of the user's is not ours
    try:
        for _ in range(usable_cores() if processes is None else processes):
            with contextlib.suppress(OSError):
                started.append(
                    subprocess.Popen(
                        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
                    )
                )
        until = time.monotonic() + _READY_S
        yield Loaders([process for process in started if _is_ready(process, until)])
    finally:
        for process in started:
            process.kill()
        for process in started:
            with process:  # closes its pipes and waits
                pass


def _is_ready(process: subprocess.Popen[bytes], until: float) -> bool:
    assert process.stdout is not None
    is_readable = wait_readable(process.stdout.fileno(), until - time.monotonic())
    return is_readable and process.stdout.read(1) == b"\n"


FEWEST_CHANGES = 4
_SHARP = 4  # polling periods between the reads around a change that is placed well enough
_DIGITS = 13  # of a reading: what is beyond is the noise of float64 arithmetic
_EVERY_READ = 0.9  # more than this share of reads that change: the refresh is finer than the polling
_RAPL_UNITS_J = [2.0**-power for power in range(10, 21)]  # the energy unit of a processor is 2^-n J (Intel SDM 15.10)


def value_changes(times_ns: Sequence[int], values: Sequence[float]) -> list[tuple[int, float]]:
    """Every change of value: the middle between the last read of the old and the first of the new, and the new."""
    moved = [i for i in range(1, len(values)) if values[i] != values[i - 1]]
    return [((times_ns[i - 1] + times_ns[i]) // 2, values[i]) for i in moved]


def polled_every_ns(times_ns: Sequence[int]) -> int | None:
    """Median time between reads, ns: nothing finer than a few of them can be seen."""
    return int(statistics.median(_differences(times_ns))) if len(times_ns) > 1 else None


def refresh_period_ns(times_ns: Sequence[int], values: Sequence[float], counter: bool) -> int | None:
    """Return the update interval of the source, by the lattice on which its changes fall; None where not known.

    A gauge may show the same number twice, so that the time between changes is a multiple of the period. A change
    between two reads far apart (the process did not run) may have come at any time between and is omitted; where most
    are such, nothing is known.
    """
    moved = [i for i in range(1, len(values)) if values[i] != values[i - 1]]
    poll_ns = polled_every_ns(times_ns)
    if len(moved) < FEWEST_CHANGES or poll_ns is None or len(moved) > _EVERY_READ * (len(values) - 1):
        return None
    sharp = [i for i in moved if times_ns[i] - times_ns[i - 1] <= _SHARP * poll_ns]
    if len(sharp) < max(FEWEST_CHANGES, len(moved) / 3):
        return None
    period = lattice_constant(_differences([(times_ns[i - 1] + times_ns[i]) // 2 for i in sharp]))
    if period is not None and period >= 2.5 * poll_ns:
        return round(period)
    return _mean_period_ns(times_ns, values, 3 * poll_ns) if counter else None


def lattice_constant(differences: Sequence[float]) -> float | None:
    """The largest length of which the differences are whole multiples, give or take jitter; None where there is none.

    Score of a candidate: mean cosine of the phase of the differences that are not many times longer than it.
    """
    ordered = sorted(difference for difference in differences if difference > 0)
    if len(ordered) < FEWEST_CHANGES - 1:
        return None
    quantiles = {ordered[int(q * (len(ordered) - 1))] for q in (0.05, 0.1, 0.25, 0.5, 0.75)}
    candidates = {_refine_length(length / part, ordered) for length in quantiles for part in (1, 2, 3)}
    scored = [(_lattice_score(candidate, ordered), candidate) for candidate in candidates]
    best = max(score for score, _ in scored)
    if best < 0.5:
        return None
    return max(candidate for score, candidate in scored if score >= best - 0.1)


def step_size(values: Sequence[float], counter_of_joules: bool = False) -> float | None:
    """The quantum of the readings, in their unit: what divides every difference between two of them.

    Where the source rounds a longer quantum to whole units when it prints (76.8 mW as 76, 77, 153 ...), the longer
    one is given. None where fewer than two values were seen or the differences have no divisor beyond rounding.
    """
    exact = [Decimal(f"{value:.{_DIGITS}g}") for value in sorted(set(values))]
    if len(exact) < 2:
        return None
    exponent = min(int(value.as_tuple().exponent) for value in exact)
    numbers = [int(value.scaleb(-exponent)) for value in exact]
    differences = _differences(numbers)
    divisor = math.gcd(*differences)
    if divisor < 1e-6 * statistics.median(differences):
        return None
    unit = Decimal(1).scaleb(exponent)
    usual_steps = [length / float(unit) for length in _RAPL_UNITS_J] if counter_of_joules else []
    longer = _rounded_quantum(differences, divisor, usual_steps)
    return float(divisor * unit) if longer is None else longer * float(unit)


def _rounded_quantum(differences: Sequence[int], divisor: int, usual_steps: Sequence[float]) -> float | None:
    """A quantum of ten divisors or more of which every difference is a multiple, within the rounding of both ends."""
    if len(set(differences)) < 4 or len(differences) < 8:
        return None
    shortest = sorted(differences)[len(differences) // 10]
    candidates = [_refine_length(shortest / part, differences) for part in (1, 2, 3)] + list(usual_steps)
    fitting = [
        length
        for length in candidates
        if length >= 10 * divisor
        and all(round(d / length) >= 1 and abs(d - round(d / length) * length) <= 1.01 * divisor for d in differences)
    ]
    return max(fitting, default=None)


def _differences(numbers: Sequence[int]) -> list[int]:
    return [after - before for before, after in itertools.pairwise(numbers)]


def _refine_length(length: float, differences: Sequence[float]) -> float:
    """Least squares of difference = whole number x length, first with the short ones, whose numbers are certain."""
    for longest in (2.5, 6.5, 20.5):
        near = [d for d in differences if d <= longest * length]
        counts = [max(1, round(d / length)) for d in near]
        if near:
            length = sum(d * n for d, n in zip(near, counts, strict=True)) / sum(n * n for n in counts)
    return length


def _lattice_score(length: float, differences: Sequence[float]) -> float:
    near = [d / length for d in differences if d <= 6.5 * length]
    if len(near) < max(3, len(differences) // 2):
        return -1.0
    return statistics.fmean(math.cos(2 * math.pi * x) if x >= 0.5 else -1.0 for x in near)


def _mean_period_ns(times_ns: Sequence[int], values: Sequence[float], longest_ns: float) -> int | None:
    """Time per change of a counter that moves about as fast as it is polled; polls that came late are excluded."""
    span = moved = 0
    for i in range(1, len(values)):
        if times_ns[i] - times_ns[i - 1] <= longest_ns:
            span += times_ns[i] - times_ns[i - 1]
            moved += values[i] != values[i - 1]
    return span // moved if moved else None


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
    """Averaging window of a sensor: width of its block, or time constant of its running average, ns (None where
    none).
    """

    kind: str
    window_ns: int | None
    lag_ns: int | None = field(default=None, compare=False)  # of the readings behind the load, beside the window


@dataclass(frozen=True)
class _Fit:
    error: float
    width_ns: float
    lag_ns: float


def one_reading_per_refresh(times_ns: Sequence[int], values: Sequence[float], refresh_ns: int | None) -> Conversions:
    """One entry a refresh: the changes, and between them the refreshes that showed the same number again."""
    if refresh_ns is None:
        return _thin_conversions(list(zip(times_ns, values, strict=True)))
    conversions: Conversions = []
    for t_ns, value in value_changes(times_ns, values):
        if conversions:
            held_ns, last = conversions[-1]
            again = range(1, round((t_ns - held_ns) / refresh_ns))
            conversions += [(held_ns + n * refresh_ns, last) for n in again]
        conversions.append((t_ns, value))
    return _thin_conversions(conversions)


def filter_of(conversions: Conversions, load: Load, refresh_ns: int | None = None) -> Filter | None:
    """The filter whose response to the load fits best; None where the load did not move the channel.

    A running average is taken once a refresh: one with a shorter constant would hold nothing of the value before.
    """
    if len(conversions) < 12 or not load or len({value for _, value in conversions}) < 2:
        return None
    fits = {
        NONE: min((_fit_response(conversions, load, load_share, 1e3, lag) for lag in _LAGS_NS), key=_fit_error),
        BLOCK: _grid_search(conversions, load, load_share),
        RUNNING: _grid_search(conversions, load, _running_average),
    }
    mean = sum(value for _, value in conversions) / len(conversions)
    variance = sum((value - mean) ** 2 for _, value in conversions)
    runs = fits[RUNNING].width_ns >= (refresh_ns or 0)
    kind = RUNNING if runs and fits[RUNNING].error < fits[BLOCK].error else BLOCK
    if fits[kind].error > (1 - _EXPLAINED) * variance:
        return None
    if fits[NONE].error <= _WORTH * fits[kind].error + 1e-9 * variance:
        return Filter(NONE, None, round(fits[NONE].lag_ns))
    return Filter(kind, round(fits[kind].width_ns), round(fits[kind].lag_ns))


Response = Callable[[Sequence[float], Load, float], list[float]]


def load_share(at_ns: Sequence[float], load: Load, width_ns: float) -> list[float]:
    """Share of the load in the block of this width that ends at each time."""
    starts = [on for on, _ in load]
    before = [0.0]
    for on, off in load:
        before.append(before[-1] + off - on)

    def busy_ns(t_ns: float) -> float:
        passed = bisect.bisect_right(starts, t_ns)
        return 0.0 if passed == 0 else before[passed - 1] + min(t_ns, load[passed - 1][1]) - load[passed - 1][0]

    return [(busy_ns(t) - busy_ns(t - width_ns)) / width_ns for t in at_ns]


def _running_average(at_ns: Sequence[float], load: Load, constant_ns: float) -> list[float]:
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


def _grid_search(conversions: Conversions, load: Load, response: Response) -> _Fit:
    """A coarse grid over width and lag, then a pattern search around its best points: the valley is narrow."""
    grid = [_fit_response(conversions, load, response, width, lag) for width in _WIDTHS_NS for lag in _LAGS_NS]
    return min(
        (_search_near(conversions, load, response, start) for start in sorted(grid, key=_fit_error)[:_STARTS]),
        key=_fit_error,
    )


def _search_near(conversions: Conversions, load: Load, response: Response, best: _Fit) -> _Fit:
    """The least error near a point; the steps get shorter when none of the eight around it is better."""
    factor, shift_ns = 1.3, 8e6
    while factor > 1.01:
        around = [(by, add) for by in (factor, 1.0, 1 / factor) for add in (-shift_ns, 0.0, shift_ns)]
        tried = [
            _fit_response(conversions, load, response, best.width_ns * by, max(best.lag_ns + add, -5e6))
            for by, add in around
        ]
        nearer = min(tried, key=_fit_error)
        if nearer.error < best.error:
            best = nearer
        else:
            factor, shift_ns = math.sqrt(factor), shift_ns / 2
    return best


def _fit_response(conversions: Conversions, load: Load, response: Response, width_ns: float, lag_ns: float) -> _Fit:
    """Least squares of value = idle + more x response; the squared error that it leaves."""
    x = response([t - lag_ns for t, _ in conversions], load, width_ns)
    y = [value for _, value in conversions]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - mean_x) ** 2 for a in x)
    shared = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    total = sum((b - mean_y) ** 2 for b in y)
    return _Fit(total - shared * shared / spread if spread > 0 else total, width_ns, lag_ns)


def _fit_error(fit: _Fit) -> float:
    return fit.error


def _thin_conversions(conversions: Conversions) -> Conversions:
    return conversions[:: max(1, -(-len(conversions) // _MOST_POINTS))]
