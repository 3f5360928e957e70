"""The one clock: CLOCK_MONOTONIC nanoseconds, with anchors to wall time and boot time.

A clock is a plain function, so that tests and simulations pass their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypedDict

Clock = Callable[[], int]
monotonic_ns: Clock = time.monotonic_ns


class Anchors(TypedDict):
    """The same instant on three clocks, ns; `boottime_ns` is null where the system has none."""

    monotonic_ns: int
    unix_ns: int
    boottime_ns: int | None


def anchors() -> Anchors:
    """The three clocks read together; boottime - monotonic is the time spent suspended."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return {
        "monotonic_ns": time.monotonic_ns(),
        "unix_ns": time.time_ns(),
        "boottime_ns": None if boottime is None else time.clock_gettime_ns(boottime),
    }


def unix_minus_monotonic_ns(rounds: int = 5) -> int:
    """Offset between wall and monotonic time, ns: the tightest of a few bracketed readings."""
    best_width, best = None, 0
    for _ in range(rounds):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        if best_width is None or after - before < best_width:
            best_width, best = after - before, wall - (before + after) // 2
    return best
