"""Intervals cover what they claim to cover, and are absent where the data cannot give one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analysis.estimate import mean_interval, median_interval, share_interval


@pytest.mark.parametrize("count", [6, 17, 50])
def test_the_interval_of_the_median_covers_the_truth_at_least_as_often_as_it_says(count: int) -> None:
    draws = np.random.default_rng(1).lognormal(0.0, 1.0, (count, 4000))  # skewed, median 1
    _, low, high = median_interval(draws)
    assert np.mean((low <= 1) & (high >= 1)) > 0.94


def test_the_interval_of_the_mean_covers_the_truth() -> None:
    random = np.random.default_rng(2)
    hits = [low <= 3 <= high for _, low, high in (mean_interval(random.normal(3, 1, 8)) for _ in range(2000))]
    assert 0.93 < np.mean(hits) < 0.97


def test_five_values_give_a_median_but_no_interval() -> None:
    middle, low, high = median_interval(np.array([5.0, 1.0, 3.0, 2.0, 4.0]))
    assert middle == 3
    assert np.isnan(low)
    assert np.isnan(high)


def test_no_values_give_nothing() -> None:
    assert np.isnan(median_interval(np.empty(0))[0])
    assert np.isnan(mean_interval(np.full(4, np.nan))[0])
    assert np.isnan(share_interval(0, 0)[0])


@given(st.lists(st.floats(-1e9, 1e9), min_size=6, max_size=60))
def test_the_interval_encloses_the_median_and_is_made_of_values_that_were_seen(values: list[float]) -> None:
    middle, low, high = (float(x) for x in median_interval(np.array(values)))
    assert low <= middle <= high
    assert {low, high} <= set(values)


@given(st.integers(1, 500), st.data())
def test_a_share_lies_within_its_interval_and_both_within_0_and_1(count: int, data: st.DataObject) -> None:
    share, low, high = share_interval(data.draw(st.integers(0, count)), count)
    assert 0 <= low <= share <= high <= 1
