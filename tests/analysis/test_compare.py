"""A comparison: the parts of a difference are the known ones and add up to it, and what cannot be told is not told."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tests.analysis.attribution.powered_run import powered_run
from tests.analysis.test_layer_times import run_in_part, run_with
from tests.conftest import CommandLine
from tests.fabricate import STEP, Core, Op, every_step, fabricate_run
from tests.report.test_memory_report import events
from typer.testing import CliRunner

import stepscope
from stepscope.analysis.compare import WHAT, compare
from stepscope.analysis.compare.explanation import RESIDUAL
from stepscope.analysis.compare.regression_check import check
from stepscope.analysis.compare.run_groups import _estimate
from stepscope.analysis.estimate import Estimate, geometric_mean_of_ratios, geometric_mean_of_repeats
from stepscope.analysis.metrics import Measured
from stepscope.analysis.run import Run
from stepscope.analysis.time.operators import FRAMEWORK_OVERHEAD
from stepscope.analysis.time.steps import observed_batch
from stepscope.cli._application import build_app
from stepscope.errors import RunDamaged, RunNotFound, UnknownName, UsageError
from stepscope.report.comparison import render
from stepscope.runfolder import MEMORY, RunWriter, checksums, part_of


def slower(ops: tuple[Op, ...], name: str, more_us: int) -> tuple[Op, ...]:
    """The same ops, one kind of them slower."""
    return tuple(
        replace(op, self_us=op.self_us + more_us * (op.name == name), calls=slower(op.calls, name, more_us))
        for op in ops
    )


SLOW = slower(STEP, "aten::addmm", 4000)


def workload(batch: int, **more: Any) -> dict[str, Any]:
    """A header that states another batch."""
    about = {"name": "fabricated", "batch_size": batch, "optimizer": "sgd", "precision": "float32", "device": "cpu"}
    return {"workload": {**about, **more}}


def test_a_run_beside_itself_shows_no_difference(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path, steps=60, noise=0.02)
    comparison = compare([path, path])
    row = comparison.quantities.filter(metric="step_time", side=1).row(0, named=True)
    assert row["ratio"] == 1
    assert row["difference"] == "none seen"
    why = comparison.explain()
    assert why.difference == 0
    assert set(why.parts["difference"]) == {0.0}
    assert len(set(comparison.names)) == 2


def test_the_slower_module_and_op_explain_the_whole_difference(tmp_path: Path) -> None:
    first = fabricate_run(tmp_path / "a", steps=60, noise=0.02, seed=1)
    other = fabricate_run(tmp_path / "b", steps=60, noise=0.02, seed=2, ops=SLOW)
    comparison = stepscope.compare([first, other])
    row = comparison.quantities.filter(metric="step_time", side=1).row(0, named=True)
    assert row["ratio_low"] < 20.0 / 16.0 < row["ratio_high"]
    assert row["difference"] == "larger"
    for by, name in (("module", "fc"), ("kind", "aten::addmm"), ("type", "Linear"), ("phase", "forward")):
        why = comparison.explain("time", by)
        part = why.parts.row(0, named=True)
        assert part["name"] == name
        assert part["low"] < part["difference"] < part["high"]
        assert part["difference"] == pytest.approx(4e6, rel=0.03)
    assert "'fc'" in comparison.sentences()[0]


@pytest.mark.parametrize("by", WHAT["time"])
def test_parts_and_residual_add_up_to_the_difference(by: str, tmp_path: Path) -> None:
    first = fabricate_run(tmp_path / "a", steps=30, noise=0.05)
    other = fabricate_run(tmp_path / "b", steps=25, noise=0.05, ops=SLOW, residual_us=3000, seed=3)
    why = compare([first, other]).explain("time", by)
    assert why.difference == pytest.approx(why.parts["difference"].sum())
    assert why.parts["share"].sum() == pytest.approx(1)
    assert why.parts["name"][-1] == FRAMEWORK_OVERHEAD
    assert why.parts["difference"][-1] == pytest.approx(2e6, rel=0.2)
    assert why.low is not None
    assert why.high is not None
    assert why.difference is not None
    assert why.low < why.difference < why.high


def test_a_part_that_one_side_lacks_is_absent_there_and_not_0(tmp_path: Path) -> None:
    extra = (*STEP, Op("aten::dropout", "features.2", "forward", 500))
    first, other = fabricate_run(tmp_path / "a"), fabricate_run(tmp_path / "b", ops=extra)
    part = compare([first, other]).explain("time", "kind").parts.row(0, named=True)
    assert (part["name"], part["first"], part["other"]) == ("aten::dropout", None, pytest.approx(500_000))
    assert part["difference"] == pytest.approx(500_000)


def test_what_chance_can_explain_is_not_explained_by_parts(tmp_path: Path) -> None:
    paths = [fabricate_run(tmp_path, steps=40, noise=0.2, seed=seed) for seed in (4, 5)]
    said = compare(paths).sentences()[0]
    assert "No difference in step time seen" in said
    assert "no part is named" in said


def test_too_few_recorded_steps_give_parts_without_an_interval(tmp_path: Path) -> None:
    paths = [fabricate_run(tmp_path, steps=12, recorded=lambda step: step in (5, 6)) for _ in range(2)]
    why = compare(paths).explain()
    assert why.parts["low"].is_null().all()
    assert why.low is not None  # of the unprofiled steps there are enough
    few = [fabricate_run(tmp_path, steps=8, recorded=lambda step: step in (5, 6)) for _ in range(2)]
    assert compare(few).explain().low is None


def test_the_parts_are_of_a_step_without_the_profiler_where_profiled_steps_take_longer(tmp_path: Path) -> None:
    first = fabricate_run(tmp_path / "a", steps=60, recorded=lambda step: step % 2 == 0)
    other = fabricate_run(tmp_path / "b", steps=60, recorded=lambda step: step % 2 == 0, ops=SLOW, overhead=0.5)
    comparison = compare([first, other])
    stated = comparison.quantities.filter(metric="step_time")["value"]
    why = comparison.explain()
    assert [why.first, why.other] == pytest.approx(stated.to_list())
    assert why.parts["difference"].sum() == pytest.approx(stated[1] - stated[0])
    assert why.parts["name"][0] == "fc"
    assert RESIDUAL not in why.parts["name"]


def test_what_two_scripts_were_seen_to_train_otherwise_is_said_before_the_parts(tmp_path: Path) -> None:
    unstated = {"workload": {"name": "train"}}
    update = (*STEP[:-1], Op("Optimizer.step#Adam.step", None, "optimizer", 4000))
    first = fabricate_run(tmp_path / "a", steps=40, noise=0.01, batch=16, header={**unstated, "threads": 1})
    other = fabricate_run(tmp_path / "b", steps=40, noise=0.01, batch=8, header={**unstated, "threads": 2}, ops=update)
    comparison = compare([first, other])
    assert comparison.differences() == {"batch": (16, 8), "optimizer": ("SGD", "Adam"), "threads": (1, 2)}
    (said,) = comparison.sentences()
    assert "Changed: batch 16 to 8, optimizer SGD to Adam, threads 1 to 2" in said
    assert said.index("Changed") < said.index("By phase: 'optimizer' +3.2")


def test_a_difference_outside_the_layers_is_named_by_phase_and_the_largest_part_first(tmp_path: Path) -> None:
    first = fabricate_run(tmp_path / "a", steps=40, noise=0.01)
    other = fabricate_run(tmp_path / "b", steps=40, noise=0.01, residual_us=9000, ops=slower(STEP, "aten::addmm", 2000))
    (said,) = compare([first, other]).sentences()
    assert "By phase: (framework overhead) +8" in said
    assert said.index("(framework overhead)") < said.index("'forward'")
    loading = fabricate_run(tmp_path / "c", steps=40, noise=0.01, ops=slower(STEP, STEP[0].name, 5000))
    assert "By phase: 'data' +5" in compare([first, loading]).sentences()[0]


TRAINING = """
import sys, torch
from torch import nn
torch.set_num_threads(1)
wide = int(sys.argv[1])
model = nn.Sequential(nn.Linear(64, wide), nn.ReLU(), nn.Linear(wide, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(60):
    loss = model(torch.ones(32, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def assert_as_reported(comparison: dict[str, Any], reports: Sequence[dict[str, Any]]) -> None:
    """Every part of a difference in time has on either side the number, and of layers the CI, that the report has."""
    names = {"module": ("layers", "layer", "total_ns"), "kind": ("operators", "name", "total_ns"),
             "phase": ("phases", "phase", "ns")}  # fmt: skip
    (setting,) = comparison["settings"]
    whys = [why for why in setting["explanations"] if why["what"] == "time" and why["by"] in names]
    assert len(whys) == len(names)
    for why in whys:
        table, key, ns = names[why["by"]]
        for side, report in zip(("first", "other"), reports, strict=True):
            stated = {row[key]: row[ns] for row in report[table] if row[ns]}
            parts = {part["name"]: part[side] for part in why["parts"] if part[side] and part["name"][:1] != "("}
            assert parts == pytest.approx({name: value for name, value in stated.items() if name[:1] != "("})
            step = next(row["value"] for row in report["headline"] if row["metric"] == "step_time")
            assert sum(part[side] or 0.0 for part in why["parts"]) == pytest.approx(step, rel=1e-6)
    for row in setting["layers"]["time"]:
        for value, report in zip(row["values"], reports, strict=True):
            stated_row = next(layer for layer in report["layers"] if layer["layer"] == row["layer"])
            found = (value["value"], value["low"], value["high"])
            assert found == (stated_row["total_ns"], stated_row["low_ns"], stated_row["high_ns"])


def reported(paths: Sequence[Path]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the commands `compare --json` and `report --json` print of runs."""
    words = ["--json", "--by", "module", "--by", "kind", "--by", "phase", "--what", "time"]
    said = CliRunner().invoke(build_app(), ["compare", *map(str, paths), *words], catch_exceptions=False).stdout
    told = [CliRunner().invoke(build_app(), ["report", str(path), "--json"], catch_exceptions=False) for path in paths]
    return json.loads(said), [json.loads(done.stdout) for done in told]


def test_the_numbers_of_two_trainings_are_those_of_their_reports(tmp_path: Path, stepscope_cli: CommandLine) -> None:
    (tmp_path / "train.py").write_text(TRAINING, encoding="utf-8")
    paths = []
    for wide in ("32", "1024"):
        done = stepscope_cli("run", "-q", "--no-ceilings", "--out", wide, "--record", "first:20", "train.py", wide)
        assert done.returncode == 0, done.stderr
        paths += [*(tmp_path / wide).iterdir()]
    assert_as_reported(*reported(paths))


def test_layers_that_were_timed_in_steps_of_their_own_are_compared_as_such(tmp_path: Path) -> None:
    first = run_with(tmp_path / "a", {("forward", "features.0"): 2000}, spread=0.01)
    other = run_with(tmp_path / "b", {("forward", "features.0"): 2900}, spread=0.01)
    assert_as_reported(*reported([first.path, other.path]))
    part = compare([first, other]).explain().parts.filter(name="features.0").row(0, named=True)
    assert part["difference"] == pytest.approx(900_000, rel=0.01)
    assert part["low"] < part["difference"] < part["high"]


def test_what_was_not_profiled_of_large_steps_is_unattributed(tmp_path: Path) -> None:
    comparison = compare([run_in_part(tmp_path / "a"), fabricate_run(tmp_path / "b", steps=20, ops=SLOW)])
    why = comparison.explain()
    assert why.first is not None
    rest = why.parts.filter(name=RESIDUAL).row(0, named=True)
    first = Run(comparison.run_groups[0].runs[0].path)
    assert rest["first"] == pytest.approx(why.first - float(str(first.modules()["total_ns"].sum())))
    assert why.parts["difference"].sum() == pytest.approx(why.difference)
    assert "was not profiled" in comparison.sentences()[0]


def test_repeats_add_up_to_the_mean_that_is_stated(tmp_path: Path) -> None:
    for seed, more in enumerate((0, 2000, 9000)):
        for name in ("a", "b"):
            fabricate_run(tmp_path / name, steps=30, noise=0.05, seed=seed, ops=slower(STEP, "aten::mm", more))
    comparison = compare([tmp_path / "a", tmp_path / "b"])
    why = comparison.explain()
    assert why.first == pytest.approx(comparison.quantities.filter(metric="step_time")["value"][0])
    assert why.parts["first"].sum() == pytest.approx(why.first)
    assert RESIDUAL not in why.parts["name"], "every step was profiled whole"


def test_a_run_without_operations_gives_the_reason(tmp_path: Path) -> None:
    paths = [fabricate_run(tmp_path, ops=()), fabricate_run(tmp_path)]
    why = compare(paths).explain()
    assert why.parts.is_empty()
    assert why.reason == "no operator was recorded after the warm-up in the first"
    assert compare(paths).explain("kernels").reason.startswith("no kernel ran")


def test_time_per_sample_is_that_of_a_step_over_the_batch(tmp_path: Path) -> None:
    first = fabricate_run(tmp_path / "a", batch=16)
    other = fabricate_run(tmp_path / "b", batch=32, header=workload(32))
    step, sample = compare([first, other]), compare([first, other], per="sample")
    assert step.explain().difference == pytest.approx(0, abs=1)
    assert sample.explain().first == pytest.approx(16e6 / 16)
    assert sample.explain().other == pytest.approx(16e6 / 32)
    assert step.differences()["batch"] == (16, 32)


def test_a_shorter_step_of_fewer_samples_is_not_called_faster(tmp_path: Path) -> None:
    first = fabricate_run(tmp_path / "a", steps=40, noise=0.01)
    half = fabricate_run(tmp_path / "b", steps=40, batch=8, header=workload(8), stretch=lambda _: 0.7)
    (sentence,) = compare([first, half]).sentences()
    assert "A step of B is 1.43x shorter than one of A: 11.2 ms a step against 16 ms" in sentence
    assert "faster" not in sentence
    assert "Changed: batch 16 to 8. Samples/s, B / A: 0.71" in sentence


def test_by_samples_the_sentence_the_titles_and_the_parts_are_of_a_sample(tmp_path: Path) -> None:
    first = fabricate_run(tmp_path / "a", steps=40, noise=0.01)
    other = fabricate_run(tmp_path / "b", steps=40, batch=32, header=workload(32), stretch=lambda _: 1.6)
    comparison = compare([first, other], per="sample")
    (sentence,) = comparison.sentences()
    assert "B is 1.25x faster than A: 800 us a sample against 1 ms" in sentence
    assert "'features.0' -1" in sentence
    console = Console(width=140)
    with console.capture() as screen_capture:
        console.print(render(comparison))
    screen = screen_capture.get()
    assert "time of a sample by layer, A to B: 1 ms to 800 us" in screen
    assert "runs without the profiler, over its samples" in screen
    same = fabricate_run(tmp_path / "c", steps=40, noise=0.01, batch=32, header=workload(32), seed=2)
    assert "x faster than A: " in compare([first, same], per="sample").sentences()[0]
    assert "No difference in step time seen" in compare([first, same]).sentences()[0]


def test_a_run_that_did_not_end_well_is_said_to_be_one(tmp_path: Path) -> None:
    paths = [fabricate_run(tmp_path / name, status=status) for name, status in (("a", "ok"), ("b", "oom"))]
    (note,) = [note for note in compare(paths).notes if "ended as" in note]
    assert note == f"B: '{paths[1].name}' ended as oom: its numbers are of the steps until then."


def test_repeats_in_one_folder_have_the_interval_between_runs(tmp_path: Path) -> None:
    for seed, overhead in enumerate((0.0, 0.02, 0.04)):
        fabricate_run(
            tmp_path / "a", steps=30, noise=0.001, seed=seed, ops=slower(STEP, "aten::mm", int(9e3 * overhead))
        )
        fabricate_run(tmp_path / "b", steps=30, noise=0.001, seed=seed, ops=SLOW)
    comparison = compare([tmp_path / "a", tmp_path / "b"])
    rows = comparison.quantities.filter(metric="step_time")
    assert rows["interval_of"].to_list() == ["repeats", "repeats"]
    assert rows["runs"].to_list() == [3, 3]
    assert rows["high"][0] - rows["low"][0] > 10 * (rows["high"][1] - rows["low"][1])
    why = comparison.explain("time", "kind")
    assert why.difference == pytest.approx(why.parts["difference"].sum())
    assert why.parts["name"][0] == "aten::addmm"


def test_folders_of_several_settings_are_matched_and_the_rest_is_named(tmp_path: Path) -> None:
    for batch in (16, 32):
        fabricate_run(tmp_path / "a", batch=batch, header=workload(batch))
        fabricate_run(tmp_path / "b", batch=batch, header=workload(batch), ops=SLOW)
    fabricate_run(tmp_path / "b", batch=64, header=workload(64))
    comparison = compare([tmp_path / "a", tmp_path / "b"])
    assert sorted(one.label for one in comparison.settings) == [
        "fabricated batch 16 sgd float32",
        "fabricated batch 32 sgd float32",
    ]
    assert any("batch 64" in note for note in comparison.notes)
    mean = comparison.overall("step_time")
    assert mean is not None
    assert mean.value == pytest.approx(20 / 16)


def test_a_mean_over_settings_is_of_one_scope_and_says_of_how_many(tmp_path: Path) -> None:
    for batch in (16, 32, 64):
        for name in ("a", "b"):
            watts = {"power_w": 5.0} if batch != 64 else {}
            fabricate_run(tmp_path / name, batch=batch, header=workload(batch), **watts)  # type: ignore[arg-type]
    titles = {title for title, *_ in compare([tmp_path / "a", tmp_path / "b"]).overall_ratios()}
    assert {"Step time", "Energy per step of total (2 of them)"} <= titles


def test_a_sweep_is_compared_by_the_runs_in_it(tmp_path: Path) -> None:
    for name, ops in (("a", STEP), ("b", SLOW)):
        fabricate_run(tmp_path / name / "runs" / "point0", ops=ops)
        (tmp_path / name / "sweep.json").write_text("{}", encoding="utf-8")
    comparison = compare([tmp_path / "a", tmp_path / "b"])
    assert comparison.names == ("a", "b")
    assert comparison.explain("time", "kind").parts["name"][0] == "aten::addmm"


def test_runs_that_failed_are_left_out_of_a_folder_and_named(tmp_path: Path) -> None:
    good = fabricate_run(tmp_path / "a")
    fabricate_run(tmp_path / "b")
    bad = fabricate_run(tmp_path / "b", status="oom")
    comparison = compare([good, tmp_path / "b"])
    assert len(comparison.run_groups[1].runs) == 1
    assert any(bad.name in note and "oom" in note for note in comparison.notes)


def test_the_live_peak_is_explained_exactly_and_adds_up(tmp_path: Path) -> None:
    runs = []
    for name, sizes in (("a", {}), ("b", {1: 3.0})):
        path = fabricate_run(tmp_path / name, steps=12)
        frame = events(Run(path).steps["t0_ns"][4])
        factor = np.array([sizes.get(tensor, 1.0) for tensor in frame["tensor"]])
        scaled = frame.with_columns(bytes=(frame["bytes"] * factor).cast(frame["bytes"].dtype))
        RunWriter(path, {}).write_memory_events(part_of(scaled, "memory"))
        runs.append(path)
    comparison = compare(runs)
    for by, name in (("category", "saved"), ("module", "features.0"), ("type", "Conv2d")):
        why = comparison.explain("memory", by)
        assert why.difference == 120_000_000
        assert why.parts["difference"].sum() == 120_000_000
        assert why.parts["name"][0] == name
        assert why.parts["name"][-1] == "(not attributed)"
        assert why.low is None
    row = comparison.quantities.filter(metric="live_peak", side=1).row(0, named=True)
    assert (row["interval_of"], row["ratio"]) == ("exact", pytest.approx(241 / 121))


def with_memory(path: Path, times: int = 1, computed: bool = False) -> Path:
    """The run with the allocations of a step, profiled or of a step on tensors without data."""
    rows = events(0 if computed else Run(path).steps["t0_ns"][4]).with_columns(pl.col("bytes") * times)
    if computed:
        (path / "computed").mkdir()
        typed = rows.select(pl.col(name).cast(dtype) for name, dtype in MEMORY.items())
        typed.write_parquet(path / "computed" / "memory.parquet")
    else:
        RunWriter(path, {}).write_memory_events(part_of(rows, "memory"))
    return path


def test_memory_that_was_computed_is_not_put_against_memory_that_was_recorded(tmp_path: Path) -> None:
    recorded = with_memory(fabricate_run(tmp_path / "a", steps=12))
    computed = [with_memory(fabricate_run(tmp_path / f"{times}", steps=12), times, True) for times in (2, 3)]
    comparison = compare([recorded, *computed])
    assert "is not compared with what was computed" in comparison.explain("memory").reason
    assert any("COMPUTED memory of B, C" in note for note in comparison.notes)
    layers = comparison.layers("memory")
    assert len(layers) > 1
    assert {value.difference for row in layers for value in row.values if value} == {None}
    alike = compare(computed)
    assert alike.explain("memory").note.endswith("COMPUTED ON TENSORS WITHOUT DATA")
    assert {row.values[1].difference for row in alike.layers("memory") if row.values[1]} == {"larger"}


def test_energy_is_explained_by_parts_that_add_up(tmp_path: Path) -> None:
    first = powered_run(tmp_path / "a", steps=250)
    other = powered_run(tmp_path / "b", steps=250, ops=SLOW)
    comparison = compare([first, other])
    why = comparison.explain("energy", "kind")
    assert why.reason == ""
    assert why.difference == pytest.approx(why.parts["difference"].sum())
    assert why.parts["name"][0] == "aten::addmm"
    part = why.parts.row(0, named=True)
    assert part["low"] < 0.004 * 7.0 < part["high"]


def test_totals_of_different_supplies_have_no_ratio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [fabricate_run(tmp_path / name, steps=60, power_w=5.0) for name in ("a", "b")]
    first, other = map(Run, paths)
    rails = replace(other.rails, covers="the module, without the carrier board")
    monkeypatch.setattr(other, "rails", rails)
    comparison = compare([first, other])
    rows = comparison.quantities.filter(metric="energy_per_step", side=1, scope="total")
    assert rows["ratio"].to_list() == [None]
    assert rows["value"][0] > 0
    (said,) = [note for note in comparison.notes if "not of the same supply" in note]
    assert f"A: {first.rails.covers}; B: {rails.covers}" in said
    assert "total" not in comparison.explain("energy").note
    judged = check(other, first, {"energy": 0.05})
    assert all(row.metric is None for row in judged.judged)
    assert said in judged.notes


def test_scripts_that_train_other_batches_are_no_repeats_and_cannot_be_checked(tmp_path: Path) -> None:
    unstated = {"workload": {"name": "train"}}
    first, other = (
        fabricate_run(tmp_path / "both", steps=40, noise=0.01, batch=batch, header=unstated) for batch in (16, 32)
    )
    with pytest.raises(UsageError, match="differ in more than the code: batch"):
        check(first, other)
    comparison = compare([tmp_path / "both", tmp_path / "both"])
    assert sorted(setting.label for setting in comparison.settings) == ["train batch 16", "train batch 32"]


def test_batches_that_vary_from_step_to_step_are_no_setting(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path, steps=40, header={"workload": {"name": "train"}})
    assert observed_batch(Run(path)) == 16
    run = Run(path)
    varied = run.steps.with_columns(samples=pl.Series([8 + place % 7 for place in range(40)], dtype=pl.Int64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "steps", varied)
        assert observed_batch(run) is None


def test_simulated_energy_is_not_compared_with_measured(tmp_path: Path) -> None:
    first = powered_run(tmp_path / "a", steps=60)
    other = powered_run(tmp_path / "b", steps=60, header={"simulated": "jetson-tx2"})
    comparison = compare([first, other])
    assert "not compared with each other" in comparison.explain("energy").reason
    energy = comparison.quantities.filter(side=1, metric="energy_per_step")
    assert energy.is_empty()
    assert any(note.startswith("SIMULATED sensors of B:") for note in comparison.notes)


def test_a_run_that_shared_its_machine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.analysis.compare.background_warning", lambda use: "busy" if use else "")
    unread = fabricate_run(tmp_path / "a", steps=60, cores=())  # what others took is not known there
    shared = fabricate_run(tmp_path / "b", steps=60)
    said = [note for note in compare([unread, shared]).notes if "Background CPU load" in note]
    assert len(said) == 1
    assert "during B:" in said[0]
    assert unread.name not in said[0]


def test_everything_is_plain_json(tmp_path: Path) -> None:
    comparison = compare([fabricate_run(tmp_path), fabricate_run(tmp_path, ops=SLOW)])
    content = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert content["settings"][0]["explanations"][0]["parts"][0]["name"] == "fc"


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path / "a")
    with pytest.raises(UsageError, match="2 to 10"):
        compare([path])
    with pytest.raises(UsageError, match="2 to 10"):
        compare([path] * 11)
    with pytest.raises(RunNotFound):
        compare([path, tmp_path / "nothing"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunNotFound, match="no run that can be compared"):
        compare([path, tmp_path / "empty"])
    with pytest.raises(RunDamaged, match="nothing to compare"):
        compare([path, fabricate_run(tmp_path / "b", steps=2)])
    with pytest.raises(UnknownName):
        compare([path, path], per="epoch")
    with pytest.raises(UnknownName):
        compare([path, path]).explain("time", "category")


ABOVE = st.floats(1e-3, 1e6)


@given(ABOVE, ABOVE, st.floats(0.0, 0.9), st.floats(0.0, 3.0))
def test_a_ratio_lies_in_its_interval_and_turns_round(a: float, b: float, below: float, above: float) -> None:
    first, other = (Estimate(value, value * (1 - below), value * (1 + above)) for value in (a, b))
    there, back = other / first, first / other
    assert there is not None
    assert back is not None
    assert there.low is not None
    assert there.high is not None
    assert there.low <= there.value <= there.high
    assert back.low == pytest.approx(1 / there.high)
    assert back.high == pytest.approx(1 / there.low)
    mean = geometric_mean_of_ratios([there, there])
    assert mean is not None
    assert mean.value == pytest.approx(there.value)


@pytest.mark.parametrize("value", [0.0, -1.0, None])
def test_nothing_is_divided_by_what_is_not_above_0(value: float | None) -> None:
    measured = Estimate(1.0, 0.5, 2.0)
    assert measured / _estimate(Measured("step_time", "run", value, "ns")) is None


def test_repeats_are_pooled_on_a_logarithmic_scale_and_a_single_one_keeps_its_interval() -> None:
    single = Estimate(3.0, 2.0, 4.0)
    assert geometric_mean_of_repeats([single]) == single
    pooled = geometric_mean_of_repeats([Estimate(1.0), Estimate(2.0), Estimate(4.0)])
    assert pooled.value == pytest.approx(2.0)
    assert pooled.low is not None
    assert pooled.high is not None
    assert pooled.low * pooled.high == pytest.approx(4.0), "the interval is as wide below as above, as factors"
    apart = geometric_mean_of_repeats([Estimate(0.4), Estimate(30.0)])
    assert apart.value == pytest.approx(12**0.5)
    assert apart.low is apart.high is None, "bounds would be of no use"
    assert geometric_mean_of_repeats([Estimate(1e-200), Estimate(1e200)]).high is None
    with_zero = geometric_mean_of_repeats([Estimate(0.0), Estimate(2.0)])
    assert with_zero.value == 1.0, "zero has no logarithm"


def test_of_too_few_steps_nothing_is_said_to_be_slower(tmp_path: Path) -> None:
    runs = [fabricate_run(tmp_path / f"{seed}", steps=8, noise=0.05, seed=seed) for seed in (1, 2)]
    said = " ".join(compare(runs).sentences())
    assert "cannot be told" in said
    assert "run longer" in said
    assert "from chance" not in said


def test_a_difference_of_memory_is_explained_without_being_asked_for(tmp_path: Path) -> None:
    paths = [fabricate_run(tmp_path / name, steps=40, noise=0.01) for name in ("a", "b")]
    for path, times in zip(paths, (1, 2), strict=True):
        rows = events(Run(path).steps["t0_ns"][4]).with_columns(pl.col("bytes") * times)
        RunWriter(path, {}).write_memory_events(part_of(rows, "memory"))
    console = Console(width=110)
    with console.capture() as captured:
        console.print(render(compare(paths)))
    assert "peak of live memory by layer" in captured.get()


def test_use_of_simulated_cores_is_not_compared_with_that_of_real_ones(tmp_path: Path) -> None:
    measured = Run(fabricate_run(tmp_path / "measured"))
    simulated = Run(fabricate_run(tmp_path / "simulated", header={"simulated": "jetson-tx2"}))
    assert simulated.simulated == "jetson-tx2"

    def ratio(*runs: Run) -> float | None:
        rows = compare(runs).quantities.filter(metric="mean_cpu_utilisation", side=1)
        return float(rows["ratio"][0]) if rows["ratio"][0] is not None else None

    assert ratio(measured, simulated) is None
    assert ratio(simulated, simulated) == pytest.approx(1.0)
    assert compare([measured, simulated]).quantities.filter(metric="step_time", side=1)["ratio"][0] is not None


@pytest.mark.parametrize("rest", [None, 300])
def test_a_run_whose_steps_are_lost_is_not_told_to_train_more(tmp_path: Path, rest: int | None) -> None:
    path = fabricate_run(tmp_path)
    (file,) = path.glob("steps*")
    checksums.record_checksums(path, file.name)
    content = file.read_bytes()[:rest]
    file.unlink() if rest is None else file.write_bytes(content)
    verdict = Run(path).verdict()
    assert verdict.sentence.startswith(f"The steps of this run cannot be read: {file.name} is ")
    assert "optimizer.step()" not in " ".join(verdict.next)
    with pytest.raises(RunDamaged, match="its steps cannot be read"):
        compare([path, path])


def test_steps_that_were_all_profiled_are_not_put_against_others_layer_by_layer(tmp_path: Path) -> None:
    def run(mode: str, recorded: Callable[[int], bool]) -> Path:
        header = {"recorder": {"mode": mode}}
        return fabricate_run(tmp_path / mode, steps=60, noise=0.02, overhead=0.3, recorded=recorded, header=header)

    part, whole = run("adaptive", lambda step: step % 8 == 1), run("all", every_step)
    comparison = compare([part, whole])
    sentence = comparison.sentences()[0]
    assert "No layer is named: every step of B was profiled" in sentence
    assert "By " not in sentence
    assert all(row.values[1] and row.values[1].difference is None for row in comparison.layers("time"))
    assert "every step of A was profiled" in compare([whole, part]).sentences()[0]
    assert compare([whole, whole]).differences() == {}
    with pytest.raises(UsageError, match="profiled steps"):
        check(whole, part)


def test_the_interval_of_the_throughput_is_that_of_the_report(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=200, noise=0.02, drift=0.5))
    names = ["value", "low", "high"]
    side = compare([run, run]).quantities.filter(metric="throughput", side=0).select(names).row(0)
    assert side == run.metrics().filter(metric="throughput").select(names).row(0)
    longest = float(run.steps.select(pl.col("t1_ns") - pl.col("t0_ns")).to_series().max() or 0)  # type: ignore[arg-type]
    assert side[1] > 16 / longest * 1e9


def test_where_no_difference_is_seen_no_reason_is_looked_for(tmp_path: Path) -> None:
    profiled = fabricate_run(tmp_path / "profiled", steps=60, noise=0.02)
    timed: dict[str, Any] = {"steps": 60, "noise": 0.02, "recorded": lambda _: False}
    alike = fabricate_run(tmp_path / "alike", **timed)
    slower = fabricate_run(tmp_path / "slower", **timed, stretch=lambda _: 1.7)
    assert "Why is not known" not in compare([profiled, alike]).sentences()[0]
    assert "Why is not known: no operator was recorded" in compare([profiled, slower]).sentences()[0]


def test_under_unequal_load_whose_waits_were_not_sampled_no_layer_is_named(tmp_path: Path) -> None:
    quiet = fabricate_run(tmp_path / "quiet", steps=60, noise=0.02)
    loaded, longer = (
        fabricate_run(tmp_path / name, steps=60, noise=0.02, stretch=lambda _: 1.7, cores=cores, process_cores=used)
        for name, cores, used in (("loaded", (Core(0.99), Core(0.99)), 0.6), ("longer", (Core(0.75), Core(0.25)), 1.0))
    )
    assert "No layer is named: background load was 1.4 cores (A: 0)" in compare([quiet, loaded]).sentences()[0]
    assert "No layer is named: background load was 0 cores (A: 1.4)" in compare([loaded, quiet]).sentences()[0]
    assert "By module: 'features.0'" in compare([quiet, longer]).sentences()[0]


def test_a_shorter_median_step_with_longer_stalls_is_not_called_faster_without_the_throughput(tmp_path: Path) -> None:
    timed: dict[str, Any] = {"steps": 80, "noise": 0.02, "recorded": lambda step: step % 8 == 1}
    even = fabricate_run(tmp_path / "even", **timed)
    stalls = fabricate_run(tmp_path / "stalls", **timed, stretch=lambda step: 20.0 if step % 6 == 0 else 0.5)
    sentence = compare([even, stalls]).sentences()[0]
    assert "x faster than A" in sentence
    assert "That is the median step. Samples/s with its long steps, B / A: 0.2" in sentence
    assert "long steps" not in compare([even, even]).sentences()[0]
