"""Counter algebra: exact over wraps, and not one joule invented under any fault."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepscope.analysis.channels import (
    CounterLimits,
    Growth,
    Series,
    counter_growth,
    growth_windows,
    spans_without_growth,
    touches_gap,
    turn_spans_into_gaps,
)

RANGE_J = 262_143.328850  # a Core processor's package
RAPL = CounterLimits(RANGE_J, most_per_s=1000.0, refresh_ns=1e6, step_size=6.1e-5)
NVML = CounterLimits(None, most_per_s=1000.0, refresh_ns=1e8, step_size=1e-3)
T_NS = np.arange(0, 60_000_000_001, 10_000_000, dtype=np.float64)
TRUTH_J = 15.0 * T_NS / 1e9
NAN = float("nan")


def of(values: Any, limits: CounterLimits = RAPL, t_ns: Any = T_NS) -> Growth:
    return counter_growth(t_ns, np.asarray(values, dtype=np.float64), limits)


@pytest.mark.parametrize("before_wrap_j", [0.0, 1e-6, 0.07, 300.0, 899.99])
def test_a_minute_with_a_wrap_is_exact_to_rounding(before_wrap_j: float) -> None:
    growth = of((TRUTH_J + RANGE_J - before_wrap_j) % RANGE_J)
    assert growth.known_growth[-1] == pytest.approx(900.0, rel=1e-9)
    assert growth.covered_ns[-1] == pytest.approx(60e9)
    assert not growth.gap.any()


def test_many_wraps_are_exact_too() -> None:
    small = CounterLimits(50.0, most_per_s=1000.0, refresh_ns=1e6)
    growth = of((TRUTH_J + 12.3) % 50.0, small)
    assert growth.wraps == 18
    assert growth.known_growth[-1] == pytest.approx(900.0)


def test_without_a_known_range_a_fall_is_a_reset_and_never_a_wrap() -> None:
    values = TRUTH_J + 1000.0
    values[3000:] -= values[3000] - 0.02
    growth = of(values, NVML)
    assert growth.known_growth[-1] == pytest.approx(900.0 - 0.15)
    assert growth.wraps == 0
    assert len(growth.gaps_ns) == 1


def test_a_fall_that_would_mean_an_impossible_power_is_a_reset() -> None:
    values = TRUTH_J + 1000.0
    values[3000:] -= values[3000] - 0.02
    growth = of(values, RAPL)
    assert growth.known_growth[-1] == pytest.approx(900.0 - 0.15)
    assert growth.refused == 1


def test_readings_so_far_apart_that_it_may_have_wrapped_twice_are_a_gap() -> None:
    limits = CounterLimits(50.0, most_per_s=100.0)
    growth = of([10.0, 12.0, 14.0, 16.0], limits, np.array([0, 0.1e9, 5e9, 5.1e9]))
    assert growth.gap.tolist() == [False, True, False]
    assert growth.known_growth[-1] == pytest.approx(4.0)


FAULTS = {
    "one read that failed": {2000: NAN},
    "a read that failed and was turned into 0": {2000: 0.0},
    "a second of zeros": dict.fromkeys(range(2000, 2100), 0.0),
    "a huge number": {2000: 1e30},
    "infinity": {2000: float("inf")},
    "a negative number": {2000: -3.0},
    "beyond the range": {2000: RANGE_J * 1.5},
    "a plausible spike": {2000: TRUTH_J[2000] + 1000.0 + 5.0},
    "a long plausible spike": {place: TRUTH_J[place] + 1000.0 + 5.0 for place in range(2000, 2050)},
    "a dip": {place: TRUTH_J[place] + 1000.0 - 20.0 for place in range(2000, 2050)},
    "every tenth read failed": dict.fromkeys(range(5, 6000, 10), NAN),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("limits", [RAPL, NVML], ids=["rapl", "nvml"])
def test_under_a_fault_no_joule_is_invented_and_the_gap_is_known(
    fault: dict[int, float], limits: CounterLimits
) -> None:
    values = TRUTH_J + 1000.0
    values[list(fault)] = list(fault.values())
    growth = of(values, limits)
    assert growth.known_growth[-1] <= 900.0 + 1e-6
    dark_s = 60.0 - growth.covered_ns[-1] / 1e9
    assert 0 < dark_s < 15
    assert growth.known_growth[-1] == pytest.approx(900.0 - 15.0 * dark_s, abs=6.0)
    assert growth.growth_in_gaps[-1] + growth.known_growth[-1] <= 900.0 + 1e-6


def test_growth_over_a_failed_read_is_known_but_not_counted() -> None:
    values = TRUTH_J + 1000.0
    values[2000] = NAN
    growth = of(values)
    assert growth.growth_in_gaps[-1] == pytest.approx(0.3)
    assert growth.gaps_ns.tolist() == [[T_NS[1999], T_NS[2001]]]


def test_a_slow_counter_that_publishes_a_tenth_of_a_second_at_once_is_not_too_fast() -> None:
    values = np.floor(400.0 * T_NS / 1e9 / 40.0) * 40.0  # 400 W in steps of 100 ms
    growth = of(values + 7.0, NVML)
    assert growth.known_growth[-1] == pytest.approx(24_000.0)
    assert not growth.gap.any()


def test_what_a_stalled_counter_makes_good_in_one_reading_is_counted() -> None:
    values = TRUTH_J + 1000.0
    values[2000:2500] = values[2000]
    assert of(values).known_growth[-1] == pytest.approx(900.0)


def test_a_counter_that_stands_still_is_seen() -> None:
    values = TRUTH_J + 1000.0
    values[2000:2500] = values[2000]
    assert spans_without_growth(of(values), 2e9).tolist() == [[20e9, 25e9]]
    values[5000:] = values[5000]
    assert spans_without_growth(of(values), 2e9).tolist() == [[20e9, 25e9], [50e9, 60e9]]
    assert not len(spans_without_growth(of(TRUTH_J + 1.0), 2e9))


def test_a_cut_makes_all_that_it_touches_a_gap() -> None:
    growth = turn_spans_into_gaps(of(TRUTH_J + 1.0), np.array([[10.005e9, 10.015e9], [59.0e9, 70.0e9]]))
    assert growth.gaps_ns.tolist() == [[10.00e9, 10.02e9], [59.0e9, 60.0e9]]
    assert growth.known_growth[-1] == pytest.approx(900.0 - 15.0 * 1.02)
    assert growth.growth_in_gaps[-1] == 0
    assert turn_spans_into_gaps(growth, np.empty((0, 2))) is growth


@pytest.mark.parametrize("values", [[], [5.0], [NAN, NAN], [NAN, 3.0], [0.0, 0.0, 0.0]])
def test_few_or_no_readings_are_no_growth(values: list[float]) -> None:
    t_ns = np.arange(len(values), dtype=np.float64) * 1e7
    growth = counter_growth(t_ns, np.array(values, dtype=np.float64), RAPL)
    assert growth.known_growth[-1] == 0
    assert growth.at(growth.known_growth, np.array([0.0])).tolist() == [0.0]


def test_stretches_that_a_gap_touches_have_no_growth_and_the_others_theirs() -> None:
    values = TRUTH_J + 1000.0
    values[2000] = NAN
    begins = np.array([10e9, 19.5e9, 59e9])
    spent = of(values).between(begins, begins + 1e9)
    assert spent[0] == pytest.approx(15.0)
    assert np.isnan(spent[1])
    assert spent[2] == pytest.approx(15.0)
    assert np.isnan(of(values).between(np.array([59.5e9]), np.array([60.5e9])))[0]


garbage = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(0, RANGE_J),
    st.just(0.0),
    st.just(NAN),
)


@example([float("inf")], CounterLimits())
@settings(max_examples=60, deadline=None)
@given(st.lists(garbage, max_size=40), st.sampled_from([RAPL, NVML, CounterLimits(), CounterLimits(RANGE_J)]))
def test_no_garbage_makes_growth_that_the_source_cannot_deliver(values: list[float], limits: CounterLimits) -> None:
    t_ns = np.arange(len(values), dtype=np.float64) * 1e7
    growth = counter_growth(t_ns, np.array(values, dtype=np.float64), limits)
    lasted_s = (len(values) * 1e7 + limits.refresh_ns) / 1e9
    assert np.all(np.diff(growth.known_growth) >= 0)
    assert np.isfinite(growth.known_growth).all()
    assert growth.known_growth[-1] <= limits.fastest * (lasted_s + limits.refresh_ns / 1e9 * len(values)) + len(values)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5999), st.sampled_from([NAN, 0.0, -1.0, 1e30, float("inf")])), max_size=30),
    st.floats(0, RANGE_J),
)
def test_failed_reads_anywhere_and_a_wrap_anywhere_invent_nothing(
    faults: list[tuple[int, float]], start: float
) -> None:
    values = (TRUTH_J + start) % RANGE_J
    for place, value in faults:
        values[place] = value
    growth = of(values)
    assert growth.known_growth[-1] <= 900.0 + 1e-6
    assert growth.known_growth[-1] >= 900.0 - 15.0 * (60.0 - growth.covered_ns[-1] / 1e9) - 1e-6


def test_the_growth_of_a_training_that_lies_between_two_readings_is_unknown() -> None:
    nothing = np.empty(0)
    windows = growth_windows(Series("run", "", 0, nothing, nothing, np.empty((0, 2))), 0.0, 1e7, 1e6)
    assert windows.edges_ns.tolist() == [0.0, 1e7]
    assert np.isnan(windows.rates).all()


def test_windows_that_a_gap_touches_are_dark_and_many_of_both_take_no_time() -> None:
    random = np.random.default_rng(0)
    gaps = np.sort(random.choice(1000, 40, replace=False).astype(float)).reshape(-1, 2)
    begin = random.integers(0, 1000, 300).astype(float)
    for length in (0.0, 1.0, 30.0):
        touched = [any(a < x + length and b > x for a, b in gaps.tolist()) for x in begin.tolist()]
        assert touches_gap(gaps, begin, begin + length).tolist() == touched
    assert not touches_gap(np.empty((0, 2)), begin, begin).any()
    t_ns = np.arange(500_000, dtype=np.float64) * 10_000_000
    series = Series("core:0", "", 0, t_ns, t_ns, np.column_stack([t_ns[:-1:5], t_ns[1::5]]))
    began = time.process_time()
    assert np.isnan(growth_windows(series, 0.0, float(t_ns[-1]), 1.0).rates).mean() > 0.2
    assert time.process_time() - began < 5


def test_a_million_readings_of_pure_noise_are_gone_through_whole() -> None:
    noise = np.random.default_rng(0).random(1_000_000) * RANGE_J
    growth = counter_growth(np.arange(1e6) * 1e7, noise, RAPL)
    assert growth.known_growth[-1] < 1000.0
