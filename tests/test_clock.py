"""The one clock: monotonic nanoseconds and their anchors to other clocks."""

from __future__ import annotations

import time

import pytest

from stepscope import clock


def test_the_clock_never_goes_back() -> None:
    readings = [clock.monotonic_ns() for _ in range(1000)]
    assert readings == sorted(readings)


def test_clocks_that_a_training_puts_in_the_place_of_pythons_are_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    before = clock.read_clocks()
    for name in ("monotonic_ns", "time_ns", "clock_gettime_ns"):
        monkeypatch.setattr(time, name, lambda *_: 0)
    after = clock.read_clocks()
    assert after["monotonic_ns"] > before["monotonic_ns"] > 0
    assert after["unix_ns"] > 0


def test_the_anchors_are_one_instant_on_each_clock() -> None:
    before = (time.monotonic_ns(), time.time_ns())
    read = clock.read_clocks()
    assert before[0] <= read["monotonic_ns"] <= time.monotonic_ns()
    assert before[1] <= read["unix_ns"] <= time.time_ns()


def test_a_system_without_boot_time_has_a_null_and_not_a_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_boottime_ns", None)
    assert clock.read_clocks()["boottime_ns"] is None


def test_the_offset_between_the_clocks_comes_from_the_tightest_bracket(monkeypatch: pytest.MonkeyPatch) -> None:
    monotonic = iter([0, 1000, 2000, 2010, 3000, 3500, 4000, 4020, 5000, 5500])
    wall = iter([10_000_700, 10_002_005, 10_003_400, 10_004_015, 10_005_100])
    monkeypatch.setattr(clock, "monotonic_ns", lambda: next(monotonic))
    monkeypatch.setattr(clock, "_unix_ns", lambda: next(wall))
    assert clock.unix_minus_monotonic_ns() == 10_000_000
