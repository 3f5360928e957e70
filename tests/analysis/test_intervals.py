"""Intervals cover what they claim to cover, and are absent where the data cannot give one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fabricate import Core, fabricate_run

from stepscope.analysis.compare.run_groups import pooled_step_time
from stepscope.analysis.estimate import (
    mean_interval,
    mean_over_time,
    median_interval,
    median_over_time,
    ratio_of_sums,
    share_interval,
)
from stepscope.analysis.metrics import idle_residency, step_time, throughput
from stepscope.analysis.run import Run
from stepscope.part_names import PartName
from stepscope.runfolder.thinning import drop_step_blocks


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


def _alike_neighbours(count: int, runs: int) -> np.ndarray:
    """Series of which each value is 0.9 of the one before and noise, (runs, count): a load that comes and goes."""
    random = np.random.default_rng(3)
    values = np.zeros((runs, count))
    values[:, 0] = random.normal(0, 1, runs)
    for place in range(1, count):
        values[:, place] = 0.9 * values[:, place - 1] + np.sqrt(1 - 0.81) * random.normal(0, 1, runs)
    return values


def test_intervals_of_readings_whose_neighbours_are_alike_cover_the_truth() -> None:
    series = _alike_neighbours(1000, 150)
    means = [mean_over_time(values) for values in series]
    medians = [median_over_time(np.exp(0.1 * values)) for values in series]
    ratios = [ratio_of_sums(np.ones(1000), np.exp(0.1 * values)) for values in series]
    for estimates, truth in ((means, 0.0), (medians, 1.0), (ratios, np.exp(-0.005))):
        known = [found for found in estimates if found is not None]
        covered = [(found.low or -9.0) <= truth <= (found.high or 9.0) for found in known]
        assert len(known) == 150
        assert np.mean(covered) > 0.85


def test_a_run_that_drifts_has_the_interval_in_the_report_that_it_has_in_a_comparison(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=603, recorded=lambda step: step < 30, noise=0.01, drift=0.3, samples=False))
    stated, compared = step_time(run)[0], pooled_step_time([run])
    assert (stated.low, stated.high) == pytest.approx((compared.low, compared.high))
    assert (stated.high or 0) - (stated.low or 0) > 0.05 * (stated.value or 0)
    (rate,) = (row for row in throughput(run) if row.metric == "step_rate")
    assert (rate.high or 0) - (rate.low or 0) > 0.05 * (rate.value or 0)


def test_idle_residency_that_comes_in_one_stretch_is_not_known_to_a_thousandth(tmp_path: Path) -> None:
    half = Core(0.9, from_share=0.5)
    run = Run(fabricate_run(tmp_path, steps=300, cores=(half, Core(0.0)), period_ns=1_000_000))
    first, second = (row for row in idle_residency(run))
    assert (first.high or 0) - (first.low or 0) > 0.2
    assert (second.value, second.high) == (1.0, 1.0)
    assert (second.low or 0) > 0.99


def test_old_and_new_steps_of_a_thinned_run_count_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(fabricate_run(tmp_path, steps=6_000, recorded=lambda step: step < 10, samples=False,
                            stretch=lambda step: 1.0 if step < 3_000 else 2.0))  # fmt: skip
    true_rate = throughput(run)[1].value
    thinned = Run(run.path)
    old = drop_step_blocks(run.steps.filter(pl.col("step") < 3_000), 4)
    kept = pl.concat([old, run.steps.filter(pl.col("step") >= 3_000)])
    part = PartName("steps-0-0~4.parquet", "steps", 0, 0, 4, True)
    monkeypatch.setattr(type(thinned), "steps", kept)
    monkeypatch.setattr(type(thinned), "thinned_steps", [part])
    assert len(old) < 1_500
    assert throughput(thinned)[1].value == pytest.approx(true_rate, rel=0.1)
