"""Times of layers from steps in which they alone were timed, and how operators share them; on made-up runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import special  # type: ignore[import-untyped]
from tests.fabricate import fabricate_run

from stepscope.analysis.run import Run
from stepscope.analysis.time.layers import LayerTimes
from stepscope.analysis.time.operators import OUTSIDE
from stepscope.analysis.time.steps import timed_steps
from stepscope.runfolder import AUTOGRAD_NODE, DATA_LOADER, RunWriter, part_of
from stepscope.runfolder.checksums import CHECKSUMS
from stepscope.runfolder.pack import pack
from stepscope.runfolder.tables import OPS

US = 1000
COST = {"call_inside_ns": 2_000.0, "call_outside_ns": 5_000.0, "node_ns": 3_000.0}
# Calls as the made-up step has them: name, module, row of the caller. Its profile says 100, 50, 3150, 400 and 1000 us.
CALLS = (
    ("nn.Net", "", None),
    ("nn.Sequential", "features", 0),
    ("nn.Conv2d", "features.0", 1),
    ("nn.ReLU", "features.1", 1),
    ("nn.Linear", "fc", 0),
)
NODES = (("AddmmBackward0", "fc"), ("ReluBackward0", "features.1"), ("ConvolutionBackward0", "features.0"))
PROFILED: dict[tuple[str, str | None], int] = {
    **{("forward", ""): 100, ("forward", "features"): 50, ("forward", "features.0"): 3150},
    **{("forward", "features.1"): 400, ("forward", "fc"): 1000, ("optimizer", None): 800},
    **{("backward", "fc"): 1800, ("backward", "features.1"): 400, ("backward", "features.0"): 6000},
}
TIMED = range(20, 27)  # the first of them only settles
Times = dict[tuple[str, str | None], int]


def _rows(
    step: int, t0_ns: int, times: Times, engine_us: int, left_out: str, loads_us: tuple[int, ...]
) -> list[dict[str, Any]]:
    """Rows of one step: what each layer takes, in us, and what looking at it costs; behind what loaders take."""
    constant = {"step": step, "thread": 1, "device": "cpu", "flops": None, "bytes": None}
    made: list[dict[str, Any]] = []
    now = t0_ns
    for us in loads_us:
        row = {"name": f"{DATA_LOADER}_SingleProcessDataLoaderIter.__next__", "module": None, "phase": "data"}
        made.append({**row, "parent": None, "t0_ns": now, "self_ns": us * US})
        now += us * US
    first = len(made)
    for place, (name, module, caller) in enumerate(CALLS):
        children = sum(other == place for _, _, other in CALLS)
        own = int(times["forward", module] * US + COST["call_inside_ns"] + children * COST["call_outside_ns"])
        made.append(
            {
                "name": name,
                "module": module,
                "phase": "forward",
                "parent": None if caller is None else first + caller,
                "t0_ns": now,
                "self_ns": own,
            }
        )
        now += own
    for name, module in NODES:
        if name == left_out:
            continue
        own = int(times["backward", module] * US + COST["node_ns"])
        row = {"name": f"{AUTOGRAD_NODE}{name}", "module": module, "phase": "backward", "parent": None}
        made.append({**row, "t0_ns": now, "self_ns": own - engine_us * US})
        now += own
    own = times["optimizer", None] * US
    row = {"name": "Optimizer.step#SGD.step", "module": None, "phase": "optimizer", "parent": None}
    made.append({**row, "t0_ns": now, "self_ns": own})
    return [{**constant, **row, "t1_ns": row["t0_ns"] + row["self_ns"]} for row in made]


def run_with(
    out: Path,
    changed: Times | None = None,
    spread: float = 0.0,
    engine_us: int = 0,
    left_out: str = "",
    profiled: int = 10,
    loads_us: Callable[[int], tuple[int, ...]] = lambda _: (),
) -> Run:
    """Return a run of 40 steps, some of them profiled, in seven of which layers were timed; what differs from PROFILED.

    spread: of a layer's time from step to step, relative; engine_us: of each node's time that lies behind it;
    loads_us: of each batch that is loaded in a step.
    """
    path = fabricate_run(out, steps=40, recorded=lambda step: 3 <= step < 3 + profiled, samples=False, status=None)
    begins = dict(Run(path).steps.select("step", "t0_ns").iter_rows())
    times = {**PROFILED, **(changed or {})}
    rows = []
    for step in TIMED:
        factor = 1 + spread * (step % 3 - 1)
        now = {key: round(us * factor) for key, us in times.items()}
        rows += _rows(step, begins[step], now, engine_us, left_out, loads_us(step))
    writer = RunWriter.attach(path)
    writer.update(overhead={"paused_ns": 0, "layer": COST})
    frame = pl.DataFrame(rows, schema_overrides={"parent": pl.Int32, "flops": pl.Int64, "bytes": pl.Int64})
    writer.write_layer_calls(part_of(frame.select(pl.col(name).cast(kind) for name, kind in OPS.items()), "layers"))
    writer.close("ok")
    pack(path)
    (path / CHECKSUMS).unlink()
    inside = len(CALLS) * COST["call_inside_ns"] + (len(CALLS) - 1) * COST["call_outside_ns"]  # nobody calls the first
    nodes = sum(name != left_out for name, _ in NODES)
    cost_ns = int(inside + nodes * COST["node_ns"])
    steps = pl.read_parquet(path / "steps.parquet")
    longer = pl.when(pl.col("step").is_in([*TIMED])).then(pl.col("t1_ns") + cost_ns).otherwise("t1_ns")
    steps.with_columns(t1_ns=longer).cast(steps.schema).write_parquet(path / "steps.parquet")
    return Run(path)


def layer(run: Run, name: str) -> dict[str, Any]:
    return run.modules().row(by_predicate=pl.col("module") == name, named=True)


def test_a_layer_takes_what_these_steps_say_of_it_and_not_what_profiled_ones_do(tmp_path: Path) -> None:
    run = run_with(tmp_path, {("forward", "features.0"): 2000, ("backward", "fc"): 2500})
    assert layer(run, "features.0")["forward_ns"] == pytest.approx(2000 * US, rel=1e-3)
    assert layer(run, "features.0")["backward_ns"] == pytest.approx(6000 * US, rel=1e-3)
    assert layer(run, "fc")["backward_ns"] == pytest.approx(2500 * US, rel=1e-3)
    assert layer(run, "features")["tree_forward_ns"] == pytest.approx((50 + 2000 + 400) * US, rel=1e-3)


def test_operators_share_the_time_of_their_layer_as_profiled_and_everything_still_adds_up(tmp_path: Path) -> None:
    run = run_with(tmp_path, {("forward", "features.0"): 2000, ("backward", "features.0"): 7000})
    step_ns = run.step_times.step_ns
    operators = dict(run.operators().select("name", "total_ns").iter_rows())
    assert operators["aten::mkldnn_convolution"] == pytest.approx(2000 * US * 3000 / 3150, rel=1e-3)
    assert operators["aten::convolution_backward"] == pytest.approx(7000 * US * 5980 / 6000, rel=1e-3)
    for table, column in (("phases", "ns"), ("operators", "total_ns"), ("modules", "total_ns")):
        assert getattr(run, table)()[column].sum() == pytest.approx(step_ns, rel=1e-6)


def test_what_is_in_no_layer_takes_what_is_left_of_the_step(tmp_path: Path) -> None:
    before = run_with(tmp_path / "a")
    after = run_with(tmp_path / "b", {("backward", "features.0"): 6500})
    assert before.step_times.step_ns == after.step_times.step_ns

    def outside(run: Run) -> float:
        rows = run.modules().filter(pl.col("module").is_null() | (pl.col("module") == "(between operations)"))
        return float(rows["total_ns"].sum())

    assert outside(before) - outside(after) == pytest.approx(500 * US, rel=0.01)


def test_layers_that_take_more_than_the_step_are_cut_to_it(tmp_path: Path) -> None:
    run = run_with(tmp_path, {("backward", "features.0"): 60_000})
    assert run.modules()["total_ns"].sum() == pytest.approx(run.step_times.step_ns, rel=1e-6)
    assert (run.modules()["total_ns"].drop_nulls() >= 0).all()


def test_time_between_two_nodes_is_that_of_the_earlier_one(tmp_path: Path) -> None:
    run = run_with(tmp_path, engine_us=100)
    assert layer(run, "features.1")["backward_ns"] == pytest.approx(400 * US, rel=1e-3)
    assert layer(run, "fc")["backward_ns"] == pytest.approx(1800 * US, rel=1e-3)
    assert layer(run, "features.0")["backward_ns"] == pytest.approx(5900 * US, rel=1e-3)  # nothing tells where it ends


def test_a_layer_without_as_many_nodes_as_profiled_keeps_what_was_profiled(tmp_path: Path) -> None:
    run = run_with(tmp_path, {("forward", "features.0"): 2000}, left_out="ConvolutionBackward0")
    bare = run_with(tmp_path / "bare", {("forward", "features.0"): 2000})
    assert layer(run, "features.0")["forward_ns"] == pytest.approx(2000 * US, rel=1e-3)
    assert layer(run, "features.0")["backward_ns"] != pytest.approx(layer(bare, "features.0")["backward_ns"], rel=1e-3)
    assert layer(run, "fc")["backward_ns"] == pytest.approx(layer(bare, "fc")["backward_ns"], rel=1e-3)


def test_the_interval_of_a_layer_holds_how_far_these_steps_differ(tmp_path: Path) -> None:
    steady, uneven = layer(run_with(tmp_path / "a"), "fc"), layer(run_with(tmp_path / "b", spread=0.1), "fc")
    for row in (steady, uneven):
        assert row["low_ns"] <= 2800 * US <= row["high_ns"]
    assert uneven["high_ns"] - uneven["low_ns"] > 5 * (steady["high_ns"] - steady["low_ns"])
    assert uneven["high_ns"] - uneven["low_ns"] > 0.02 * uneven["total_ns"]


@pytest.mark.parametrize("profiled", [1, 4])
def test_layers_and_phases_have_intervals_where_fewer_than_six_steps_were_profiled(
    tmp_path: Path, profiled: int
) -> None:
    run = run_with(tmp_path, spread=0.05, profiled=profiled)
    narrow = layer(run_with(tmp_path / "narrow", spread=0.01, profiled=profiled), "features.0")
    found = layer(run, "features.0")
    assert found["low_ns"] < 9150 * US < found["high_ns"]
    assert found["high_ns"] - found["low_ns"] > 2 * (narrow["high_ns"] - narrow["low_ns"])
    whole = layer(run, "features")
    assert whole["tree_low_ns"] < 10_000 * US < whole["tree_high_ns"]
    phases = {row["phase"]: row for row in run.phases().iter_rows(named=True)}
    assert phases["backward"]["low_ns"] < 8200 * US < phases["backward"]["high_ns"]
    assert run.operators()["low_ns"].drop_nulls().is_empty()  # how a layer divides among its operators is not known


def test_a_phase_that_lies_outside_of_the_layers_has_no_interval_of_them(tmp_path: Path) -> None:
    phases = {row["phase"]: row for row in run_with(tmp_path, profiled=4).phases().iter_rows(named=True)}
    assert phases["data"]["ns"] > 0
    assert phases["data"]["low_ns"] is None


def test_an_update_takes_what_these_steps_say_whichever_layers_it_belongs_to(tmp_path: Path) -> None:
    run = run_with(tmp_path, {("optimizer", None): 1200})
    phases = dict(run.phases().select("phase", "ns").iter_rows())
    assert phases["optimizer"] == pytest.approx(1200 * US, rel=1e-3)


def test_an_update_that_was_given_a_closure_keeps_what_was_profiled(tmp_path: Path) -> None:
    run = run_with(tmp_path, {("optimizer", None): 1200, ("forward", "features.0"): 2000})
    file = run.path / "layers" / "000000.parquet"
    rows = pl.read_parquet(file)
    update = len(CALLS) + len(NODES)  # row of the update in its step
    in_update = pl.col("phase").cast(pl.String) == "backward"
    rows.with_columns(parent=pl.when(in_update).then(update).otherwise("parent").cast(pl.Int32)).write_parquet(file)
    again = Run(run.path)
    assert layer(again, "features.0")["forward_ns"] == pytest.approx(2000 * US, rel=1e-3)
    assert dict(again.phases().select("phase", "ns").iter_rows())["optimizer"] < 1100 * US
    assert again.phases()["ns"].sum() == pytest.approx(again.step_times.step_ns, rel=1e-6)


@pytest.mark.parametrize("loads_us", [lambda _: (600,), lambda step: (500, 100) if step % 3 else (600,)])
def test_loading_takes_what_these_steps_say_also_where_an_epoch_ends_in_one_of_them(
    tmp_path: Path, loads_us: Callable[[int], tuple[int, ...]]
) -> None:
    run = run_with(tmp_path, loads_us=loads_us)
    phases = dict(run.phases().select("phase", "ns").iter_rows())
    assert phases["data"] == pytest.approx(600 * US, rel=1e-3), "profiled steps say 1000"
    assert run.phases()["ns"].sum() == pytest.approx(run.step_times.step_ns, rel=1e-6)


def test_these_steps_do_not_count_as_unprofiled(tmp_path: Path) -> None:
    steps, which = timed_steps(run_with(tmp_path))
    assert which == "unprofiled steps"
    assert not {*TIMED} & {*steps["step"].to_list()}


def test_a_damaged_file_of_layers_leaves_the_rest_of_the_run(tmp_path: Path) -> None:
    path = run_with(tmp_path, {("forward", "features.0"): 2000}).path
    (path / "layers" / "000000.parquet").write_bytes(b"PAR1 and no more")
    run = Run(path)
    assert layer(run, "features.0")["forward_ns"] > 2500 * US
    assert run.damaged == ["layers/000000.parquet"]


def timed_in(lengths_us: list[float], constant_us: float) -> LayerTimes:
    """Return times of a layer that always takes the same, and of another that takes a tenth of all else."""
    lengths = np.array(lengths_us) * US
    constant = constant_us * US + np.arange(len(lengths)) % 2 * 100.0
    ns = np.column_stack([constant, 0.1 * (lengths - constant)])
    keys = pl.DataFrame({"phase": ["forward", "backward"], "module": ["slow", "other"]})
    return LayerTimes(keys, ns, np.zeros_like(ns), lengths, np.zeros(3))


def test_a_layer_that_longer_steps_leave_as_it_is_is_not_shortened_with_them() -> None:
    found = timed_in([3050, 3110, 3000, 3070, 2950, 2900, 3020, 2980], 2000).scaled_to_step(2650 * US)
    assert found.ns[:, 0].mean() == pytest.approx(2000 * US, rel=0.005)
    assert found.ns[:, 1].mean() == pytest.approx(65 * US, rel=0.05)
    assert found.doubt_ns[0] < 0.02 * 2000 * US


def test_a_layer_that_these_steps_tell_nothing_of_lengthens_as_they_do_and_its_interval_is_wide() -> None:
    found = timed_in([3000] * 8, 2000).scaled_to_step(2700 * US)
    assert found.ns[:, 0].mean() == pytest.approx(1800 * US, rel=0.01)
    assert found.ns[:, 0].mean() + found.doubt_ns[0] == pytest.approx(2000 * US, rel=0.02), (
        "it may take the same in both"
    )


def test_a_layer_that_takes_most_of_few_steps_keeps_its_time_where_the_update_and_the_rest_vary_with_them() -> None:
    draw = np.random.default_rng(0)
    constant = 8000 * US + np.array([300.0, -200.0, 500.0, -600.0])
    small = 20 * US + 400 * draw.standard_normal((4, 40))
    update, rest = np.array([399.0, 416, 419, 410]) * US, np.array([394.0, 461, 431, 448]) * US
    ns = np.column_stack([constant, small, update])
    names = [("forward", "slow"), *(("forward", f"small{place}") for place in range(40)), ("optimizer", OUTSIDE)]
    keys = pl.DataFrame(names, schema=["phase", "module"], orient="row")
    lengths = ns.sum(axis=1) + rest
    timed = LayerTimes(keys, ns, np.zeros_like(ns), lengths, np.zeros(len(names) + 1))
    found = timed.scaled_to_step(float(lengths.mean()) - 200 * US)
    assert found.ns[:, 0].mean() == pytest.approx(8000 * US, abs=found.doubt_ns[0])
    assert found.doubt_ns[0] < 0.02 * 8000 * US


@pytest.mark.parametrize(("room_us", "lacks"), [(4000, False), (1120, True)])
def test_more_profiled_steps_make_a_layer_no_better_known_than_the_steps_that_timed_it(
    room_us: float, lacks: bool
) -> None:
    ns = np.array([[1000.0, 100], [1020, 101], [990, 97], [1010, 103]]) * US
    timed = LayerTimes(timed_in([1.0], 0).keys, ns, np.zeros_like(ns), np.full(4, 4000.0 * US), np.zeros(3))
    values, lacking = timed.for_steps(30, np.full(30, room_us * US))
    assert values.mean(axis=0) == pytest.approx(ns.mean(axis=0))
    assert (values.sum(axis=1) <= room_us * US * (1 + 1e-9)).all()
    spread = values.std(axis=0, ddof=1) * special.stdtrit(29, 0.975) / np.sqrt(30)
    assert np.hypot(spread, lacking) == pytest.approx(ns.std(axis=0, ddof=1) * special.stdtrit(3, 0.975) / np.sqrt(4))
    assert (lacking > 1).any() == lacks


@pytest.mark.parametrize("step_us", [10, 2650, 3000, 30_000])
def test_layers_and_all_else_are_possible_times_of_a_step_of_any_length(step_us: float) -> None:
    found = timed_in([3050, 3110, 3000, 3070, 2950, 2900, 3020, 2980], 2000).scaled_to_step(step_us * US)
    assert (found.ns > 0).all()
    assert np.isfinite(found.ns).all()
    assert (found.doubt_ns >= 0).all()


def test_parts_add_up_where_some_profiled_steps_had_no_update(tmp_path: Path) -> None:
    run = run_with(tmp_path)
    for file in (run.path / "ops").glob("*.parquet"):
        rows = pl.read_parquet(file)
        updated = (pl.col("phase").cast(pl.String) == "optimizer") & pl.col("step").is_in([4, 7])
        rows.filter(~updated).write_parquet(file)
    run = Run(run.path)
    assert (run.ops["phase"].cast(pl.String) == "optimizer").any()
    for table, column in (("phases", "ns"), ("operators", "total_ns"), ("modules", "total_ns")):
        assert getattr(run, table)()[column].sum() == pytest.approx(run.step_times.step_ns, rel=1e-6)


def run_in_part(folder: Path) -> Path:
    """A run whose steps were too large to be profiled whole: of each the forward pass was."""
    path = fabricate_run(folder, steps=12, recorded=lambda step: step >= 4, samples=False, status=None)
    steps = Run(path).steps
    writer = RunWriter.attach(path)
    for step, t0_ns in steps.filter("recorded").select("step", "t0_ns").iter_rows():
        until_ns = t0_ns + 6000 * US
        writer.append_event(
            "step-profiled-in-part", "in part", step=step, part="forward", t0_ns=t0_ns, until_ns=until_ns
        )
    writer.close("ok")
    pack(path)
    (path / CHECKSUMS).unlink()
    for file in (path / "ops").glob("*.parquet"):
        pl.read_parquet(file).filter(pl.col("phase").cast(pl.String) == "forward").write_parquet(file)
    steps.with_columns(recorded=pl.lit(value=False)).write_parquet(path / "steps.parquet")
    return path


def test_phases_of_a_layer_that_lie_in_no_profiled_part_are_null_and_not_0(tmp_path: Path) -> None:
    run = Run(run_in_part(tmp_path))
    assert run.modules()["forward_ns"].sum() > 0
    for column in ("backward_ns", "tree_backward_ns", "optimizer_ns"):
        assert run.modules()[column].null_count() == len(run.modules())
    assert run.operators()["backward_ns"].null_count() == len(run.operators())


def test_layers_whose_forward_calls_were_not_seen_are_said_to_be_so_and_nothing_is_claimed_of_them(
    tmp_path: Path,
) -> None:
    path = fabricate_run(tmp_path, steps=20, samples=False)
    pack(path)
    for file in (path / "ops").glob("*.parquet"):
        rows = pl.read_parquet(file)
        rows.filter(pl.col("phase").cast(pl.String) != "forward").with_columns(
            parent=pl.lit(None, pl.Int32)
        ).write_parquet(file)
    (path / CHECKSUMS).unlink(missing_ok=True)
    run = Run(path)
    assert "layers in forward" in [gap.what for gap in run.not_measured()]
    assert "modules" not in run.verdict().sentence


def test_intervals_end_where_a_step_does(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=20, noise=2.0, samples=False))
    times = run.step_times
    most = times.step_ns * (1 + times.step_doubt)
    for table in (run.modules(), run.operators(), run.phases()):
        assert float(str(table["high_ns"].max())) <= most * (1 + 1e-9)
    assert float(str(run.modules()["tree_high_ns"].max())) <= most * (1 + 1e-9)


def test_loading_in_the_steps_in_which_layers_are_timed_is_no_more_than_that_of_the_run(tmp_path: Path) -> None:
    run = run_with(tmp_path, loads_us=lambda step: (9_000,) if step == 23 else (300,))
    writer = RunWriter.attach(run.path)
    writer.update(recorder={"loading_ns": 40 * 400 * US})
    again = Run(run.path)
    phases = dict(again.phases().select("phase", "ns").iter_rows())
    assert phases["data"] <= 400 * US * 1.01
    assert sum(phases.values()) == pytest.approx(again.step_times.step_ns, rel=1e-6)
