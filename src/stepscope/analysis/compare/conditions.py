"""Differences that lie around a training, not in it: load, quota, clock and memory of two sides; before layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.analysis.bottleneck import starved_share
from stepscope.analysis.compare.sides import timed_length
from stepscope.analysis.device.occupancy import Occupancy, Share, occupancy
from stepscope.analysis.run import Run
from stepscope.units import duration, number, percent

EXPLAINS = 0.5  # of the difference: from there on no part of the model is named
_TELLING = 0.2  # of the difference: what explains less is not worth a sentence
_CORES = 0.3  # of background load, more or less
_DRAWS = 200


@dataclass(frozen=True)
class Surrounding:
    """A share of a step's difference, ns, that the machine explains, [low, high] at 95 %; `evidence` is a sentence."""

    name: str
    difference: float
    low: float
    high: float
    share: float  # of the difference in step time
    evidence: str


def surroundings(first: Sequence[Run], other: Sequence[Run]) -> tuple[Surrounding, ...]:
    """Return what of the difference in step time lies in the machine, the largest first; what may be 0 is not in it."""
    sides = [[(occupancy(run), *_length(run)) for run in side] for side in (first, other)]
    whole = _mean([length for _, length, _ in sides[1]]) - _mean([length for _, length, _ in sides[0]])
    if not whole:
        return ()
    found = [part for make in (_load, _clock, _memory) for part in make(sides[0], sides[1], whole)]
    evident = [part for part in found if part.share >= _TELLING and part.low * part.high > 0]
    return tuple(sorted(evident, key=lambda part: -part.share))


Ends = tuple[float, float]  # from a value down and up to the ends of its CI: of few disturbed steps it is lopsided
Side = Sequence[tuple[Occupancy, float, Ends]]  # of each run: what was sampled, length of a step, ns


def _length(run: Run) -> tuple[float, Ends]:
    length, draws = timed_length(run, False, _DRAWS)
    if draws is None:
        return length, (0.0, 0.0)
    low, high = (float(end) for end in np.quantile(draws, [0.025, 0.975]))
    return length, (max(length - low, 0.0), max(high - length, 0.0))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _lost(side: Side, share: Callable[[Occupancy], Share | None]) -> tuple[float, Ends] | None:
    """Time of a step that goes to a share of it, and its interval, ns; None where a run does not tell."""
    found = []
    for seen, length, ends in side:
        part = share(seen)
        if part is None:
            return None
        spread = 0.0 if part.low is None or part.high is None else (part.high - part.low) / 2
        down, up = (math.hypot(part.value * end, spread * length) for end in ends)
        found.append((part.value * length, (down, up)))
    down, up = (math.sqrt(sum(ends[which] ** 2 for _, ends in found)) / len(found) for which in (0, 1))
    return _mean([ns for ns, _ in found]), (down, up)


def _part(name: str, before: tuple[float, Ends], after: tuple[float, Ends], whole: float, said: str) -> Surrounding:
    difference = after[0] - before[0]
    low, high = difference - math.hypot(after[1][0], before[1][1]), difference + math.hypot(after[1][1], before[1][0])
    evidence = f"{said} {duration(after[0])} of a step (A: {duration(before[0])})"
    return Surrounding(name, difference, low, high, difference / whole, evidence)


def _load(first: Side, other: Side, whole: float) -> Iterator[Surrounding]:
    before, after = (_lost(side, starved_share) for side in (first, other))
    if before is None or after is None:
        return
    part = _part("load", before, after, whole, "the training was ready to run and had no core for")
    quotas = [[seen.throttled_periods for seen, _, _ in side] for side in (first, other)]
    held = [max((share.value for share in side if share is not None), default=0.0) for side in quotas]
    if abs(held[1] - held[0]) >= 0.1:
        more = f"the CPU quota throttled {percent(held[1], 0)} of its periods (A: {percent(held[0], 0)})"
        yield Surrounding("CPU quota", part.difference, part.low, part.high, part.share, f"{part.evidence}; {more}")
        return
    cores = [_background(side) for side in (first, other)]
    pressed = [_mean([seen.pressure["cpu:some"].value if "cpu:some" in seen.pressure else 0.0 for seen, _, _ in side])
               for side in (first, other)]  # fmt: skip
    if abs(cores[1] - cores[0]) < _CORES and abs(pressed[1] - pressed[0]) < 0.1:
        return
    more = f"background load was {number(cores[1], 2)} cores (A: {number(cores[0], 2)})"
    yield Surrounding("load", part.difference, part.low, part.high, part.share, f"{part.evidence}; {more}")


def _background(side: Side) -> float:
    return _mean([0.0 if seen.background_cores is None else seen.background_cores.value for seen, _, _ in side])


def _clock(first: Side, other: Side, whole: float) -> Iterator[Surrounding]:
    """The time on the core grows as the clock falls."""
    clocks = [[seen.clock.share for seen, _, _ in side if seen.clock is not None] for side in (first, other)]
    if any(len(known) < len(side) for known, side in zip(clocks, (first, other), strict=True)):
        return
    before, after = (_mean([share.value for share in known]) for known in clocks)
    ran = _mean([length * (1.0 if seen.runs is None else seen.runs.value) for seen, length, _ in other])
    spread = [_mean([((share.high or share.value) - (share.low or share.value)) / 2 for share in known])
              for known in clocks]  # fmt: skip
    if not before or not after:
        return
    lost = ran * (1 - after / before)
    half = ran * math.hypot(spread[1] / before, spread[0] * after / before**2)
    said = f"the clock was {percent(after, 0)} of its maximum (A: {percent(before, 0)})"
    if abs(1 - after / before) >= 0.05:
        yield Surrounding("clock", lost, lost - half, lost + half, lost / whole, said)


def _memory(first: Side, other: Side, whole: float) -> Iterator[Surrounding]:
    stalled = [_lost(side, lambda seen: seen.pressure.get("memory:some")) for side in (first, other)]
    faults = [_mean([seen.major_faults.value if seen.major_faults else 0.0 for seen, _, _ in side])
              for side in (first, other)]  # fmt: skip
    if stalled[0] is None or stalled[1] is None or abs(faults[1] - faults[0]) < 10:
        return
    part = _part("memory", stalled[0], stalled[1], whole, "the machine stalled for memory for")
    more = f"{number(faults[1])} page faults/s read a disk (A: {number(faults[0])})"
    yield Surrounding("memory", part.difference, part.low, part.high, part.share, f"{part.evidence}; {more}")
