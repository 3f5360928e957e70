"""What the readings of a sensor say about it: refresh period and step size; pure functions of times and values."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from decimal import Decimal

FEWEST_CHANGES = 4
_DIGITS = 13  # of a reading: what is beyond is the noise of float64 arithmetic
_EVERY_READ = 0.9  # more than this share of reads that change: the refresh is finer than the polling
_RAPL_UNITS_J = [2.0**-power for power in range(10, 21)]  # the energy unit of a processor is 2^-n J (Intel SDM 15.10)


def changes(times_ns: Sequence[int], values: Sequence[float]) -> list[tuple[int, float]]:
    """Every change of value: the middle between the last read of the old and the first of the new, and the new."""
    moved = [i for i in range(1, len(values)) if values[i] != values[i - 1]]
    return [((times_ns[i - 1] + times_ns[i]) // 2, values[i]) for i in moved]


def polled_every_ns(times_ns: Sequence[int]) -> int | None:
    """Median time between reads, ns: nothing finer than a few of them can be seen."""
    return int(statistics.median(_differences(times_ns))) if len(times_ns) > 1 else None


def refresh_period_ns(times_ns: Sequence[int], values: Sequence[float], counter: bool) -> int | None:
    """How often the source refreshes, by the lattice on which its changes fall; None where that is not known.

    A gauge may show the same number twice, so that the time between changes is a multiple of the period.
    """
    seen = changes(times_ns, values)
    poll_ns = polled_every_ns(times_ns)
    if len(seen) < FEWEST_CHANGES or poll_ns is None or len(seen) > _EVERY_READ * (len(values) - 1):
        return None
    between = _differences([t for t, _ in seen])
    period = lattice_constant(between)
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
    candidates = {_refined(length / part, ordered) for length in quantiles for part in (1, 2, 3)}
    scored = [(_score(candidate, ordered), candidate) for candidate in candidates]
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
    known = [length / float(unit) for length in _RAPL_UNITS_J] if counter_of_joules else []
    longer = _rounded_quantum(differences, divisor, known)
    return float(divisor * unit) if longer is None else longer * float(unit)


def _rounded_quantum(differences: Sequence[int], divisor: int, known: Sequence[float]) -> float | None:
    """A quantum of ten divisors or more of which every difference is a multiple, within the rounding of both ends."""
    if len(set(differences)) < 4 or len(differences) < 8:
        return None
    shortest = sorted(differences)[len(differences) // 10]
    candidates = [_refined(shortest / part, differences) for part in (1, 2, 3)] + list(known)
    fitting = [
        length
        for length in candidates
        if length >= 10 * divisor
        and all(round(d / length) >= 1 and abs(d - round(d / length) * length) <= 1.01 * divisor for d in differences)
    ]
    return max(fitting, default=None)


def _differences(numbers: Sequence[int]) -> list[int]:
    return [after - before for before, after in itertools.pairwise(numbers)]


def _refined(length: float, differences: Sequence[float]) -> float:
    """Least squares of difference = whole number x length, first with the short ones, whose numbers are certain."""
    for longest in (2.5, 6.5, 20.5):
        near = [d for d in differences if d <= longest * length]
        counts = [max(1, round(d / length)) for d in near]
        if near:
            length = sum(d * n for d, n in zip(near, counts, strict=True)) / sum(n * n for n in counts)
    return length


def _score(length: float, differences: Sequence[float]) -> float:
    near = [d / length for d in differences if d <= 6.5 * length]
    if len(near) < max(3, len(differences) // 2):
        return -1.0
    return statistics.fmean(math.cos(2 * math.pi * x) if x >= 0.5 else -1.0 for x in near)


def _mean_period_ns(times_ns: Sequence[int], values: Sequence[float], longest_ns: float) -> int | None:
    """Time per change of a counter that moves about as fast as it is polled; polls that came late are left out."""
    span = moved = 0
    for i in range(1, len(values)):
        if times_ns[i] - times_ns[i - 1] <= longest_ns:
            span += times_ns[i] - times_ns[i - 1]
            moved += values[i] != values[i - 1]
    return span // moved if moved else None
