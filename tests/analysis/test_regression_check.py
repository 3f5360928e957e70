"""The gate for CI: it says regression or no regression only where the whole interval does, and else cannot tell."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.powered import TX2, powered, rail, times
from tests.analysis.test_compare import SLOW, slower, workload
from tests.fabricate import STEP, fabricate_run

from stepscope.analysis.compare.regression_check import NONE, REGRESSION, UNSURE, check
from stepscope.analysis.estimate import Estimate, geometric_mean_of_repeats
from stepscope.errors import RunError, UsageError
from stepscope.report.comparison import markdown


def test_a_step_that_is_surely_slower_is_a_regression(tmp_path: Path) -> None:
    baseline = fabricate_run(tmp_path / "a", steps=80, noise=0.02)
    result = check(fabricate_run(tmp_path / "b", steps=80, noise=0.02, ops=SLOW, seed=1), baseline, {"time": 0.05})
    (judged,) = result.judged
    assert result.outcome == judged.outcome == REGRESSION
    assert judged.low is not None
    assert judged.low > 1.05


def test_a_step_that_is_surely_within_the_limit_is_none(tmp_path: Path) -> None:
    baseline = fabricate_run(tmp_path / "a", steps=80, noise=0.01)
    same = fabricate_run(tmp_path / "b", steps=80, noise=0.01, seed=1)
    assert check(same, baseline, {"time": 0.05}).outcome == NONE
    faster = check(baseline, fabricate_run(tmp_path / "c", steps=80, noise=0.01, ops=SLOW), {"time": 0.0})
    assert faster.outcome == NONE


def test_noise_around_the_limit_cannot_be_told(tmp_path: Path) -> None:
    baseline = fabricate_run(tmp_path / "a", steps=30, noise=0.3)
    close = slower(STEP, "aten::addmm", 800)
    result = check(fabricate_run(tmp_path / "b", steps=30, noise=0.3, ops=close, seed=1), baseline, {"time": 0.05})
    assert result.outcome == UNSURE
    assert "would tell" in result.judged[0].why


def test_what_was_not_measured_cannot_be_told_unless_it_is_optional(tmp_path: Path) -> None:
    first, other = (fabricate_run(tmp_path, steps=40) for _ in range(2))
    asked = check(other, first, {"energy": 0.05})
    assert (asked.outcome, asked.judged[0].why) == (UNSURE, "energy was not measured on both sides")
    default = check(other, first, {"time": 0.05, "energy": 0.05}, optional=("energy",))
    assert (default.outcome, default.not_judged) == (NONE, ("energy",))


def test_one_regression_outweighs_all_else(tmp_path: Path) -> None:
    baseline = fabricate_run(tmp_path / "a", steps=80, noise=0.01)
    slow = fabricate_run(tmp_path / "b", steps=80, noise=0.01, ops=SLOW)
    assert check(slow, baseline, {"time": 0.05, "memory": 0.03, "energy": 0.05}).outcome == REGRESSION


def test_energy_without_a_total_is_judged_by_every_component_and_names_each(tmp_path: Path) -> None:
    t_ns = times(60)

    def board(name: str, gpu_w: float) -> Path:
        cpu, gpu = (rail(f"VDD_SYS_{unit}", watts, t_ns) for unit, watts in (("CPU", 2.0), ("GPU", gpu_w)))
        return powered(tmp_path / name, cpu, gpu, steps=60, device={"board": TX2}).path

    result = check(board("b", 6.0), board("a", 3.0), {"energy": 0.05})
    assert {row.component: row.outcome for row in result.judged} == {"cpu": NONE, "gpu": REGRESSION}
    assert result.outcome == REGRESSION
    assert "Energy per step of gpu" in markdown(result)
    assert "energy of gpu: regression" in markdown(result)


@given(st.integers(1, 1 << 40), st.integers(1, 6), st.integers(1, 6))
def test_repeats_that_counted_the_same_are_the_same_however_many(size: int, first: int, other: int) -> None:
    sides = (geometric_mean_of_repeats([Estimate(*[float(size)] * 3)] * count) for count in (first, other))
    ratio = next(sides) / next(sides)
    assert ratio == Estimate(1.0, 1.0, 1.0)


def test_repeats_count_differences_between_runs(tmp_path: Path) -> None:
    for seed, more in enumerate((0, 2000, 4000)):
        fabricate_run(tmp_path / "a", steps=20, noise=0.001, ops=slower(STEP, "aten::mm", more), seed=seed)
        fabricate_run(tmp_path / "b", steps=20, noise=0.001, ops=slower(STEP, "aten::mm", more + 1000), seed=seed)
    single = check(sorted((tmp_path / "b").iterdir())[0], sorted((tmp_path / "a").iterdir())[0], {"time": 0.01})
    assert single.outcome != UNSURE
    assert check(tmp_path / "b", tmp_path / "a", {"time": 0.01}).outcome == UNSURE


def test_what_was_trained_otherwise_or_failed_is_refused(tmp_path: Path) -> None:
    baseline = fabricate_run(tmp_path / "a")
    other = fabricate_run(tmp_path / "b", header=workload(64), batch=64)
    with pytest.raises(UsageError, match="batch 16 and 64"):
        check(other, baseline, {"time": 0.05})
    assert check(other, baseline, {"time": 0.05}, anyway=True).judged
    with pytest.raises(RunError, match="ended as failed"):
        check(fabricate_run(tmp_path / "c", status="failed"), baseline, {"time": 0.05})


def test_a_limit_is_a_share_or_a_text_and_nothing_else(tmp_path: Path) -> None:
    run = fabricate_run(tmp_path / "a", steps=30)
    assert check(run, run, {"time": "5%"}).judged == check(run, run, {"time": 0.05}).judged
    for wrong in (float("nan"), -0.5, "fast", True, 11.0):
        with pytest.raises(UsageError, match="time"):
            check(run, run, {"time": wrong})
