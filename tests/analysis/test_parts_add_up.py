"""Modules, operators and phases: the right medians, and parts that add up to the step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fabricate import STEP, Op, every_step, fabricate_run, walk

from stepscope.analysis.run import Run
from stepscope.analysis.time.operators import FRAMEWORK_OVERHEAD, OUTSIDE

US = 1000


def test_shares_of_own_times_and_the_residual_add_up_to_one(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, noise=0.1, seed=3))
    for frame in (run.modules(), run.operators(), run.phases()):
        assert frame["share"].sum() == pytest.approx(1, abs=1e-9)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    own=st.lists(st.integers(1, 5000), min_size=1, max_size=6), residual=st.integers(0, 5000), noise=st.floats(0, 0.3)
)
def test_any_tree_adds_up(tmp_path: Path, own: list[int], residual: int, noise: float) -> None:
    tree: tuple[Op, ...] = ()
    for index, self_us in enumerate(own):
        tree = (Op(f"aten::op{index}", f"m{index}" if index % 2 else None, "forward", self_us, tree),)
    run = Run(fabricate_run(tmp_path, steps=8, ops=tree, residual_us=residual, noise=noise, samples=False))
    for frame in (run.modules(), run.operators(), run.phases()):
        assert frame["share"].sum() == pytest.approx(1, abs=1e-9)


def test_a_module_has_its_forward_and_backward_time_and_its_subtree_theirs(tmp_path: Path) -> None:
    modules = Run(fabricate_run(tmp_path)).modules()
    conv = modules.row(by_predicate=pl.col("module") == "features.0", named=True)
    assert (conv["forward_ns"], conv["backward_ns"]) == (3150 * US, 6000 * US)
    assert conv["total_ns"] == 9150 * US
    assert conv["low_ns"] == conv["high_ns"] == 9150 * US
    features = modules.row(by_predicate=pl.col("module") == "features", named=True)
    assert features["total_ns"] == 50 * US
    assert features["tree_total_ns"] == (50 + 9150 + 800) * US
    whole = modules.row(by_predicate=pl.col("module") == "", named=True)
    assert (
        whole["tree_forward_ns"]
        == sum(op.self_us for op in walk() if op.phase == "forward" and op.module is not None) * US
    )


def test_rows_follow_the_tree_and_end_with_the_rest(tmp_path: Path) -> None:
    modules = Run(fabricate_run(tmp_path)).modules()
    assert modules["module"].to_list() == ["", "features", "features.0", "features.1", "fc", None, FRAMEWORK_OVERHEAD]
    assert modules["depth"].to_list()[:5] == [0, 1, 2, 2, 1]
    assert modules["type"][5] == OUTSIDE
    assert modules["total_ns"][-1] == 1000 * US


def test_a_module_that_is_called_twice_says_so(tmp_path: Path) -> None:
    call = Op("nn.Linear", "fc", "forward", 100)
    modules = Run(fabricate_run(tmp_path, ops=(call, call))).modules()
    assert modules.filter(pl.col("module") == "fc")["calls"].to_list() == [2.0]


def test_calls_of_what_few_steps_have_are_a_mean_as_its_time_is(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, recorded=every_step))
    times = run.step_times
    seldom = (pl.col("module") == "features.1") & (pl.col("step") != times.steps[0])
    run.__dict__["step_times"] = replace(times, table=times.table.filter(~seldom))
    modules, operators = run.modules(), run.operators()
    share = 1 / len(times.steps)
    assert modules.filter(pl.col("module") == "features.1")["calls"].to_list() == [pytest.approx(share)]
    clamp = operators.row(by_predicate=pl.col("name") == "aten::clamp_min", named=True)
    assert (clamp["count"], clamp["total_ns"]) == (pytest.approx(share), pytest.approx(350 * US * share, rel=0.05))


def test_modules_that_the_model_file_does_not_know_are_found_in_the_ops(tmp_path: Path) -> None:
    modules = Run(fabricate_run(tmp_path, model=())).modules()
    known = dict(modules.select("module", "type").iter_rows())
    assert known["features.0"] == "Conv2d"
    assert modules.filter(pl.col("module") == "features.0")["parent"].to_list() == ["features"]
    assert modules["share"].sum() == pytest.approx(1)


def test_updates_that_belong_to_no_module_are_unknown_and_not_zero(tmp_path: Path) -> None:
    modules = Run(fabricate_run(tmp_path)).modules()
    assert modules.filter(pl.col("module") == "fc")["optimizer_ns"].to_list() == [None]
    assert modules.filter(pl.col("module").is_null())["optimizer_ns"].to_list() == [800 * US]


def test_updates_that_were_led_back_to_a_module_are_its_own(tmp_path: Path) -> None:
    update = Op("aten::add_", "fc", "optimizer", 300)
    modules = Run(fabricate_run(tmp_path, ops=(Op("nn.Linear", "fc", "forward", 100), update))).modules()
    assert modules.filter(pl.col("module") == "fc")["optimizer_ns"].to_list() == [300 * US]


def test_a_frozen_layer_has_no_backward_pass_rather_than_one_of_0(tmp_path: Path) -> None:
    ops = tuple(op for op in STEP if not (op.phase == "backward" and op.module == "features.0"))
    modules = Run(fabricate_run(tmp_path, ops=ops)).modules()
    backward = {row["module"]: (row["backward_ns"], row["tree_backward_ns"]) for row in modules.iter_rows(named=True)}
    assert backward["features.0"] == (None, None)
    assert backward["features"] == (0.0, 400 * US)
    assert modules.filter(pl.col("module") == "features.0")["forward_ns"].to_list() == [3150 * US]


def test_kinds_of_op_have_times_by_phase_and_a_rate(tmp_path: Path) -> None:
    kinds = Run(fabricate_run(tmp_path)).operators()
    conv = kinds.row(by_predicate=pl.col("name") == "aten::mkldnn_convolution", named=True)
    assert (conv["forward_ns"], conv["backward_ns"], conv["count"]) == (3000 * US, 0, 1)
    assert conv["flops_per_s"] == pytest.approx(6e6 / 3e-3)
    assert kinds.filter(pl.col("name") == "aten::clamp_min")["flops"].to_list() == [None]


def test_the_median_is_not_moved_by_one_slow_step(tmp_path: Path) -> None:
    truth = fabricate_run(tmp_path, steps=21, recorded=lambda step: True)
    run = Run(truth)
    slow = run.ops.with_columns(
        self_ns=pl.when((pl.col("step") == 9) & (pl.col("module") == "fc")).then(10**9).otherwise("self_ns")
    )
    for part in (truth / "ops").iterdir():
        part.unlink()
    slow.write_parquet(truth / "ops" / "000000.parquet")
    assert Run(truth).modules().filter(pl.col("module") == "fc")["total_ns"].to_list() == [2800 * US]


def test_warm_up_steps_and_unrecorded_steps_count_for_nothing(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=20))
    assert set(run.self_times["step"]) == {step for step in range(3, 20) if step % 5 != 4}


def test_kernels_have_device_time_and_do_not_count_as_time_of_the_cpu(tmp_path: Path) -> None:
    kernel = Op("sgemm", "fc", "forward", 3000, device="cuda:0", thread=7)
    ops = (Op("nn.Linear", "fc", "forward", 100, (Op("aten::addmm", "fc", "forward", 50, (kernel,)),)),)
    run = Run(fabricate_run(tmp_path, ops=ops, residual_us=3850))
    linear = run.modules().row(by_predicate=pl.col("module") == "fc", named=True)
    assert (linear["device_ns"], linear["total_ns"]) == (3000 * US, 150 * US)
    assert run.phases()["share"].sum() == pytest.approx(1)
    busy = run.metrics().row(by_predicate=pl.col("metric") == "accelerator_utilisation", named=True)
    assert (busy["scope"], busy["value"]) == ("cuda:0", pytest.approx(0.75))


def test_the_anatomy_is_one_step_with_callers_above_what_they_call(tmp_path: Path) -> None:
    ops = Run(fabricate_run(tmp_path, noise=0.05)).anatomy()
    assert ops["step"].n_unique() == 1
    assert ops["depth"].to_list()[:6] == [0, 0, 1, 2, 3, 2]
    inner = ops.filter(pl.col("parent").is_not_null())
    outer = ops[inner["parent"].cast(pl.Int64).to_list()]
    assert (inner["start_ns"] >= outer["start_ns"]).all()
    assert (inner["depth"] == outer["depth"] + 1).all()
