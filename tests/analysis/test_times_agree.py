"""Every number of time agrees with every other, by construction, over random runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.fabricate import STEP, Core, Op, fabricate_run

from stepscope.analysis.run import Run
from stepscope.analysis.time.operators import FRAMEWORK_OVERHEAD
from stepscope.analysis.time.steps import only_warmup_profiled

US = 1000
EVENT = {"op_inside_ns": 1_000.0, "op_outside_ns": 9_000.0, "call_inside_ns": 2_000.0, "call_outside_ns": 20_000.0}
TABLES = (("phases", "ns"), ("operators", "total_ns"), ("modules", "total_ns"))


def metric(run: Run, name: str, scope: str | None = None) -> dict[str, Any]:
    rows = run.metrics().filter(pl.col("metric") == name)
    return (rows if scope is None else rows.filter(pl.col("scope") == scope)).row(0, named=True)


def assert_parts_add_up(run: Run) -> None:
    step = metric(run, "step_time")["value"]
    for table, column in TABLES:
        frame = getattr(run, table)()
        assert frame[column].sum() == pytest.approx(step, rel=0.02)
        assert frame["share"].sum() == pytest.approx(1, abs=0.02)
        known = frame.filter(pl.col("low_ns").is_not_null())
        assert (frame["share"].drop_nulls() >= 0).all()
        assert ((known["low_ns"] >= 0) & (known["low_ns"] <= known[column]) & (known[column] <= known["high_ns"])).all()
    ranked = run.operators()["total_ns"].to_list()[:-1]
    assert ranked == sorted(ranked, reverse=True)


def assert_rates_agree(run: Run) -> None:
    rate, steps = metric(run, "step_rate"), run.steps.slice(run.warmup_steps)
    timed = steps.filter(~pl.col("recorded"))
    timed = timed if len(timed) >= 6 else steps
    seconds = float((timed["t1_ns"] - timed["t0_ns"]).sum()) / 1e9
    assert rate["value"] == pytest.approx(len(timed) / seconds)
    if timed["samples"].null_count() == 0:
        assert metric(run, "throughput")["value"] == pytest.approx(int(timed["samples"].sum()) / seconds)
    if "mean_power" in run.metrics()["metric"]:
        per_step, power = metric(run, "energy_per_step"), metric(run, "mean_power")
        assert per_step["value"] * rate["value"] == pytest.approx(power["value"], rel=1e-6)


def assert_possible(run: Run, cores: int) -> None:
    for row in run.metrics().iter_rows(named=True):
        values = [row[name] for name in ("low", "value", "high") if row[name] is not None]
        assert values == sorted(values), row
        assert all(value >= 0 for value in values), row
        if row["metric"] in ("core_utilisation", "mean_cpu_utilisation", "idle_state_ratio"):
            assert values[-1:] <= [1.0], row
        if row["metric"] == "process_cpu_utilisation":
            assert values[-1:] <= [cores], row
    overhead = run.overhead().filter(pl.col("value").is_not_null())
    assert (overhead["value"] >= 0).all()
    assert (overhead["low"].drop_nulls() >= 0).all()
    assert (overhead.filter(metric="run_overhead_share")["value"] <= 0.5).all()


@settings(
    max_examples=6,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    steps=st.integers(7, 40),
    pattern=st.sampled_from(["block", "every", "blocks", "none but warm-up"]),
    noise=st.floats(0, 0.3),
    overhead=st.floats(0, 1.0),
    drift=st.floats(-0.3, 0.5),
    own=st.lists(st.integers(1, 5000), min_size=1, max_size=5),
    cost=st.booleans(),
    power=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_any_run_agrees_with_itself(
    tmp_path: Path,
    steps: int,
    pattern: str,
    noise: float,
    overhead: float,
    drift: float,
    own: list[int],
    cost: bool,
    power: bool,
    seed: int,
) -> None:
    tree: tuple[Op, ...] = ()
    for index, self_us in enumerate(own):
        tree = (Op(f"aten::op{index}", f"m{index}" if index % 2 else None, "forward", self_us, tree),)
    recorded = {
        "block": lambda step: 2 <= step < 11,
        "every": lambda step: True,
        "blocks": lambda step: 3 <= step < 8 or step % 9 > 6,
        "none but warm-up": lambda step: step == 1,
    }[pattern]
    run = Run(
        fabricate_run(
            tmp_path,
            steps=steps,
            ops=(*STEP[:2], *tree, *STEP[3:]),
            recorded=recorded,
            noise=noise,
            overhead=overhead,
            drift=drift,
            power_w=4.0 if power else None,
            cores=(Core(0.9), Core(0.95)),
            header={"overhead": {"paused_ns": 3_000_000, "event": EVENT if cost else None}},
            seed=seed,
        )
    )
    assert_parts_add_up(run)
    assert_rates_agree(run)
    assert_possible(run, 2)


def _with_cost(ops: tuple[Op, ...]) -> tuple[tuple[Op, ...], int]:
    """The same ops as the profiler would record them, and what it took in them and in what called them, us."""
    found, taken = [], 0
    for op in ops:
        calls, below = _with_cost(op.calls)
        kind = "call" if op.name.startswith("nn.") else "op"
        inside = round((EVENT[f"{kind}_inside_ns"]) / US)
        found.append(Op(op.name, op.module, op.phase, op.self_us + inside + below, calls))
        taken += round(EVENT[f"{kind}_outside_ns"] / US)
    return tuple(found), taken


def _total(ops: tuple[Op, ...]) -> int:
    return sum(op.self_us + _total(op.calls) for op in ops)


def _planted(out: Path, event: dict[str, float] | None) -> Run:
    """Layer `few` makes one call of 4 ms, layer `many` 40 of 100 us; profiling costs each event what EVENT says."""
    few = Op("nn.Linear", "fc", "forward", 100, (Op("aten::addmm", "fc", "forward", 4000),))
    many = Op(
        "nn.Conv2d",
        "features.0",
        "forward",
        100,
        tuple(Op("aten::tiny", "features.0", "forward", 100) for _ in range(40)),
    )
    ops, outside = _with_cost((few, many))
    header = {"overhead": {"paused_ns": 0, "event": event}}
    path = fabricate_run(
        out,
        steps=40,
        ops=ops,
        residual_us=500 + outside,
        noise=0.01,
        recorded=lambda step: 3 <= step < 12,
        samples=False,
        header=header,
    )
    more_us = _total(ops) + outside - _total((few, many))
    steps = pl.read_parquet(path / "steps.parquet")
    bare = pl.col("recorded").cast(pl.Boolean)
    shorter = steps.with_columns(t1_ns=pl.when(bare).then("t1_ns").otherwise(pl.col("t1_ns") - more_us * US))
    shorter.cast(steps.schema).write_parquet(path / "steps.parquet")
    return Run(path)


def test_the_cost_of_an_event_is_taken_from_the_op_and_from_its_caller(tmp_path: Path) -> None:
    modules = dict(_planted(tmp_path, EVENT).modules().select("module", "total_ns").iter_rows())
    assert modules["fc"] == pytest.approx(4100 * US, rel=0.01)
    assert modules["features.0"] == pytest.approx(4100 * US, rel=0.01)


def test_a_run_without_the_measured_cost_is_calibrated_alone_and_says_so_in_its_intervals(tmp_path: Path) -> None:
    run = _planted(tmp_path, None)
    assert_parts_add_up(run)
    row = run.modules().row(by_predicate=pl.col("module") == "fc", named=True)
    assert row["total_ns"] != pytest.approx(4100 * US, rel=0.02)
    assert row["low_ns"] <= 4100 * US <= row["high_ns"]


def test_what_was_recorded_stays_in_the_run_folder(tmp_path: Path) -> None:
    run = _planted(tmp_path, EVENT)
    recorded = run.ops.filter(pl.col("name").cast(pl.String) == "nn.Conv2d")["self_ns"].mean()
    assert recorded == pytest.approx((100 + 2 + 40 * 9) * US, rel=0.02)


def test_a_run_of_which_only_a_warm_up_step_was_profiled_shows_it_and_says_so(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=12, recorded=lambda step: step == 1))
    assert only_warmup_profiled(run)
    assert run.modules().filter(module="fc")["total_ns"][0] > 0
    assert any("warm-up" in entry.why for entry in run.not_measured() if "layers" in entry.what)


def test_steps_profiled_with_shapes_or_allocations_do_not_count_where_others_do(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path, steps=30, overhead=0.2, header={"recorder": {"steps_apart": [5, 6]}})
    assert not {5, 6} & set(Run(path).step_times.steps)


def test_throughput_holds_the_stalls_that_the_typical_step_does_not(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path, steps=103, recorded=lambda step: False)
    steps = pl.read_parquet(path / "steps.parquet").with_row_index("row")
    stalled = pl.col("t1_ns") + pl.when(pl.col("row") % 10 == 9).then(16_000_000).otherwise(0)
    steps.with_columns(t1_ns=stalled).drop("row").write_parquet(path / "steps.parquet")
    run = Run(path)
    assert metric(run, "step_time")["value"] == 16e6
    assert metric(run, "throughput")["value"] == pytest.approx(1000 / 1.1, rel=0.01)


def test_a_handful_of_steps_is_too_few_to_tell_the_overhead(tmp_path: Path) -> None:
    rows = Run(fabricate_run(tmp_path, steps=14, recorded=lambda step: 3 <= step < 8, overhead=9.0)).overhead()
    run_share = rows.filter(metric="run_overhead_share").row(0, named=True)
    assert run_share["value"] is None
    assert run_share["note"] == "too few steps to tell"


def _of_two_kinds(out: Path) -> Run:
    """Steps of 10 ms, 8 of them in layer `small`, and, each fourth, of 100 ms, 90 in layer `large` and 6 in none."""
    both = (
        Op("nn.Linear", "small", "forward", 8_000),
        Op("nn.Linear", "large", "forward", 90_000),
        Op("aten::rest_of_short", None, "forward", 2_000),
        Op("aten::rest_of_long", None, "forward", 4_000),
    )
    path = fabricate_run(out, steps=40, ops=both, residual_us=0, recorded=lambda step: 3 <= step < 15, samples=False)
    of_short = pl.col("name").cast(pl.String).is_in(["aten::rest_of_short"]) | pl.col("module").eq_missing("small")
    for part in (path / "ops").glob("*.parquet"):
        pl.read_parquet(part).filter((pl.col("step") % 4 != 0) == of_short).write_parquet(part)
    steps = pl.read_parquet(path / "steps.parquet")
    length_ns = pl.when(pl.col("step") % 4 != 0).then(10_000_000).otherwise(100_000_000)
    shorter = steps.with_columns(t1_ns=pl.col("t0_ns") + length_ns)
    shorter.write_parquet(path / "steps.parquet")
    return Run(path)


def test_layers_of_steps_of_two_kinds_have_their_shares_of_the_time_of_both(tmp_path: Path) -> None:
    run = _of_two_kinds(tmp_path)
    modules = {row["module"]: row for row in run.modules().iter_rows(named=True)}
    assert modules["small"]["share"] == pytest.approx(9 * 8 / 390, rel=0.01)
    assert modules["large"]["share"] == pytest.approx(3 * 90 / 390, rel=0.01)
    overhead = run.operators().filter(name=FRAMEWORK_OVERHEAD).row(0, named=True)
    assert overhead["share"] == pytest.approx(3 * 6 / 390, rel=0.01)
    assert modules["large"]["mean_ns"] == pytest.approx(modules["large"]["total_ns"], rel=0.01)
    assert_parts_add_up(run)


def test_one_call_more_in_one_step_makes_no_steps_of_several_kinds(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path, steps=40, recorded=lambda step: 3 <= step < 15, samples=False)
    whole = Run(path).modules().filter(pl.col("low_ns").is_not_null())
    for part in (path / "ops").glob("*.parquet"):
        ops = pl.read_parquet(part)
        once = ops.filter(pl.col("step") == 7).tail(1).with_columns(self_ns=pl.lit(1000).cast(ops.schema["self_ns"]))
        pl.concat([ops, once]).write_parquet(part)
    shown = Run(path).modules()
    assert shown.filter(pl.col("low_ns").is_not_null())["module"].to_list() == whole["module"].to_list()
    assert shown["total_ns"].sum() == pytest.approx(Run(path).step_times.step_ns, rel=0.02)
