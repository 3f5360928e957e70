"""Deadlines: a mean rate that is exact, a spread that covers the period, and what is passed over."""

from __future__ import annotations

import itertools

from stepscope.record.sampler.stream import Deadlines

PERIOD_NS = 10_000_000


def walk(deadlines: Deadlines, count: int) -> list[int]:
    """The deadlines of a loop that is always in time."""
    times = []
    for _ in range(count):
        times.append(deadlines.at_ns)
        deadlines.advance(deadlines.at_ns)
    return times


def test_without_dither_the_deadlines_are_a_grid() -> None:
    assert walk(Deadlines(5, PERIOD_NS, dither=False), 4) == [5, 5 + PERIOD_NS, 5 + 2 * PERIOD_NS, 5 + 3 * PERIOD_NS]


def test_dither_stays_within_half_a_period_of_the_grid_and_keeps_the_mean_rate() -> None:
    times = walk(Deadlines(0, PERIOD_NS, dither=True), 10_001)
    offsets = [t - PERIOD_NS // 2 - n * PERIOD_NS for n, t in enumerate(times)]
    assert all(-PERIOD_NS // 2 - 1 <= offset <= PERIOD_NS // 2 for offset in offsets)
    assert abs((times[-1] - times[0]) / 10_000 - PERIOD_NS) < PERIOD_NS / 10_000
    assert min(after - before for before, after in itertools.pairwise(times)) > 0.6 * PERIOD_NS


def test_dither_covers_the_phases_of_a_step_that_lasts_as_long_as_the_period() -> None:
    for step_ns in (PERIOD_NS, 2 * PERIOD_NS, PERIOD_NS // 3, int(1.618 * PERIOD_NS)):
        phases = [t % step_ns / step_ns for t in walk(Deadlines(0, PERIOD_NS, dither=True), 100)]
        tenths = [sum(int(10 * phase) == tenth for phase in phases) for tenth in range(10)]
        assert min(tenths) >= 3, step_ns


def test_deadlines_that_lie_a_period_back_are_passed_over_and_counted() -> None:
    for dither in (False, True):
        deadlines = Deadlines(0, PERIOD_NS, dither)
        assert deadlines.advance(int(7.7 * PERIOD_NS)) in (6, 7)
        assert abs(deadlines.at_ns - 7.7 * PERIOD_NS) <= 1.5 * PERIOD_NS
