"""The one clock: CLOCK_MONOTONIC nanoseconds, with anchors to wall time and boot time.

A clock is a plain function, so that tests and simulations pass their own. Clocks are bound when this is imported, and
where they can be not as the functions of `time`: a training may put others in the place of those, also here.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import TypedDict

Clock = Callable[[], int]
PERIOD_NS = 10_000_000  # of the sampler, where no other is asked for
monotonic_ns: Clock = time.monotonic_ns
_unix_ns: Clock = time.time_ns
_boottime_ns: Clock | None = None
if sys.platform == "linux":
    monotonic_ns = functools.partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC)
    _unix_ns = functools.partial(time.clock_gettime_ns, time.CLOCK_REALTIME)
    _boottime_ns = functools.partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)


class Anchors(TypedDict):
    """The same instant on three clocks, ns; `boottime_ns` is null where the system has none."""

    monotonic_ns: int
    unix_ns: int
    boottime_ns: int | None


def read_clocks() -> Anchors:
    """The three clocks read together; boottime - monotonic is the time spent suspended."""
    return {
        "monotonic_ns": monotonic_ns(),
        "unix_ns": _unix_ns(),
        "boottime_ns": None if _boottime_ns is None else _boottime_ns(),
    }


def unix_minus_monotonic_ns() -> int:
    """Offset between wall and monotonic time, ns: the tightest of a few bracketed readings."""
    return _offset_to_monotonic_ns(_unix_ns)


def suspended_ns() -> int:
    """Return how long the machine has slept since it was started, ns, as tightly; 0 where the system does not tell."""
    return 0 if _boottime_ns is None else _offset_to_monotonic_ns(_boottime_ns)


def _offset_to_monotonic_ns(clock: Clock, rounds: int = 5) -> int:
    best_width, best = None, 0
    for _ in range(rounds):
        before = monotonic_ns()
        reading = clock()
        after = monotonic_ns()
        if best_width is None or after - before < best_width:
            best_width, best = after - before, reading - (before + after) // 2
    return best
