"""The profiling overhead: found where it is known, not faked by drift, null with a reason where unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.fabricate import every_step, fabricate_run

from stepscope.analysis.run import Run


def cost(run: Run, metric: str) -> dict[str, Any]:
    return run.overhead().row(by_predicate=pl.col("metric") == metric, named=True)


def test_a_known_cost_of_recording_is_found(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=200, overhead=0.05, noise=0.01))
    share = cost(run, "recorded_step_overhead_share")
    assert share["low"] <= 0.05 <= share["high"]
    assert share["high"] - share["low"] < 0.02
    step = cost(run, "recorded_step_overhead")
    assert step["value"] == pytest.approx(0.05 * 16e6, rel=0.2)


def test_the_interval_covers_the_truth_over_many_runs(tmp_path: Path) -> None:
    hits = 0
    for seed in range(40):
        path = fabricate_run(tmp_path, steps=60, overhead=0.03, noise=0.02, seed=seed, ops=(), samples=False)
        share = cost(Run(path), "recorded_step_overhead_share")
        hits += share["low"] <= 0.03 <= share["high"]
    assert hits >= 34


def test_a_machine_that_grows_slower_does_not_pass_for_overhead(tmp_path: Path) -> None:
    def last_half_rarely(step: int) -> bool:
        return step < 100 or 150 <= step < 158

    run = Run(fabricate_run(tmp_path, steps=200, recorded=last_half_rarely, drift=0.5, noise=0.001))
    assert abs(cost(run, "recorded_step_overhead_share")["value"]) < 0.01


def test_the_whole_run_pays_for_recorded_steps_for_writing_them_and_for_following_the_others(tmp_path: Path) -> None:
    header = {"overhead": {"paused_ns": 60_000_000, "followed_ns": 20_000_000}}
    run = Run(fabricate_run(tmp_path, steps=100, recorded=lambda step: step % 10 == 5, overhead=0.5, header=header))
    bare = 100 * 16e6 - 80e6  # the fabricated pauses lie within the span of the steps
    row = cost(run, "run_overhead_share")
    assert row["value"] == pytest.approx((10 * 8e6 + 80e6) / bare, rel=0.01)
    assert "20 ms to follow the others" in row["note"]


@pytest.mark.parametrize(("recorded", "reason"), [(every_step, "every step"), (lambda step: False, "no step was")])
def test_with_nothing_to_compare_the_cost_is_null_and_says_why(tmp_path: Path, recorded: Any, reason: str) -> None:
    row = cost(Run(fabricate_run(tmp_path, recorded=recorded)), "recorded_step_overhead")
    assert row["value"] is None
    assert reason in row["note"]


def test_the_sampler_states_its_share_of_a_core(tmp_path: Path) -> None:
    assert cost(Run(fabricate_run(tmp_path)), "sampler_cpu_share")["value"] == pytest.approx(0.01)


def test_a_sampler_that_takes_its_time_in_few_moments_takes_no_less_than_nothing(tmp_path: Path) -> None:
    row = cost(Run(fabricate_run(tmp_path, refresh_ns=2_000_000)), "sampler_cpu_share")
    assert 0 <= row["low"] < row["value"] < row["high"]
