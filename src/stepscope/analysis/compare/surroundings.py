"""Differences that lie around a training, not in it: load, quota, clock and memory of two sides; before layers.

Of a share of the time in which a step stood still (it waited for a core, or for memory) counts what its growth costs:
the step would have been shorter by that had it stood still for the share of the first side. A step of more work on a
machine that is as busy as before also waits longer; that is no difference of the machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from stepscope.analysis.compare.run_groups import pooled_step_time
from stepscope.analysis.device.occupancy import NOTHING, Occupancy, occupancy
from stepscope.analysis.estimate import Estimate
from stepscope.analysis.run import Run
from stepscope.units import duration, number, percent

EXPLAINS = 0.5  # of the difference: from there on no part of the model is named
_EVIDENT = 0.2  # of the difference: what explains less is not worth a sentence
_CORES = 0.3  # of background load, more or less
_LEAST_MOVING = 0.01  # of the time, so that a step that stood still throughout divides by something


@dataclass(frozen=True)
class Surrounding:
    """A share of a step's (or a sample's) difference, ns, that the machine explains, [low, high] at 95 %.

    `evidence` is a sentence.
    """

    name: str
    difference: float
    low: float
    high: float
    share: float  # of the difference in step time
    evidence: str


Ends = tuple[float, float]  # from a value down and up to the ends of its CI: of few disturbed steps it is lopsided
Side = Sequence[tuple[Occupancy, float, Ends]]  # of each run: what was sampled, length of a step or sample, ns


def surroundings(first: Sequence[Run], other: Sequence[Run], per: str = "step") -> tuple[Surrounding, ...]:
    """Return what of the difference in step time lies in the machine, the largest first; what may be 0 is not in it.

    per: "step" or "sample".
    """
    sides = [[(occupancy(run), *_length(run, per)) for run in side] for side in (first, other)]
    whole = _mean([length for _, length, _ in sides[1]]) - _mean([length for _, length, _ in sides[0]])
    if not whole:
        return ()
    differences = (
        *_load_differences(sides[0], sides[1], whole, per),
        *_clock_differences(sides[0], sides[1], whole),
        *_memory_differences(sides[0], sides[1], whole, per),
    )
    evident = [part for part in differences if part.share >= _EVIDENT and part.low * part.high > 0]
    return tuple(sorted(evident, key=lambda part: -part.share))


def _length(run: Run, per: str) -> tuple[float, Ends]:
    length = pooled_step_time([run], per == "sample")
    if length.low is None or length.high is None:
        return length.value, (0.0, 0.0)
    return length.value, (length.value - length.low, length.high - length.value)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@dataclass(frozen=True)
class _StalledTime:
    """The share of the time in which the steps of a side stood still, with the half of its CI; length of a step, ns."""

    share: float
    half: float
    length: float
    ends: Ends

    @classmethod
    def of(cls, side: Side, share: Callable[[Occupancy], Estimate | None]) -> _StalledTime | None:
        """The mean over the runs of a side; None where one does not tell."""
        shares = [part for usage, _, _ in side if (part := share(usage)) is not None]
        if len(shares) < len(side):
            return None
        halves = [0.0 if part.low is None or part.high is None else (part.high - part.low) / 2 for part in shares]
        down, up = (math.hypot(*(ends[which] for _, _, ends in side)) / len(side) for which in (0, 1))
        length = _mean([length for _, length, _ in side])
        return cls(_mean([part.value for part in shares]), math.hypot(*halves) / len(side), length, (down, up))

    @property
    def moving(self) -> float:
        return max(1 - self.share, _LEAST_MOVING)


def _stall_difference(
    name: str, first: _StalledTime, other: _StalledTime, whole: float, per: str, sentence: str
) -> Surrounding:
    """What the step of the other side would be shorter by, had it stood still for the share of the first."""
    growth = other.moving / first.moving
    difference = other.length * (1 - growth)
    doubt = other.length * math.hypot(other.half / first.moving, growth * first.half / first.moving)
    low, high = (math.hypot((1 - growth) * end, doubt) for end in other.ends)
    evidence = (
        f"{sentence} {duration(other.share * other.length)} of a {per} (A: {duration(first.share * first.length)})"
    )
    return Surrounding(name, difference, difference - low, difference + high, difference / whole, evidence)


def _load_differences(first: Side, other: Side, whole: float, per: str) -> Iterator[Surrounding]:
    before, after = (_StalledTime.of(side, lambda usage: usage.starved) for side in (first, other))
    if before is None or after is None:
        return
    part = _stall_difference("load", before, after, whole, per, "the training was ready to run and had no core for")
    quotas = [[usage.throttled_periods for usage, _, _ in side] for side in (first, other)]
    throttled = [max((share.value for share in side if share is not None), default=0.0) for side in quotas]
    if abs(throttled[1] - throttled[0]) >= 0.1:
        more = f"the CPU quota throttled {percent(throttled[1], 0)} of its periods (A: {percent(throttled[0], 0)})"
        yield Surrounding("CPU quota", part.difference, part.low, part.high, part.share, f"{part.evidence}; {more}")
        return
    cores = [_background_cores(side) for side in (first, other)]
    if cores[part.difference > 0] < _CORES:  # what took longer waited for threads of its own
        return
    more = f"background load was {number(cores[1], 2)} cores (A: {number(cores[0], 2)})"
    yield Surrounding("load", part.difference, part.low, part.high, part.share, f"{part.evidence}; {more}")


def load_without_waits(first: Sequence[Run], other: Sequence[Run]) -> str:
    """Return that the slower side had more background load where waits for a core were not sampled; else "".

    A part of a sentence.
    """
    sides = [[occupancy(run) for run in side] for side in (first, other)]
    if all(usage.starved is not None for side in sides for usage in side):
        return ""
    loads = [[usage.background_cores.value for usage in side if usage.background_cores is not None] for side in sides]
    if any(len(load) < len(side) for load, side in zip(loads, sides, strict=True)):
        return ""
    before, after = map(_mean, loads)
    slower = pooled_step_time(other).value > pooled_step_time(first).value
    if (after - before if slower else before - after) < _CORES:
        return ""
    load = f"background load was {number(after, 2)} cores (A: {number(before, 2)})"
    return f"{load}, and how long the training waited for a core was not sampled"


def _background_cores(side: Side) -> float:
    """Cores that others used; where that is not known, the share of the time in which something waited for a core."""
    waited = [usage.pressure.get("cpu:some", NOTHING) for usage, _, _ in side]
    return _mean([(usage.background_cores or some).value for (usage, _, _), some in zip(side, waited, strict=True)])


def _clock_differences(first: Side, other: Side, whole: float) -> Iterator[Surrounding]:
    """The time on the core grows as the clock falls, but not while an accelerator sets the pace."""
    clocks = [[usage.clock.share for usage, _, _ in side if usage.clock is not None] for side in (first, other)]
    if any(len(clock) < len(side) for clock, side in zip(clocks, (first, other), strict=True)):
        return
    before, after = (_mean([share.value for share in clock]) for clock in clocks)
    ran = _mean(
        [length * min(1.0 if usage.runs is None else usage.runs.value, usage.host_alone) for usage, length, _ in other]
    )
    spread = [_mean([((share.high or share.value) - (share.low or share.value)) / 2 for share in clock])
              for clock in clocks]  # fmt: skip
    if not before or not after:
        return
    lost = ran * (1 - after / before)
    half = ran * math.hypot(spread[1] / before, spread[0] * after / before**2)
    text = f"the clock was {percent(after, 0)} of its maximum (A: {percent(before, 0)})"
    if abs(1 - after / before) >= 0.05:
        yield Surrounding("clock", lost, lost - half, lost + half, lost / whole, text)


def _memory_differences(first: Side, other: Side, whole: float, per: str) -> Iterator[Surrounding]:
    stalled = [_StalledTime.of(side, lambda usage: usage.pressure.get("memory:some")) for side in (first, other)]
    faults = [_mean([usage.major_faults.value if usage.major_faults else 0.0 for usage, _, _ in side])
              for side in (first, other)]  # fmt: skip
    if stalled[0] is None or stalled[1] is None or abs(faults[1] - faults[0]) < 10:
        return
    part = _stall_difference("memory", stalled[0], stalled[1], whole, per, "the machine stalled for memory for")
    more = f"{number(faults[1])} page faults/s read a disk (A: {number(faults[0])})"
    yield Surrounding("memory", part.difference, part.low, part.high, part.share, f"{part.evidence}; {more}")
